# SPDX-License-Identifier: Apache-2.0
"""Times first calls: known and symbolic sizes, empty and full caches of compiled code.

::

    python scripts/bench_first_call.py --only ESPCN --json out/bench_first_call.json \\
        --plot out/bench_first_call.png

Models infer (``eval()``, no gradients) and train (forward and backward).  Their sizes are

``static``
    known;
``batch``
    known but for the batch, which is marked;
``image``
    symbolic batch, and symbolic height and width or length;
``several``
    not marked: the batch takes six values one after the other, whose calls count together.

``ms`` are milliseconds of the first call with empty caches, ``warm_ms`` those in a second process,
``later_ms`` the median of later calls, in turns.  Engines are ``torch.compile`` with our backend
and with inductor; where models infer, ONNX Runtime and OpenVINO run what torch's exporter to ONNX
writes, whose time does not count.  PyTorch eager has later calls only.  Each engine runs in a
process of its own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from support import onnx_models, steps
from support.steps import Row
from support.workers import empty_caches, in_turns, serve, started

MODES = ("inference", "training")
SIZES = ("static", "batch", "image", "several")
BASELINES = {
    "inductor": "torch.compile, inductor",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
FILES = ("onnxruntime", "openvino")
"""Engines that run an ONNX file, and only infer."""
STEPS = (0, -1, 1, 2, -2, 3)
"""Differences of the batches of ``several`` from that of the model."""


def main() -> int:
    """Run the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    made.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    made.add_argument("--static-sizes", type=int, help="the option of our backend")
    given = made.parse_args()
    steps.use_threads(given.threads)
    from support.trainable.sized import MODELS

    if given.worker:
        work(given, *MODELS[given.only[0]]())
        return 0

    def measure(name: str) -> dict[str, Row]:
        return {
            f"{name}, {mode}, {sizes}": measured(given, name, mode, sizes)
            for mode in given.modes
            for sizes in given.sizes
        }

    what, packages = "time of the first call", ("torch", "apache-tvm", "onnxruntime")
    return steps.run(given, MODELS, measure, BASELINES, what, packages, groups=MODES)


def measured(given: Any, name: str, mode: str, sizes: str) -> Row:
    """Return milliseconds of the first call, cold and warm, and of later ones, by engine."""
    more = ["--modes", mode, "--sizes", sizes]
    if given.static_sizes is not None:
        more += ["--static-sizes", str(given.static_sizes)]
    rivals = BASELINES if mode == "inference" else ("inductor",)
    commands = {
        engine: steps.command(__file__, given.threads, engine, name, *more)
        for engine in ("ours", *rivals, "eager")
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = started(stack, commands, empty_caches(folder), twice=True)
        first = {engine: worker.ready for engine, worker in found.workers.items()}
        row: Row = {"failed": found.failed}
        engines = [engine for engine in first if engine != "eager"]
        row["ms"] = {engine: found.cold[engine]["first_ms"] for engine in engines}
        row["warm_ms"] = {engine: first[engine]["first_ms"] for engine in engines}
        row["later_ms"] = in_turns(found.workers)
    return row


def work(given: Any, module: Any, batch: Sequence[Any]) -> None:
    """Make calls of an engine in this process."""
    import torch

    from support.timing import timed

    torch.set_num_threads(given.threads)
    (mode,), (sizes,) = given.modes, given.sizes
    if mode == "inference":
        module, batch = module.net.eval(), batch[:-1]
    batches = [resized(batch, step) for step in (STEPS if sizes == "several" else (0,))]
    prepare = by_file if given.worker in FILES else by_torch
    call = prepare(given, module, batches[0], mode, sizes)
    seconds = [timed(lambda: call(one))[1] for one in batches]  # noqa: B023 (called at once)
    serve(lambda: call(batches[0]), {"first_ms": round(1e3 * sum(seconds), 1)})


def resized(batch: Sequence[Any], step: int) -> list[Any]:
    """Return a batch with so many samples more, the first ones repeated."""
    return [tensor[[i % len(tensor) for i in range(len(tensor) + step)]] for tensor in batch]


def by_torch(given: Any, module: Any, batch: Any, mode: str, sizes: str) -> Callable[[Any], Any]:
    """Return a call by PyTorch, whose first one compiles."""
    import torch

    forward = module
    if given.worker != "eager":
        how: dict[str, Any] = {"dynamic": False if sizes == "static" else None}
        if given.worker == "ours":
            import relax_ext.torch  # noqa: F401 (registers the backend)

            how["options"] = {"static_sizes": given.static_sizes}
            how["backend"] = "tvm_conv"
        forward = torch.compile(module, **how)
    for tensor in batch:
        for axis in symbolic(tensor, sizes):
            torch._dynamo.maybe_mark_dynamic(tensor, axis)

    def infer(given: Any) -> Any:
        with torch.no_grad():
            return forward(*given)

    def train(given: Any) -> Any:
        module.zero_grad()
        forward(*given).backward()

    return infer if mode == "inference" else train


def symbolic(tensor: Any, sizes: str) -> list[int]:
    """Return the axes of a tensor whose sizes are marked as symbolic."""
    axes = {"batch": [0], "image": [0, *range(2, tensor.ndim)]}.get(sizes, [])
    return [axis for axis in axes if tensor.shape[axis] > 1]


def by_file(given: Any, module: Any, batch: Any, mode: str, sizes: str) -> Callable[[Any], Any]:
    """Return a call of an ONNX file, whose first one loads it."""
    import torch

    axes = {
        f"x{number}": {axis: f"n{axis}" for axis in symbolic(tensor, sizes)}
        for number, tensor in enumerate(batch)
    }
    if sizes == "several":
        axes = {name: {0: "n0"} for name in axes}
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name, "model.onnx")
    names: dict[str, Any] = {"input_names": list(axes), "dynamic_axes": axes}
    torch.onnx.export(module, tuple(batch), str(file), dynamo=False, opset_version=17, **names)

    @cache
    def loaded() -> Callable[[list[Any]], Any]:
        if given.worker == "openvino":
            compiled = onnx_models.compiled(file, given.threads)
            return lambda batch: compiled(batch)
        session = onnx_models.session(file, given.threads, alone=True)
        names = [one.name for one in session.get_inputs()]
        return lambda batch: session.run(None, dict(zip(names, batch)))

    def call(given_batch: Sequence[Any]) -> Any:
        result = loaded()([tensor.numpy() for tensor in given_batch])
        folder.cleanup()
        return result

    return call


if __name__ == "__main__":
    sys.exit(main())
