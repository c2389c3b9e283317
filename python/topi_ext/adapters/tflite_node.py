# SPDX-License-Identifier: Apache-2.0
"""Read nodes of TFLite through the ``OperatorConverter`` of TVM's importers.

Relax's and Relay's have the same functions.  `converter` and `op` are what they pass to a function
that converts one node; the package ``tflite`` is imported when a node is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..padding import read
from ..spec.geometry import fail

_OPERATOR = ("self", "op")
NEEDS = {
    "OperatorConverter.get_input_tensors": _OPERATOR,
    "OperatorConverter.get_output_tensors": _OPERATOR,
    "OperatorConverter.get_tensor_shape": ("self", "tensor_wrapper"),
    "OperatorConverter.get_tensor_value": ("self", "tensor_wrapper", "is_sparse"),
    "OperatorConverter.get_expr": ("self", "input_tensor_idx"),
    "OperatorConverter.has_expr": ("self", "input_tensor_idx"),
    "OperatorConverter.convert_fused_activation_function": (
        *("self", "in_expr", "fused_activation_fn"),
    ),
    "OperatorConverter.convert_qnn_fused_activation_function": (
        *("self", "expr", "fused_activation_fn", "scale", "zero_point", "dtype"),
    ),
    "OperatorConverter.get_tensor_type_str": ("self", "tensor_type"),
}
"""Parameters of the functions that this module calls, as :class:`.import_hooks.Importer` has it."""


def filled(op: Any, options: Any) -> Any:
    """`options`, of the kind that the node has, with what it states."""
    table = op.BuiltinOptions()
    options.Init(table.Bytes, table.Pos)
    return options


def with_stated_sizes(
    stock: Callable[[Any, Any], Any], sizes_of: Callable[[Any, Any], Sequence[Any]]
) -> Callable[[Any, Any], Any]:
    """``get_tensor_shape`` that knows the sizes which the file leaves free and the importer's
    caller states.  TVM takes 1 for them, and pads SAME for that.

    Parameters
    ----------
    stock : callable
        TVM's own.
    sizes_of : callable
        ``sizes_of(converter, expression)``: the sizes of an operand that is made already.
    """

    def get_tensor_shape(self: Any, tensor_wrapper: Any) -> Any:
        shape = stock(self, tensor_wrapper)
        signature = tensor_wrapper.tensor.ShapeSignatureAsNumpy()
        is_free = not isinstance(signature, int) and any(size < 0 for size in signature)
        if not is_free or not self.has_expr(tensor_wrapper.tensor_idx):
            return shape
        sizes = sizes_of(self, self.get_expr(tensor_wrapper.tensor_idx))
        is_known = len(sizes) == len(shape) and all(isinstance(size, int) for size in sizes)
        return np.array(sizes, "int32") if is_known else shape

    return get_tensor_shape


def shape_of(converter: Any, tensor: Any) -> list[int]:
    """Return the shape of a tensor, with 1 for a size that is not stated."""
    return [int(size) for size in converter.get_tensor_shape(tensor)]


def output_shape(converter: Any, op: Any, stated: Any, name: str) -> list[int]:
    """Return the whole shape that a transposed convolution gives, `stated` by its first operand;
    what the file says of the result, where the graph computes that.

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
    """Return the strides, padding, dilation and output_padding as TVM's operators take them.

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


def activated(
    converter: Any, op: Any, result: Any, options: Any, number: Callable[[Any], float]
) -> Any:
    """`result` of TRANSPOSE_CONV behind the activation that is fused into it; ``number(constant)``
    is the value of a scalar of the IR."""
    if not hasattr(options, "FusedActivationFunction"):
        raise fail("TRANSPOSE_CONV", "needs the package tflite 2.18, which reads activations")
    function = options.FusedActivationFunction()
    output = converter.get_output_tensors(op)[0]
    if not output.qnn_params:
        return converter.convert_fused_activation_function(result, function)
    return converter.convert_qnn_fused_activation_function(
        expr=result,
        fused_activation_fn=function,
        scale=number(output.qnn_params["scale"]),
        zero_point=int(number(output.qnn_params["zero_point"])),
        dtype=converter.get_tensor_type_str(output.tensor.Type()),
    )
