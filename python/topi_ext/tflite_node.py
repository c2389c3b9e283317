# SPDX-License-Identifier: Apache-2.0
"""What a node of TFLite states, asked of the ``OperatorConverter`` of TVM's importers of it.

Relax's and Relay's have the same functions.  `converter` and `op` are what they pass to a function
that converts one node; the package ``tflite`` is imported when a node is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .geometry import fail
from .padding import read

_OPERATOR = ("self", "op")
NEEDS = {
    "OperatorConverter.get_input_tensors": _OPERATOR,
    "OperatorConverter.get_output_tensors": _OPERATOR,
    "OperatorConverter.get_tensor_shape": ("self", "tensor_wrapper"),
    "OperatorConverter.get_tensor_value": ("self", "tensor_wrapper", "is_sparse"),
    "OperatorConverter.has_expr": ("self", "input_tensor_idx"),
    "OperatorConverter.convert_fused_activation_function": (
        *("self", "in_expr", "fused_activation_fn"),
    ),
}
"""Parameters of the functions that this module calls, as :class:`.import_hooks.Importer` has it."""


def filled(op: Any, options: Any) -> Any:
    """`options`, of the kind that the node has, with what it states."""
    table = op.BuiltinOptions()
    options.Init(table.Bytes, table.Pos)
    return options


def shape_of(converter: Any, tensor: Any) -> list[int]:
    """The shape of a tensor; a free size is 1 in it."""
    return [int(size) for size in converter.get_tensor_shape(tensor)]


def output_shape(converter: Any, op: Any, stated: Any, name: str) -> list[int]:
    """The whole shape that a transposed convolution gives, `stated` by its first operand; what the
    file says of the result, where the graph computes that.

    Raises
    ------
    ValueError
        Another size than the batch is free.
    """
    if not converter.has_expr(stated.tensor_idx) and stated.buffer.DataLength():
        return [int(size) for size in converter.get_tensor_value(stated)]
    result = converter.get_output_tensors(op)[0]
    signature = result.tensor.ShapeSignatureAsNumpy()
    free = [] if isinstance(signature, int) else [int(size) for size in signature[1:]]
    if any(size < 0 for size in free):
        raise fail(name, f"output shape {tuple(free)} must be known at import, but for the batch")
    return shape_of(converter, result)


@contextmanager
def shape_known(converter: Any, stated: Any, shape: Sequence[int]) -> Iterator[None]:
    """Inside, the value of `stated` is `shape`: the graph may compute it, as Keras does for a free
    batch, and TVM's converters ask for its value."""
    values = converter.get_tensor_value

    def get_tensor_value(tensor: Any, is_sparse: bool = False) -> Any:
        is_shape = tensor.tensor_idx == stated.tensor_idx
        return np.array(shape, "int32") if is_shape else values(tensor, is_sparse)

    converter.get_tensor_value = get_tensor_value
    try:
        yield
    finally:
        del converter.get_tensor_value


def border(padding: int, **stated: Any) -> dict[str, tuple[int, ...]]:
    """Strides, padding, dilation and output_padding as TVM's operators take them.

    Parameters
    ----------
    padding : int
        TFLite's number for TensorFlow's word.
    **stated
        As :func:`topi_ext.padding.read` has it for TensorFlow.
    """
    from tflite.Padding import Padding

    op = "conv_transpose" if "output_shape" in stated else "conv"
    word = "SAME" if padding == Padding.SAME else "VALID"
    return read("tensorflow", op, padding=word, **stated).attributes


def activated(converter: Any, op: Any, result: Any, options: Any) -> Any:
    """`result` of TRANSPOSE_CONV behind the activation that is fused into it."""
    if converter.get_output_tensors(op)[0].qnn_params:
        return result  # the range of its numbers is that of the activation
    if not hasattr(options, "FusedActivationFunction"):
        raise fail("TRANSPOSE_CONV", "needs the package tflite 2.18, which reads activations")
    return converter.convert_fused_activation_function(result, options.FusedActivationFunction())
