# SPDX-License-Identifier: Apache-2.0
"""Sizes that are known only at run time: shapes of results, and rules for sizes of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from topi_ext.compat import simplify, tir
from topi_ext.spec.conv import RESULT
from topi_ext.spec.geometry import conv_size, conv_transpose_size
from topi_ext.spec.layout import Layout
from topi_ext.spec.size_rules import Rule, unknown

from .attrs import (
    KIND,
    OPERANDS,
    ints,
    layouts_of,
    output_padding_of,
    padding_of,
    short_name,
)


def asserted(rules: Sequence[Rule], body: Any) -> Any:
    """Return the statement `body`, not run where a rule is broken: TVM raises its line instead.

    Checks come before `body`, not around it: what is around it, TVM takes for known inside, and
    with two sizes known to be equal its simplification may never end.
    """
    checks = [
        tir.AssertStmt(holds, tir.StringImm(text), tir.Evaluate(0))
        for holds, text in unknown(rules)
    ]
    return tir.SeqStmt([*checks, body]) if checks else body


def shape_function(op_name: str, attrs: Any, inputs: Sequence[Any], _: Any) -> list[Any]:
    """Return the stored shape of the result of `op_name` as a TE tensor.

    A result of no elements but for an empty batch is refused, as it is where types tell.
    """
    op, kind = short_name(op_name), KIND[op_name]
    layouts = layouts_of(op, kind, attrs)

    def define(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        operands = {
            role: _canonical(layouts[role], shape) for role, shape in zip(OPERANDS[kind], ins)
        }
        result = _result(op, kind, attrs, **operands)
        stored = layouts[RESULT[kind]].stored_shape(op, result, simplify)
        writes = [outs[0].vstore([axis], size) for axis, size in enumerate(stored)]
        named = (("data size", operands[OPERANDS[kind][0]]), ("output size", result))
        rules = [
            (size >= 1, f"{op}: {name} must be at least 1 on every axis")
            for name, shape in named
            for size in shape[2:]
        ]
        return asserted(rules, tir.SeqStmt(writes))

    rank = len(layouts[RESULT[kind]].axes)
    return [te.extern([(rank,)], list(inputs), define, name="shape", dtype=["int64"])]


def _canonical(layout: Layout, shape: Any) -> tuple[Any, ...]:
    return layout.unblocked_shape([shape[axis] for axis in range(len(layout.axes))])


def _result(
    op: str, kind: str, attrs: Any, x: Any = None, w: Any = None, y: Any = None
) -> list[Any]:
    """Canonical shape of the result."""
    groups = int(attrs.groups)
    if kind == "conv_weight_grad":
        sizes = [y[1], x[1] // groups, *ints(attrs.kernel_size)]
        return [size if not isinstance(size, int) else tir.const(size, "int64") for size in sizes]
    padding, rank = padding_of(attrs), len(attrs.strides)
    window = w[2:], ints(attrs.strides), ints(attrs.dilation), padding[:rank], padding[rank:]
    if kind == "conv":
        return [x[0], w[0], *map(conv_size, x[2:], *window)]
    extra = output_padding_of(op, attrs)
    return [y[0], w[1] * groups, *map(conv_transpose_size, y[2:], *window, extra)]
