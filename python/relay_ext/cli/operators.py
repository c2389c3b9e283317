# SPDX-License-Identifier: Apache-2.0
"""The convolutions of a Relay module: finding, counting, building and differentiating them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm

from conv_cli.operators import Operator
from topi_ext.compat import relay

NAMES = frozenset(f"nn.conv{r}d{t}" for r in (1, 2, 3) for t in ("", "_transpose"))


def find(mod: Any) -> Counter[Operator]:
    """Return every different convolution of a module with static shapes, and how often it occurs.

    Quantized ones are those of whole numbers that TVM makes of them.
    """
    found: Counter[Operator] = Counter()

    def visit(expr: Any) -> None:
        called = isinstance(expr, relay().Call) and isinstance(expr.op, tvm.ir.Op)
        if called and expr.op.name in NAMES:
            found[_operator(expr)] += 1

    qnn, infer = relay().qnn.transform, relay().transform.InferType()
    for step in (infer, qnn.Legalize(), infer, qnn.CanonicalizeOps(), infer):
        mod = step(mod)
    for function in mod.functions.values():
        relay().analysis.post_order_visit(function, visit)
    return found


def _operator(call: Any) -> Operator:
    a, types = call.attrs, [e.checked_type for e in (*call.args[:2], call)]
    first, second, result = (str(t.dtype) for t in types)
    return Operator.of(
        call.op.name.removeprefix("nn."),
        a,
        [tuple(int(size) for size in t.shape) for t in types[:2]],
        (first, second, result),
        (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout)),
    )


def build(op: Operator) -> Any:
    """Return a module whose ``main(x, w)`` is this operator alone."""
    params, call = _call(op)
    return tvm.IRModule.from_expr(relay().Function(params, call))


def differentiated(op: Operator) -> Any:
    """Return a module whose ``main(x, w, dy)`` gives ``(loss, (dx, dw, ddy))``, loss = sum(op *
    dy).
    """
    r = relay()
    params, call = _call(op)
    shape = r.transform.InferTypeLocal(call).shape
    dy = r.var("dy", shape=shape, dtype=op.dtypes[2])
    loss = r.Function([*params, dy], r.sum(r.multiply(call, dy)))
    forward = r.transform.InferType()(tvm.IRModule.from_expr(loss))
    return tvm.IRModule.from_expr(r.transform.gradient(forward["main"], mode="first_order"))


def _call(op: Operator) -> tuple[list[Any], Any]:
    r = relay()
    x = r.var("x", shape=op.data, dtype=op.dtypes[0])
    w = r.var("w", shape=op.weight, dtype=op.dtypes[1])
    sizes = dict(zip(op.layouts[1], op.weight))
    attrs = op.attributes()
    out = sizes["O"] * op.groups if op.transposed else sizes["O"]
    attrs["kernel_size"] = [sizes[axis] for axis in "DHW" if axis in sizes]
    return [x, w], getattr(r.nn, op.name)(x, w, channels=out, **attrs)
