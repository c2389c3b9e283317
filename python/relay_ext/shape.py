# SPDX-License-Identifier: Apache-2.0
"""Shape functions: the shape of a result, computed at run time from the operands' shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from topi_ext.geometry import conv_size, conv_transpose_size
from topi_ext.layout import Layout
from topi_ext.tvm_compat import simplify, tir

from .attrs import (
    FACE,
    OPERANDS,
    RESULT,
    ints,
    layouts_of,
    output_padding_of,
    padding_of,
    short_name,
)


def shape_function(op_name: str, attrs: Any, inputs: Sequence[Any], _: Any) -> list[Any]:
    """The stored shape of the result of `op_name` as a TE tensor."""
    op, face = short_name(op_name), FACE[op_name]
    layouts = layouts_of(op, face, attrs)
    operands = {
        role: _canonical(layouts[role], shape) for role, shape in zip(OPERANDS[face], inputs)
    }
    shape = layouts[RESULT[face]].stored_shape(op, _result(face, attrs, **operands), simplify)

    def size(position: Any) -> Any:
        chosen = shape[-1]
        for axis, value in reversed(list(enumerate(shape[:-1]))):
            chosen = te.if_then_else(position == axis, value, chosen)
        return chosen

    return [te.compute((len(shape),), size, name="shape")]


def _canonical(layout: Layout, shape: Any) -> tuple[Any, ...]:
    return layout.unblocked_shape([shape[axis] for axis in range(len(layout.axes))])


def _result(face: str, attrs: Any, x: Any = None, w: Any = None, y: Any = None) -> list[Any]:
    """Canonical shape of the result."""
    groups = int(attrs.groups)
    if face == "conv_weight_grad":
        sizes = [y[1], x[1] // groups, *ints(attrs.kernel_size)]
        return [size if not isinstance(size, int) else tir.const(size, "int64") for size in sizes]
    padding, rank = padding_of(attrs), len(attrs.strides)
    window = w[2:], ints(attrs.strides), ints(attrs.dilation), padding[:rank], padding[rank:]
    if face == "conv":
        return [x[0], w[0], *map(conv_size, x[2:], *window)]
    extra = output_padding_of(attrs)
    return [y[0], w[1] * groups, *map(conv_transpose_size, y[2:], *window, extra)]
