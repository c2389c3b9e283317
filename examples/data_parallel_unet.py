# SPDX-License-Identifier: Apache-2.0
"""A U-Net with batch norm, trained by several processes of ``relax_ext.training``.

Each process computes the gradients of its part of a batch, ``torch.distributed`` sums them, and
each makes the same update.  Batch norms have the statistics of their own part, as those of
PyTorch's ``DistributedDataParallel`` have, which trains beside it for comparison.

Exit status 1 when a loss of the first process differs by more than 1e-4 from that one's.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT = 1e-4
RATE, MOMENTUM = 0.05, 0.9


def train(rank: int, given: argparse.Namespace, meeting: str) -> None:
    """Train in one process of several, by ours and by PyTorch; the first one writes the losses."""
    warnings.filterwarnings("ignore")
    import segmentation
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    import relax_ext

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=given.workers
    )
    torch.manual_seed(0)
    module = segmentation.Loss(segmentation.UNet(given.width))
    if given.dtype == "float64":
        module = module.double()
    beside = DistributedDataParallel(copy.deepcopy(module))
    mine = [
        tuple(tensor.to(getattr(torch, given.dtype))[rank :: given.workers] for tensor in batch)
        for batch in segmentation.batches(given.batch, given.steps)
    ]
    optimizer = torch.optim.SGD(module.parameters(), RATE, MOMENTUM)
    step = relax_ext.training(module, mine[0], optimizer)
    other = torch.optim.SGD(beside.parameters(), RATE, MOMENTUM)
    ours, theirs = [], []
    for batch in mine:
        loss, gradients = step.gradients(*batch)
        for gradient in gradients.values():
            distributed.all_reduce(gradient)
        step.update(gradients, scale=1 / given.workers)
        ours.append(loss.item())

        other.zero_grad()
        loss = beside(*batch)
        loss.backward()
        other.step()
        theirs.append(loss.item())
    step.to_torch()
    if rank == 0:
        states = module.state_dict(), beside.module.state_dict()
        report = {"losses": ours, "torch": theirs, "state": distance(*states)}
        given.json.write_text(json.dumps(report) + "\n")
    distributed.barrier()
    distributed.destroy_process_group()


def distance(state: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of two states, each tensor's by its largest value."""
    return max(
        float((state[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1))
        for name, tensor in other.items()
    )


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a U-Net by several processes.")
    add = parser.add_argument
    add("--workers", type=int, default=2, help="default: %(default)s")
    add("--steps", type=int, default=20, help="default: %(default)s")
    add("--batch", type=int, default=32, help="images of a step, default: %(default)s")
    add("--width", type=int, default=16, help="channels of the first level, default: %(default)s")
    add("--dtype", choices=("float32", "float64"), default="float32")
    add("--json", type=Path, metavar="OUT", help="write losses to this file")
    given = parser.parse_args(argv)
    if given.workers < 1 or given.steps < 1:
        parser.error("--workers and --steps must be positive")
    if given.batch < 2 * given.workers or given.batch % given.workers:
        parser.error(f"--batch {given.batch} must be a multiple of --workers {given.workers}")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Train by several processes and compare; return the exit status."""
    given = options(argv)
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        given.json = given.json or Path(folder, "losses.json")
        multiprocessing.spawn(train, (given, str(Path(folder, "meeting"))), given.workers)
        report = json.loads(given.json.read_text())
    worst = max(abs(a / b - 1) for a, b in zip(report["losses"], report["torch"]))
    first, last = report["losses"][0], report["losses"][-1]
    print(
        f"{given.workers} processes, loss {first:.4f} to {last:.4f}; DistributedDataParallel "
        f"differs by {worst:.0e} at most, limit {LIMIT:.0e}"
    )
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
