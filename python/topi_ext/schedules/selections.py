# SPDX-License-Identifier: Apache-2.0
"""Selections by values of tensors, without branches.

TVM turns ``select(condition, x[i], y[i])`` into a branch, since an author may have guarded reads
outside a tensor by it.  LLVM then makes no vectors of the loop, and the processor mispredicts: the
gradient of relu took 25 times as long as the product of as many numbers.  A condition that depends
on the place by what tensors hold there alone guards no place, so both operands are evaluated, by a
function in LLVM's language, which LLVM inlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from .. import compat
from .blocks import FUNCTIONS
from .llvm_calls import with_calls

_LLVM_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "i1",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_NARROW = ("float16", "bfloat16")
"""Selected as float32, which is exact."""

_PREFIX = "topi_ext_select_"
_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value")
_ARITHMETIC = ("Add", "Sub", "Mul", "Max", "Min", "Cast", "Select")
_LOGIC = ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not")
_LEAVES = ("Var", "SizeVar", "IntImm", "FloatImm")
_HARMLESS = frozenset((*_ARITHMETIC, *_LOGIC, *_LEAVES))
"""Expressions that may be evaluated in vain: no division of integers, which may trap."""

_FUNCTIONS = FUNCTIONS | {"fabs", "call_pure_extern", "if_then_else"}
"""Functions that may be evaluated in vain; the last one guards its own reads."""


def without_branches(func: Any) -> Any:
    """Make the selections of `func` that depend on values of tensors evaluate both operands.

    Parameters
    ----------
    func : PrimFunc
        With a root block, for LLVM.

    Returns
    -------
    PrimFunc
        `func` itself where it has no such selection, or where TVM reads no LLVM text.
    """
    return with_calls(func, lambda used: {"Select": partial(_called, used)}, _text)


def _called(used: set[str], node: Any) -> Any:
    """Return the call that selects; None of a selection that is left alone."""
    dtype = compat.scalar_dtype(node)
    if dtype not in (*_LLVM_TYPES, *_NARROW) or not _may_evaluate_both(node):
        return None
    wide = "float32" if dtype in _NARROW else dtype
    used.add(wide)
    operands = (each.astype(wide) for each in (node.true_value, node.false_value))
    condition = node.condition.astype("int32")
    return compat.extern_value(wide, _PREFIX + wide, condition, *operands).astype(dtype)


def _may_evaluate_both(node: Any) -> bool:
    operands = [*_parts(node.true_value), *_parts(node.false_value)]
    loads = [part for part in operands if _is_load(part)]
    # Without a load TVM leaves the selection as it is.
    return (
        bool(loads)
        and all(_is_harmless(part) for part in operands)
        and not any(_kind(part) in ("Var", "SizeVar") for part in _parts(node.condition))
        and not any(_reads(index) for load in loads for index in load.indices)
    )


def _is_harmless(part: Any) -> bool:
    if _is_load(part):
        return True
    if _kind(part) == "Call":
        return compat.intrinsic_name(part) in _FUNCTIONS
    if _kind(part) == "Div":
        return compat.scalar_dtype(part).startswith(("float", "bfloat"))
    return _kind(part) in _HARMLESS


def _reads(index: Any) -> bool:
    return any(map(_is_load, _parts(index)))


def _is_load(expr: Any) -> bool:
    """Return whether an expression reads a tensor; releases of TVM name its class in two ways."""
    return hasattr(expr, "indices")


def _kind(expr: Any) -> str:
    return type(expr).__name__


def _parts(expr: Any) -> Iterator[Any]:
    """Yield an expression and what it is made of; indices of loads are no parts."""
    yield expr
    if _is_load(expr):
        return
    operands = [getattr(expr, name) for name in _OPERANDS if hasattr(expr, name)]
    for operand in (*operands, *getattr(expr, "args", ())):
        if hasattr(operand, "dtype") or hasattr(operand, "ty"):
            yield from _parts(operand)


@cache
def _text(dtypes: tuple[str, ...]) -> str:
    """Return the definitions of these selections in LLVM's language."""
    return "\n".join(map(_definition, dtypes))


def _definition(dtype: str) -> str:
    llvm = _LLVM_TYPES[dtype]
    lines = [
        f"define {llvm} @{_PREFIX}{dtype}(i32 %condition, {llvm} %a, {llvm} %b) {{",
        "  %holds = icmp ne i32 %condition, 0",
        f"  %result = select i1 %holds, {llvm} %a, {llvm} %b",
        f"  ret {llvm} %result",
        "}",
    ]
    return "\n".join([*lines, ""])
