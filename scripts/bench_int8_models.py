# SPDX-License-Identifier: Apache-2.0
"""Times whole models that are quantized to int8 against other tools and our own float32.

::

    python scripts/bench_int8_models.py --only resnet18 --json out/bench_int8_models.json

PyTorch's models are quantized by torchao's PT2E flow with ``X86InductorQuantizer`` and one for
transposed convolutions, and run by ``torch.compile``: ours, and inductor's with frozen weights.
ONNX Runtime runs what its own ``quantize_static`` makes of the exported model, OpenVINO the same
file.  Weights and inputs are random, and ranges are those of the inputs that are timed.  Each
engine runs in a process of its own, in turns with the others, a block of runs each.  Medians are
compared.

``snr_db`` is the ratio of the result in float32 to what quantization changes, in decibels.  ``make
env-models env-rivals`` installs the packages.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support import onnx_models, steps
from support.steps import Row
from support.workers import empty_caches, in_turns, serve, started

BASELINES = {
    "inductor": "inductor, int8",
    "onnxruntime": "ONNX Runtime, int8",
    "openvino": "OpenVINO, int8",
}
OTHERS = {"float32": "ours, float32"}
PACKAGES = ("torch", "torchao", "apache-tvm", "onnxruntime")


def main() -> int:
    """Run the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--folder", type=Path, help="where the ONNX file of the model is")
    given = made.parse_args()
    steps.use_threads(given.threads)
    if steps.work(given, work_on_file, export, work_on_module):
        return 0
    from support.zoo.catalog import quiet

    quiet()
    from support.zoo.quantizable import MODELS

    def measure(name: str) -> dict[str, Row]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            commands = {
                engine: steps.command_in(folder, __file__, given.threads, engine, name)
                for engine in ("export", "ours", *OTHERS, *BASELINES)
            }
            return {name: measured(stack, commands, empty_caches(folder))}

    what = "time of a run"
    return steps.run(given, MODELS, measure, BASELINES, what, PACKAGES, others=OTHERS)


def measured(stack: ExitStack, commands: dict[str, list[str]], caches: dict[str, str]) -> Row:
    """Return milliseconds and accuracy by engine, and seconds of the first compile."""
    workers, failed, _ = started(stack, commands, caches)
    workers.pop("export", None)
    row: Row = {"failed": failed}
    for key in ("snr_db", "first_s"):
        row[key] = {engine: worker.ready[key] for engine, worker in workers.items()}
    row["in_pytorch"] = workers["ours"].ready["in_pytorch"]
    row["ms"] = in_turns(workers)
    row["over_float32"] = row["ms"]["float32"] / row["ms"]["ours"]
    return row


def made(name: str) -> tuple[Any, Any, Any]:
    """Return a model of the catalog in float32, its inputs and its first result."""
    import torch

    from support.zoo import catalog, stages
    from support.zoo.quantizable import MODELS

    module, inputs = stages.prepare(catalog.Entry(name, "", MODELS[name], "float32"))
    with torch.no_grad():
        return module, inputs, stages.tensors_of(module(*inputs))[0]


def export(name: str, folder: Path) -> None:
    """Write the model as ONNX, quantized, its inputs and its first result in float32."""
    import numpy as np
    import torch
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader
    from onnxruntime.quantization.shape_inference import quant_pre_process

    module, inputs, exact = made(name)
    arrays = [x.contiguous().numpy() for x in inputs]
    np.savez(folder / "inputs.npz", *arrays)
    np.save(folder / "exact.npy", exact.numpy())
    names = [f"input{number}" for number in range(len(arrays))]
    file = str(folder / "float.onnx")
    torch.onnx.export(
        module, tuple(inputs), file, dynamo=False, opset_version=17, input_names=names
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The inputs, once."""

        def __init__(self) -> None:
            self.rows = iter([dict(zip(names, arrays))])

        def get_next(self) -> Any:
            return next(self.rows, None)

    quant_pre_process(file, str(folder / "inferred.onnx"))
    quantize_static(
        str(folder / "inferred.onnx"), str(folder / "model.onnx"), Reader(),
        quant_format=QuantFormat.QDQ, per_channel=True,
    )  # fmt: skip
    serve(lambda: None, {})


def work_on_module(engine: str, name: str, threads: int) -> None:
    """Prepare and run a module of PyTorch in this process."""
    import torch

    torch.set_num_threads(threads)
    module, inputs, exact = made(name)
    by: dict[str, Any] = {"backend": "tvm_conv", "options": {"freeze": True}}
    if engine == "inductor":
        import torch._inductor.config as inductor

        by, inductor.freezing = {}, True
    if engine != "float32":
        from support.pt2e import quantized

        module = quantized(module, inputs)
    with torch.no_grad():
        start = time.perf_counter()
        run: Any = torch.compile(module, dynamic=False, **by)
        from support.zoo import stages

        found = stages.tensors_of(run(*inputs))[0]
        more: dict[str, Any] = {"first_s": round(time.perf_counter() - start, 1)}
        if engine != "inductor":
            from relax_ext.torch import report

            more["in_pytorch"] = sorted({n for g in report().graphs for n in g.in_pytorch})
        serve(lambda: run(*inputs), {"snr_db": decibels(found.numpy(), exact.numpy()), **more})


def work_on_file(engine: str, folder: Path, threads: int) -> None:
    """Prepare and run the ONNX file in this process."""
    run, first, exact, seconds = onnx_models.of_folder(engine, folder, threads)
    serve(run, {"first_s": seconds, "snr_db": decibels(first, exact)})


def decibels(found: Any, exact: Any) -> float:
    """Return the ratio of the squares of a result to those of its error, in decibels."""
    import numpy as np

    exact = exact.astype("float64")
    error = float(np.square(found - exact).sum())
    return round(10 * float(np.log10(np.square(exact).sum() / error)), 1) if error else 999.0


if __name__ == "__main__":
    sys.exit(main())
