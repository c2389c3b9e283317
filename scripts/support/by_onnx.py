# SPDX-License-Identifier: Apache-2.0
"""One convolution as a model of ONNX with a constant weight: what two baselines read."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from topi_ext.spec.conv import OPERANDS, RESULT
from topi_ext.spec.geometry import Geometry

from .cases import Case
from .engines import UnavailableError

# Of 2022: what both baselines have read for years.
_OPSET, _IR_VERSION = 17, 8


def model(case: Case, kind: str, weight: Tensor) -> bytes:
    """Return a model from ``data`` to ``result``.

    Raises
    ------
    UnavailableError
        Where ONNX has no operator, or no attribute, for this.
    """
    if kind == "conv_weight_grad":
        raise UnavailableError("ONNX has no weight gradient")
    g = case.geometry_of(kind)
    if min(g.padding) < 0:
        raise UnavailableError("ONNX has no negative padding")
    operator = {"conv": "Conv", "conv_transpose": "ConvTranspose"}[kind]
    graph = helper.make_graph(
        [helper.make_node(operator, ["data", "weight"], ["result"], **attributes_of(g, kind))],
        "bench",
        [_value("data", case.shape(OPERANDS[kind][0]))],
        [_value("result", case.shape(RESULT[kind]))],
        [numpy_helper.from_array(weight.numpy(), "weight")],
    )
    opset = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
    return made.SerializeToString()


def attributes_of(g: Geometry, kind: str) -> dict[str, Any]:
    """Return the attributes of ONNX's node for a geometry."""
    attributes = {
        "kernel_shape": list(g.kernel),
        "strides": list(g.stride),
        "pads": list(g.padding),
        "dilations": list(g.dilation),
        "group": g.groups,
    }
    if kind == "conv_transpose":
        attributes["output_padding"] = list(g.output_padding)
    return attributes


def _value(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
