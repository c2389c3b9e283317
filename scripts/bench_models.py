# SPDX-License-Identifier: Apache-2.0
"""Times whole models, in sizes that people run, by ``relax_ext.pipeline`` and four baselines.

::

    python scripts/bench_models.py --only Unet "UNet2DModel" --json out/bench_models.json
    python scripts/bench_models.py --busy --only SpeechT5HifiGan --json out/bench_busy.json

Baselines are PyTorch eager, ``torch.compile`` with frozen weights, ONNX Runtime and OpenVINO; the
last two run what torch's exporter to ONNX writes.  Weights are random.  Each engine runs in a
process of its own, in turns with the others, a block of runs each.  Medians are compared.  Each
result is compared with PyTorch in float64.  The first compile is timed with empty caches.  ``make
env-models env-rivals`` installs the packages; no weights are downloaded.

With ``--busy``, one, two and four processes of each engine run at once, and one process runs beside
a loop that takes a core.  Calls a second of all processes together, and the median and 99th
percentile of the latency of a call, are compared: in milliseconds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from support import onnx_models, steps
from support.steps import Row
from support.workers import BLOCK, Worker, empty_caches, in_turns, serve, started

BASELINES = {
    "eager": "PyTorch eager",
    "inductor": "torch.compile, frozen",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
ENGINES = ("ours", *BASELINES)
PACKAGES = ("torch", "apache-tvm", "onnxruntime")
"""Distributions whose versions are reported."""
TOLERANCE = 1e-3
"""Maximum error, relative to the largest value of a result; deep models amplify roundings."""
PROFILED = 5
"""Runs in which the operators are timed."""

TURNS, SECONDS = 3, 2.0
LOADS = {"alone": (1, 0), "2 processes": (2, 0), "4 processes": (4, 0), "beside a loop": (1, 1)}
"""Processes of the engine, and loops beside them."""
PRODUCT = re.compile(
    r"(?P<batch>\d+)x(?P<terms>\d+)x(?P<image>[\dx]+) -> \d+x(?P<columns>\d+)x.* kernel 1(x1)*"
)
"""A convolution of one tap, as kernels state it."""
LOOP = [sys.executable, "-c", "while True: pass"]


class Model(NamedTuple):
    """A module in float32, its inputs, and its result in float64."""

    module: Any
    inputs: Any
    exact: list[Any]


def main() -> int:
    """Run the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--busy", action="store_true", help="while other processes run")
    made.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    made.add_argument("--folder", type=Path, help="where the ONNX file of the model is")
    given = made.parse_args()
    steps.use_threads(given.threads)
    if steps.work(given, work_on_file, export, work_on_module):
        return 0
    from support.zoo.catalog import quiet

    quiet()
    from support.zoo.published import MODELS

    def measure(name: str) -> dict[str, Row]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            commands = {
                engine: steps.command_in(folder, __file__, given.threads, engine, name)
                for engine in ("export", *given.engines)
            }
            if given.busy:
                rows = busy(stack, commands)
                return {f"{name}, {load}": row for load, row in rows.items()}
            return {name: measured(stack, commands, empty_caches(folder))}

    what = "time of a call, all processes together" if given.busy else "time of a run"
    groups = LOADS if given.busy else ("",)
    return steps.run(given, MODELS, measure, BASELINES, what, PACKAGES, groups)


def measured(stack: ExitStack, commands: dict[str, list[str]], caches: dict[str, str]) -> Row:
    """Return milliseconds by engine, errors, seconds of the first compile, and our profile."""
    workers, failed, _ = started(stack, commands, caches)
    workers.pop("export", None)
    row: Row = {"failed": failed}
    for key in ("error", "first_s"):
        row[key] = {engine: worker.ready[key] for engine, worker in workers.items()}
    row |= workers["ours"].ready["profile"]
    row["ms"] = in_turns(workers)
    return row


def busy(stack: ExitStack, commands: dict[str, list[str]]) -> dict[str, Row]:
    """Return a row for each load."""
    first, failed, _ = started(stack, commands)
    first.pop("export", None)
    again = {engine: commands[engine] for engine in first}
    most = max(count for count, _ in LOADS.values())
    groups = [first, *(started(stack, again).workers for _ in range(most - 1))]
    workers = {e: [group[e] for group in groups if e in group] for e in first}
    return {load: under_load(workers, *how, failed) for load, how in LOADS.items()}


def under_load(
    workers: dict[str, list[Worker]], count: int, loops: int, failed: dict[str, str]
) -> Row:
    """Measure `count` workers of each engine at once, in turns with the other engines.

    ``ms`` is the time of a call, all processes together.
    """
    calls: dict[str, list[list[float]]] = {engine: [] for engine in workers}
    with ExitStack() as stack:
        for _ in range(loops):
            stack.callback(subprocess.Popen(LOOP).kill)
        for _ in range(TURNS):
            for engine, processes in workers.items():
                at_once(processes[:count], BLOCK)
                calls[engine] += at_once(processes[:count], SECONDS)
    row: Row = {"failed": failed, "ms": {}, "p50_ms": {}, "p99_ms": {}}
    for engine, of_each in calls.items():
        times = [ms for of_one in of_each for ms in of_one]
        row["ms"][engine] = TURNS * 1e3 / sum(1e3 * len(one) / sum(one) for one in of_each)
        row["p50_ms"][engine] = median(times)
        row["p99_ms"][engine] = quantiles(times, n=100)[98]
    return row


def at_once(workers: Sequence[Worker], seconds: float) -> list[list[float]]:
    """Let workers call for so long at the same time; return the milliseconds of their calls."""
    for worker in workers:
        worker.start(seconds)
    return [worker.finish() for worker in workers]


def made(name: str) -> Model:
    """Return a model of the catalog."""
    from support.zoo import catalog, stages
    from support.zoo.published import MODELS

    module, inputs = stages.prepare(catalog.Entry(name, "", MODELS[name], "float32"))
    return Model(module, inputs, stages.exact(module, inputs))


def export(name: str, folder: Path) -> None:
    """Write the model as ONNX, its inputs and its first result."""
    import numpy as np
    import torch

    model = made(name)
    np.savez(folder / "inputs.npz", *[x.contiguous().numpy() for x in model.inputs])
    np.save(folder / "exact.npy", model.exact[0].numpy())
    file = folder / "model.onnx"
    torch.onnx.export(model.module, tuple(model.inputs), str(file), dynamo=False, opset_version=17)
    serve(lambda: None, {})


def work_on_module(engine: str, name: str, threads: int) -> None:
    """Prepare and run a module of PyTorch in this process."""
    import torch

    from support.zoo import stages

    torch.set_num_threads(threads)
    model = made(name)
    with torch.no_grad():
        start = time.perf_counter()
        more: dict[str, Any] = {}
        if engine == "ours":
            from support.by_relax import results

            run, profile = by_tvm(model, threads)
            found = results(run())
        else:
            run = by_torch(model, frozen=engine == "inductor")
            found = stages.tensors_of(run())
        seconds = round(time.perf_counter() - start, 1)
        check(name, engine, error := stages.error_of(found, model.exact))
        if engine == "ours":
            more["profile"] = profile()
        serve(run, {"first_s": seconds, "error": error, **more})


def work_on_file(engine: str, folder: Path, threads: int) -> None:
    """Prepare and run the ONNX file in this process."""
    run, first, exact, seconds = onnx_models.of_folder(engine, folder, threads)
    check("", engine, error := float(abs(first - exact).max() / abs(exact).max()))
    serve(run, {"first_s": seconds, "error": error})


def check(name: str, engine: str, error: float) -> None:
    """End this process if a result is incorrect."""
    if not error < TOLERANCE:
        raise SystemExit(f"{name} {engine}: the result is {error:.1e} off")


def by_tvm(model: Model, threads: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a run by ``relax_ext.pipeline``, and what profiles it."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    import relax_ext
    from relax_ext.cli.instrument import KernelNames
    from support import peaks
    from support.engines import engine
    from support.zoo import stages

    target = relax_ext.host_target(num_cores=threads)
    module = from_exported_program(stages.export(model.module, model.inputs))
    kernels = KernelNames(target)
    executable = tvm.compile(module, target, relax_pipeline=kernels.pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.from_dlpack(x.contiguous()) for x in model.inputs]

    def run() -> Any:
        return machine["main"](*given)

    def profiled() -> Row:
        peak = peaks.gflops(engine("relax"), target, threads)
        return profile(machine, run, kernels, peak)

    return run, profiled


def profile(machine: Any, run: Callable[[], Any], kernels: Any, peak: float) -> Row:
    """Return the share of time in our kernels, the operator that takes most of the rest, and the
    share and the fraction of the peak of each matrix product ``rows x terms x columns``.
    """
    import tvm

    from conv_cli.profiling import Profile, entries_of
    from relax_ext.cli.instrument import calls_of

    observed = []
    for _ in range(PROFILED):
        with calls_of(machine, tvm.cpu()) as calls:
            run()
        observed.append(list(calls))
    ours = {name: info.kernel for name, info in kernels.infos.items()}
    found = Profile("relax_ext", "", "torch", "", 0, entries_of(observed, ours))
    products = products_of([call for calls in observed for call in calls], kernels.infos, peak)
    return {"share_of_ours": found.ours, "weakest": found.weakest, "gemm": products}


def products_of(
    calls: Sequence[Any], infos: Mapping[str, Any], peak: float
) -> dict[str, list[float]]:
    """Return the share of time and the fraction of the peak of matrix products, the longest first.

    Products with constant weights are convolutions of one tap to their kernel.
    """
    ns: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for call in calls:
        info = infos.get(call.symbol)
        sizes = info and info.kernel == "gemm" and PRODUCT.fullmatch(info.shape)
        if sizes:
            rows = int(sizes["batch"]) * prod(map(int, sizes["image"].split("x")))
            size = f"{rows}x{sizes['terms']}x{sizes['columns']}"
            ns[size] += call.ns
            flops[size] += 2 * rows * int(sizes["terms"]) * int(sizes["columns"])
    total = sum(call.ns for call in calls)
    return {size: [ns[size] / total, flops[size] / ns[size] / peak] for size, _ in ns.most_common()}


def by_torch(model: Model, *, frozen: bool) -> Callable[[], Any]:
    """Return a run by PyTorch as it is, or by ``torch.compile`` with frozen weights."""
    import torch

    forward = model.module
    if frozen:
        forward = torch.compile(forward, dynamic=False, options={"freezing": True})
    return lambda: forward(*model.inputs)


if __name__ == "__main__":
    sys.exit(main())
