# SPDX-License-Identifier: Apache-2.0
"""The convolutions of a Relax module: found, counted, and built alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from conv_cli.operators import Operator
from topi_ext import compat

NAMES = frozenset(f"relax.nn.conv{r}d{t}" for r in (1, 2, 3) for t in ("", "_transpose"))


def bind_sizes(mod: Any, inputs: Mapping[str, Any]) -> Any:
    """Replace every symbolic size of ``main`` by its value for these inputs, main's first ones."""
    sizes: dict[str, int] = {}
    for param, value in zip(mod["main"].params, inputs.values()):
        for dim, size in zip(compat.type_of(param).shape, value.shape):
            if hasattr(dim, "name"):
                sizes[str(dim.name)] = int(size)
    return relax.transform.BindSymbolicVars(sizes)(mod) if sizes else mod


def find(mod: Any) -> Counter[Operator]:
    """Return every different convolution of a module with static shapes, and how often it
    occurs.
    """
    found: Counter[Operator] = Counter()

    def visit(expr: Any) -> None:
        if (
            isinstance(expr, relax.Call)
            and isinstance(expr.op, tvm.ir.Op)
            and expr.op.name in NAMES
        ):
            found[_operator(expr)] += 1

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return found


def build(op: Operator) -> Any:
    """Return a module whose ``main(x, w)`` is this operator alone."""
    ndim = op.rank + 2
    x = relax.Var("x", compat.tensor_type(op.data, op.dtypes[0], ndim))
    w = relax.Var("w", compat.tensor_type(op.weight, op.dtypes[1], ndim))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit_output(bb.emit(getattr(relax.op.nn, op.name)(x, w, **op.attributes())))
        bb.emit_func_output(y)
    return bb.get()


def _operator(call: Any) -> Operator:
    a, operands = call.attrs, call.args[:2]
    first, second, result = (compat.dtype_name(compat.type_of(e).dtype) for e in (*operands, call))
    return Operator.of(
        call.op.name.removeprefix("relax.nn."),
        a,
        [compat.known_shape(compat.type_of(e).shape) for e in operands],
        (first, second, result),
        (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout)),
    )
