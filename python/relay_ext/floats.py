# SPDX-License-Identifier: Apache-2.0
"""Operators of floats that TVM computes incorrectly of NaN, or in half precision.

TVM 0.17 lets LLVM assume that there is no NaN, and its simplifier replaces ``x == x`` by true and
``not a < b`` by ``b <= a``.  So comparisons test the bits of their operands.  A softmax of float16
is added up in float16, and inverse functions of float16 do not compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from topi_ext.compat import is_cpu, relay

R = relay()

_INFINITY = {
    "float16": ("int16", 0x7C00),
    "float32": ("int32", 0x7F800000),
    "float64": ("int64", 0x7FF0000000000000),
}
"""An integer of the same width for each dtype, and the bits of infinity."""


def _is_nan(x: Any) -> Any:
    """Return which elements have more bits than infinity, without their sign."""
    from tvm import te, tir, topi

    integer, infinity = _INFINITY[x.dtype]
    limit, mask = (tir.const(value, integer) for value in (infinity, tir.max_value(integer).value))

    def element(*index: Any) -> Any:
        return (tir.reinterpret(integer, x(*index)) & mask) > limit

    return te.compute(x.shape, element, name="is_nan", tag=topi.tag.ELEMWISE)


def _compared(name: str, operands: Any) -> Any:
    """Return a comparison that is false of NaN; ``not_equal`` is true."""
    from tvm import topi

    result = getattr(topi, name)(*operands)
    for x in operands:
        if x.dtype in _INFINITY:
            is_nan = _is_nan(x)
            if name == "not_equal":
                result = topi.logical_or(result, is_nan)
            else:
                result = topi.logical_and(result, topi.logical_not(is_nan))
    return result


def _tested(operands: Any) -> Any:
    """Return the operator ``isnan``."""
    from tvm import topi

    (x,) = operands
    return _is_nan(x) if x.dtype in _INFINITY else topi.isnan(x)


def _strategy(
    name: str, define: Callable[[Any], Any], attrs: Any, inputs: Any, result: Any, target: Any
) -> Any:
    """Return the strategy of an element-wise operator, which is TVM's definition off CPUs."""
    del attrs, inputs, result
    from tvm import topi

    def computed(_: Any, operands: Any, __: Any) -> list[Any]:
        return [define(operands) if is_cpu(target) else getattr(topi, name)(*operands)]

    strategy = R.op.op.OpStrategy()
    schedule = R.op.strategy.schedule_injective
    strategy.add_implementation(computed, schedule, name=f"{name}.relay_ext", plevel=20)
    return strategy


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

STRATEGIES = {
    **{name: partial(_strategy, name, partial(_compared, name)) for name in _COMPARISONS},
    "isnan": partial(_strategy, "isnan", _tested),
}
"""Strategies ``strategy(attrs, inputs, type, target)`` by operator."""


def _truth(attrs: Any, inputs: Any, types: Any) -> Any:
    """Convert floats to truth values: NaN is true."""
    dtype = types[0].dtype
    if attrs.dtype != "bool" or dtype not in _INFINITY:
        return None
    return R.not_equal(inputs[0], R.const(0, dtype))


def _widened(name: str, attrs: Any, inputs: Any, types: Any) -> Any:
    """Compute an operator of float16 in float32, and round its result once."""
    if types[0].dtype != "float16":
        return None
    wide = R.Call(R.op.get(name), [R.cast(inputs[0], "float32")], attrs)
    return R.cast(wide, "float16")


_FUNCTIONS = (
    *("nn.softmax", "nn.log_softmax"),
    *("asin", "acos", "atan", "asinh", "acosh", "atanh"),
)

LEGALIZATIONS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(name, "FTVMLegalize"): partial(_widened, name) for name in _FUNCTIONS},
    ("cast", "FTVMLegalize"): _truth,
}
"""Legalizations ``rule(attrs, inputs, types)`` by operator; None keeps the call."""
