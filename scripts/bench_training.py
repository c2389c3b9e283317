# SPDX-License-Identifier: Apache-2.0
"""Times training steps: ``relax_ext.training``, PyTorch eager and ``torch.compile``.

::

    python scripts/bench_training.py --json out/bench_training.json --plot out/bench_training.png

A step is forward, backward and the update by SGD with momentum, of one batch.  Each engine runs in
a process of its own, with the defaults that it has there, in turns with the others, a block of
steps each.  Medians are compared, and the peaks of memory of the processes.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support import steps
from support.steps import Row
from support.workers import Worker, WorkerError, in_turns, serve

BASELINES = {"eager": "PyTorch eager", "compile": "torch.compile"}
ENGINES = ("ours", *BASELINES)
STEPS_FOR_PEAK = 3


def main() -> int:
    """Run the command line."""
    given = parser().parse_args()
    steps.use_threads(given.threads)
    from support.trainable.losses import InBfloat16
    from support.trainable.sized import MODELS

    if given.worker:
        module, batch = MODELS[given.only[0]]()
        work(given.worker, InBfloat16(module) if given.bfloat16 else module, batch, given.threads)
        return 0
    what = "time of a training step"
    return steps.run(given, MODELS, lambda name: {name: measured(name, given)}, BASELINES, what)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--bfloat16", action="store_true", help="by torch.autocast, all engines")
    return made


def measured(name: str, given: argparse.Namespace) -> Row:
    """Return milliseconds of a step of each engine, seconds of the first, and memory."""
    row: Row = {"bfloat16": given.bfloat16, "failed": {}}
    with ExitStack() as stack:
        workers = {}
        for engine in ENGINES:
            command = [sys.executable, __file__, "--worker", engine, "--only", name]
            command += ["--threads", str(given.threads)] + ["--bfloat16"] * given.bfloat16
            try:
                workers[engine] = stack.enter_context(Worker(command))
            except WorkerError as error:  # torch.compile refuses some models
                if engine != "compile":
                    raise
                row["failed"][engine] = str(error)
        for key in ("first_step_s", "peak_mib", "step_mib"):
            row[key] = {engine: worker.ready[key] for engine, worker in workers.items()}
        row["ms"] = in_turns(workers)
    return row


def work(engine: str, module: Any, batch: Any, threads: int) -> None:
    """Train in this process.

    Compiling is over when the peak of memory is read; Linux forgets the peak before on request.  Of
    the peak, a step takes what was not resident before the first: gradients, the optimizer's state,
    activations.  ``torch.compile`` compiles within that one, so that this says nothing of its step.
    """
    import torch

    torch.set_num_threads(threads)
    start = time.perf_counter()
    step = step_of(engine, module, batch)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    ready = resident("VmRSS")
    step()
    first = round(time.perf_counter() - start, 1)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS_FOR_PEAK):
        step()
    peak = resident("VmHWM")
    serve(step, {"first_step_s": first, "peak_mib": peak, "step_mib": round(peak - ready, 1)})


def step_of(engine: str, module: Any, batch: Any) -> Callable[[], Any]:
    """Return a call that trains a module for one step."""
    import torch

    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, 0.9)
    if engine == "ours":
        import relax_ext

        step = relax_ext.training(module, batch, optimizer)
        return lambda: step(*batch)
    forward = torch.compile(module, dynamic=False) if engine == "compile" else module

    def step_of_torch() -> Any:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step_of_torch


def resident(field: str) -> float:
    """Return a size of this process in MiB."""
    text = Path("/proc/self/status").read_text()
    kib = next(one.split()[1] for one in text.splitlines() if one.startswith(field))
    return round(int(kib) / 1024, 1)


if __name__ == "__main__":
    sys.exit(main())
