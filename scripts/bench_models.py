# SPDX-License-Identifier: Apache-2.0
"""Times whole models, in sizes that people run, by ``relax_ext.pipeline`` and four baselines.

::

    python scripts/bench_models.py --only Unet "UNet2DModel" --json out/bench_models.json

Baselines are PyTorch eager, ``torch.compile`` with frozen weights, ONNX Runtime and OpenVINO; the
last two run what torch's exporter to ONNX writes.  Weights are random.  Each engine runs in a
process of its own, in turns with the others, a block of runs each.  Medians are compared.  Each
result is compared with PyTorch in float64.  The first compile is timed with empty caches.  ``make
env-models env-rivals`` installs the packages; no weights are downloaded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from support import onnx_files, steps
from support.steps import Row
from support.workers import Worker, WorkerError, empty_caches, in_turns, serve

ROOT = Path(__file__).parents[1]
BASELINES = {
    "eager": "PyTorch eager",
    "inductor": "torch.compile, frozen",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
PACKAGES = ("torch", "apache-tvm", "onnxruntime")
"""Distributions whose versions are reported."""
FILES = {"onnxruntime", "openvino"}
"""Engines that run the ONNX file."""
TOLERANCE = 1e-3
"""Maximum error, relative to the largest value of a result; deep models amplify roundings."""
PROFILED = 5
"""Runs in which the operators are timed."""


class Model(NamedTuple):
    """A module in float32, its inputs, and its result in float64."""

    module: Any
    inputs: Any
    exact: list[Any]


class Engine(NamedTuple):
    """A call, how to read its results as tensors of PyTorch, and what else there is to tell."""

    run: Callable[[], Any]
    results: Callable[[], list[Any]]
    more: Callable[[], dict[str, Any]] = dict


def main() -> int:
    """Run the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--folder", type=Path, help="where the ONNX file of the model is")
    given = made.parse_args()
    steps.use_threads(given.threads)
    if given.worker in FILES:
        work_on_file(given.worker, given.folder, given.threads)
        return 0
    from support.zoo.catalog import quiet

    quiet()
    from support.zoo.published import MODELS

    if given.worker == "export":
        export(given.only[0], given.folder)
        return 0
    if given.worker:
        work_on_module(given.worker, given.only[0], given.threads)
        return 0

    def measure(name: str) -> dict[str, Row]:
        return {name: measured(name, given.threads)}

    return steps.run(given, MODELS, measure, BASELINES, "time of a run", PACKAGES)


def measured(name: str, threads: int) -> Row:
    """Return milliseconds by engine, errors, seconds of the first compile, and our profile."""
    row: Row = {"failed": {}, "error": {}, "first_s": {}}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        caches = empty_caches(folder)
        workers: dict[str, Worker] = {}
        for engine in ("export", "ours", *BASELINES):
            try:
                worker = Worker(command_of(engine, name, threads, folder), caches)
            except WorkerError as error:
                if engine == "ours":
                    raise
                row["failed"][engine] = str(error)
                continue
            stack.enter_context(worker)
            if engine != "export":
                workers[engine] = worker
                row["error"][engine] = worker.ready["error"]
                row["first_s"][engine] = worker.ready["first_s"]
        row["share_of_ours"], row["weakest"] = workers["ours"].ready["profile"]
        row["ms"] = in_turns(workers)
    return row


def command_of(engine: str, name: str, threads: int, folder: str) -> list[str]:
    """Return the command of a worker."""
    # OpenVINO has an environment of its own, since it asks for another NumPy.
    environment = ".venv-rivals" if engine == "openvino" else ".venv-models"
    python = str(ROOT / environment / "bin" / "python")
    command = [python, "-W", "ignore", __file__, "--worker", engine, "--only", name]
    return [*command, "--threads", str(threads), "--folder", folder]


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
        found = {"ours": by_tvm, "eager": by_eager, "inductor": by_inductor}[engine](model, threads)
        results = found.results()
        ready = {"first_s": round(time.perf_counter() - start, 1)}
        check(name, engine, error := stages.error_of(results, model.exact))
        serve(found.run, {**ready, "error": error, **found.more()})


def work_on_file(engine: str, folder: Path, threads: int) -> None:
    """Prepare and run the ONNX file in this process."""
    import numpy as np

    stored = np.load(folder / "inputs.npz")
    inputs, exact = [stored[name] for name in stored.files], np.load(folder / "exact.npy")
    start = time.perf_counter()
    by = {"onnxruntime": by_onnxruntime, "openvino": by_openvino}[engine]
    run = by(folder / "model.onnx", inputs, threads)
    first = np.asarray(run()[0], "float64")
    ready = {"first_s": round(time.perf_counter() - start, 1)}
    check("", engine, error := float(abs(first - exact).max() / abs(exact).max()))
    serve(run, {**ready, "error": error})


def check(name: str, engine: str, error: float) -> None:
    """End this process if a result is incorrect."""
    if not error < TOLERANCE:
        raise SystemExit(f"{name} {engine}: the result is {error:.1e} off")


def by_tvm(model: Model, threads: int) -> Engine:
    """Return a run by ``relax_ext.pipeline``."""
    import torch
    import tvm
    from tvm import relax

    import relax_ext
    from relax_ext.cli.instrument import KernelNames
    from support.zoo import stages

    target = relax_ext.host_target(num_cores=threads)
    module = stages.from_exported_program(stages.export(model.module, model.inputs))
    kernels = KernelNames(target)
    executable = tvm.compile(module, target, relax_pipeline=kernels.pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.from_dlpack(x.contiguous()) for x in model.inputs]

    def run() -> Any:
        return machine["main"](*given)

    def results() -> list[Any]:
        found = run()
        found = [found] if isinstance(found, tvm.runtime.Tensor) else found
        return [torch.from_dlpack(one).clone() for one in found]

    def more() -> dict[str, Any]:
        return {"profile": profile(machine, run, kernels)}

    return Engine(run, results, more)


def profile(machine: Any, run: Callable[[], Any], kernels: Any) -> tuple[float, Any]:
    """Return the share of time in our kernels, and the operator that takes most of the rest."""
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
    return found.ours, found.weakest


def by_eager(model: Model, _: int) -> Engine:
    """Return a run by PyTorch as it is."""
    return of_torch(model.module, model)


def by_inductor(model: Model, _: int) -> Engine:
    """Return a run by ``torch.compile`` with frozen weights."""
    import torch

    options = {"freezing": True}
    return of_torch(torch.compile(model.module, dynamic=False, options=options), model)


def of_torch(forward: Callable[..., Any], model: Model) -> Engine:
    """Return a run of a callable of PyTorch."""
    from support.zoo import stages

    def run() -> Any:
        return forward(*model.inputs)

    return Engine(run, lambda: stages.tensors_of(run()))


def by_onnxruntime(file: Path, inputs: list[Any], threads: int) -> Callable[[], Any]:
    """Return a run by ONNX Runtime."""
    session = onnx_files.session(file, threads)
    given = {one.name: x for one, x in zip(session.get_inputs(), inputs)}
    return lambda: session.run(None, given)


def by_openvino(file: Path, inputs: list[Any], threads: int) -> Callable[[], Any]:
    """Return a run by OpenVINO."""
    import openvino

    request = onnx_files.compiled(file, threads).create_infer_request()
    for number, x in enumerate(inputs):
        request.set_input_tensor(number, openvino.Tensor(x, shared_memory=True))

    def run() -> Any:
        request.infer(share_outputs=True)
        return [request.get_output_tensor(0).data]

    return run


if __name__ == "__main__":
    sys.exit(main())
