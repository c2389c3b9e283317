# SPDX-License-Identifier: Apache-2.0
"""Times the demo's decoders on a GPU, by ``relax_ext.pipeline`` and by PyTorch with cuDNN.

::

    python benchmarks/bench_gpu_models.py --batch 1 16 --json out/gpu_models.json

Each model, with random weights, is exported, imported, compiled, and compared with PyTorch in
float64.  Then this package and PyTorch run interleaved, each also in a CUDA graph, which removes
most launches; PyTorch runs with ``cudnn.benchmark`` and without TF32.  Times are medians of
milliseconds, with launches and Python, and with a wait for the result after each block of calls.  A
model that fails is named, and the next one follows.

It needs TVM 0.27, nvcc and a PyTorch with CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

BLOCKS = 9
CALLS = 20
"""Calls in a block."""


@dataclass
class Row:
    """Results of a model; milliseconds of a call."""

    model: str
    batch: int
    ours: float
    ours_graph: float
    torch: float
    torch_graph: float
    error: float
    compile_s: float

    @property
    def ratio(self) -> float:
        """Return the fastest time of PyTorch divided by our fastest time."""
        return min(self.torch, self.torch_graph) / min(self.ours, self.ours_graph)


def main() -> int:
    """Measure all models."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--batch", type=int, nargs="+", default=[1])
    made.add_argument("--json", type=Path, help="write the rows there")
    given = made.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import torch  # before TVM: its runtime for CUDA finds the CUDA runtime that PyTorch has loaded

    if not torch.cuda.is_available():
        print("bench_gpu_models: PyTorch finds no NVIDIA GPU", file=sys.stderr)
        return 2
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    import models

    rows: list[Row] = []
    failed = 0
    for name in models.DECODERS:
        for batch in given.batch:
            try:
                rows.append(measured(name, batch))
            except Exception as failure:  # a model that fails does not end a run
                failed += 1
                print(f"bench_gpu_models: {name}: {failure}", file=sys.stderr, flush=True)
                continue
            print(rows[-1], flush=True)
            if given.json:
                given.json.parent.mkdir(parents=True, exist_ok=True)
                given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if rows:
        print(f"geometric mean: {geometric_mean([row.ratio for row in rows]):.2f}")
    return int(failed > 0)


def measured(name: str, batch: int) -> Row:
    """Measure one model."""
    import models
    import torch
    import tvm
    from tvm import relax

    from relax_ext.cli.torch_model import to_relax

    model, x = models.make(name)
    x = torch.randn(batch, *x.shape[1:], generator=torch.Generator().manual_seed(1))
    major, minor = torch.cuda.get_device_capability()
    target = tvm.target.Target(
        {"kind": "cuda", "arch": f"sm_{major}{minor}"}, host={"kind": "llvm"}
    )
    module = to_relax(torch.export.export(model, (x,)), keep_params=False)
    start = time.perf_counter()
    ours = relax.VirtualMachine(executable(module, target, uses_graph=False), tvm.cuda())["main"]
    seconds = time.perf_counter() - start
    graph = relax.VirtualMachine(executable(module, target, uses_graph=True), tvm.cuda())["main"]
    given = tvm.runtime.tensor(x.numpy(), tvm.cuda())
    on_gpu, placed = model.cuda(), x.cuda()
    with torch.inference_mode():
        got = [torch.from_numpy(flat(run(given)).numpy()) for run in (ours, graph, graph)]
        runs = {
            "ours": (lambda: ours(given), tvm.cuda().sync),
            "ours_graph": (lambda: graph(given), tvm.cuda().sync),
            "torch": (lambda: on_gpu(placed), torch.cuda.synchronize),
            "torch_graph": (captured(on_gpu, placed), torch.cuda.synchronize),
        }
        times = in_turns(runs)
        want = model.double()(placed.double()).cpu()
    error = float(max((one - want).abs().max() for one in got) / want.abs().max())
    return Row(name, batch, **times, error=error, compile_s=seconds)


def executable(module: Any, target: Any, *, uses_graph: bool) -> Any:
    """Compile a model; with `uses_graph` its launches are in a CUDA graph."""
    import tvm

    import relax_ext

    config = {"relax.backend.use_cuda_graph": uses_graph}
    with tvm.transform.PassContext(opt_level=3, config=config):
        return tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))


def flat(result: Any) -> Any:
    """Return a tensor, or the first of a tuple."""
    return result if hasattr(result, "numpy") else result[0]


def captured(model: Any, x: Any) -> Callable[[], Any]:
    """Return a call of the model as a CUDA graph."""
    import torch

    for _ in range(3):  # searches for algorithms, which a graph must not do
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def in_turns(runs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]]) -> dict[str, float]:
    """Return the median over blocks of each function, in milliseconds of a call."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(BLOCKS + 1):
        for name, (run, wait) in runs.items():
            wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                run()
            wait()
            times[name].append((time.perf_counter() - start) / CALLS * 1e3)
    return {name: median(found[1:]) for name, found in times.items()}


if __name__ == "__main__":
    sys.exit(main())
