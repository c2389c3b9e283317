# SPDX-License-Identifier: Apache-2.0
"""Models of ONNX: one convolution as a model, and calls by ONNX Runtime and OpenVINO.

A model is its bytes or the path of its file.  Packages are imported when an engine is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topi_ext.spec.conv import OPERANDS, RESULT
from topi_ext.spec.geometry import Geometry

from .cases import Case
from .engines import UnavailableError

if TYPE_CHECKING:
    from onnx import NodeProto

# Of 2022: what both engines have read for years.
_OPSET, _IR_VERSION = 17, 8
Source = bytes | Path
Run = Callable[[], Any]
Read = Callable[[], np.ndarray]


def convolution(case: Case, kind: str, weight: np.ndarray) -> bytes:
    """Return a model from ``data`` to ``result`` with a constant weight.

    Raises
    ------
    UnavailableError
        Where ONNX has no operator, or no attribute, for this.
    """
    if kind == "conv_weight_grad":
        raise UnavailableError("ONNX has no weight gradient")
    if min(case.geometry_of(kind).padding) < 0:
        raise UnavailableError("ONNX has no negative padding")
    nodes = [node_of(case, kind, ["data", "weight"], "result")]
    shapes = case.shape(OPERANDS[kind][0]), case.shape(RESULT[kind])
    return model_of(nodes, {"weight": weight}, shapes, "float32")


def node_of(case: Case, kind: str, operands: Sequence[str], result: str) -> NodeProto:
    """Return ONNX's node for a convolution."""
    from onnx import helper

    g: Geometry = case.geometry_of(kind)
    attributes: dict[str, Any] = {
        "kernel_shape": list(g.kernel),
        "strides": list(g.stride),
        "pads": list(g.padding),
        "dilations": list(g.dilation),
        "group": g.groups,
    }
    if kind == "conv_transpose":
        attributes["output_padding"] = list(g.output_padding)
    operator = {"conv": "Conv", "conv_transpose": "ConvTranspose"}[kind]
    return helper.make_node(operator, operands, [result], **attributes)


def model_of(
    nodes: Sequence[NodeProto],
    constants: dict[str, np.ndarray],
    shapes: tuple[Sequence[int], Sequence[int]],
    dtype: str,
) -> bytes:
    """Return a model from ``data`` to ``result``, which have these shapes."""
    from onnx import helper, numpy_helper

    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    first, last = (
        helper.make_tensor_value_info(name, element, list(shape))
        for name, shape in zip(("data", "result"), shapes)
    )
    values = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()]
    graph = helper.make_graph(list(nodes), "bench", [first], [last], values)
    opset = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
    return bytes(made.SerializeToString())


def session(source: Source, threads: int, *, alone: bool) -> Any:
    """Return a session of ONNX Runtime.

    Its threads spin while it works; where it is not alone in its process, no longer: others have
    their turn then.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    if not alone:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    model = str(source) if isinstance(source, Path) else source
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def of_folder(engine: str, folder: Path, threads: int) -> tuple[Run, np.ndarray, np.ndarray, float]:
    """Return a run of the model in a folder by its inputs there, its first result, the exact one
    there, and the seconds until the first.
    """
    stored = np.load(folder / "inputs.npz")
    inputs, exact = [stored[name] for name in stored.files], np.load(folder / "exact.npy")
    start = time.perf_counter()
    if engine == "openvino":
        run, read = by_openvino(folder / "model.onnx", inputs, threads)
        run()
        first = read()
    else:
        made = session(folder / "model.onnx", threads, alone=True)
        given = {one.name: x for one, x in zip(made.get_inputs(), inputs)}
        run = lambda: made.run(None, given)  # noqa: E731 (as the other)
        first = run()[0]
    return run, first, exact, round(time.perf_counter() - start, 1)


def by_onnxruntime(source: bytes, data: np.ndarray, threads: int) -> tuple[Run, Read]:
    """Return a call of a model from ``data`` to ``result``, bound once, and its result."""
    from onnxruntime import OrtValue

    made = session(source, threads, alone=False)
    (result,) = made.get_outputs()
    dtype = {"tensor(float)": "float32", "tensor(uint8)": "uint8"}[result.type]
    written = OrtValue.ortvalue_from_numpy(np.zeros(result.shape, dtype))
    binding = made.io_binding()
    binding.bind_ortvalue_input("data", OrtValue.ortvalue_from_numpy(data))
    binding.bind_ortvalue_output("result", written)
    return lambda: made.run_with_iobinding(binding), lambda: written.numpy().copy()


def compiled(source: Source, threads: int, precision: str = "f32") -> Any:
    """Return a compiled model of OpenVINO."""
    import openvino

    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # pinned workers would share their cores with others'
        "INFERENCE_NUM_THREADS": threads,
    }
    if precision:  # or a processor with AMX rounds operands to bfloat16
        settings["INFERENCE_PRECISION_HINT"] = precision
    core = openvino.Core()
    return core.compile_model(core.read_model(source), "CPU", settings)


def by_openvino(
    source: Source, inputs: Sequence[np.ndarray], threads: int, precision: str = "f32"
) -> tuple[Run, Read]:
    """Return an inference on operands that the request shares, and what reads its first result."""
    import openvino

    request = compiled(source, threads, precision).create_infer_request()
    for number, data in enumerate(inputs):
        request.set_input_tensor(number, openvino.Tensor(data, shared_memory=True))
    return (
        lambda: request.infer(share_outputs=True),
        lambda: request.get_output_tensor(0).data.copy(),
    )
