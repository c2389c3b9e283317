# SPDX-License-Identifier: Apache-2.0
"""Results that do not share memory with arguments or other results.

Clones of PyTorch are not operators of a module, and TVM makes views of reshapes and of other
operators that keep the order of all elements.  But a caller may write into a result, and expects
that neither an argument nor another result changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.compat import call_attr, dtype_name, known_shape, relax, same_size, tir, type_of

R = relax()

_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def apart(builder: Any, results: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return results, and copies of those that share memory with an input or an earlier result.

    Parameters
    ----------
    builder : relax.BlockBuilder
        The builder of the block in which `results` are bound.
    results, inputs : sequence of relax.Expr
    """
    taken, found = list(inputs), []
    for result in results:
        owner = _owner(builder, result)
        if any(owner.same_as(other) for other in taken):
            result = builder.emit_te(_copied, result, primfunc_name_hint="copy")
        taken.append(owner)
        found.append(result)
    return found


def _owner(builder: Any, value: Any) -> Any:
    """Return the variable whose memory a value may share."""
    while isinstance(value, R.Var):
        bound = builder.lookup_binding(value)
        if isinstance(bound, R.Call) and _keeps_order(bound):
            value = bound.args[0]
        elif isinstance(bound, R.Var):
            value = bound
        else:
            break
    return value


def _keeps_order(call: Any) -> bool:
    """Return whether all elements of the result are those of the operand, in the same order."""
    if getattr(call.op, "name", "") in _RESHAPES:
        return True
    if getattr(call.op, "name", "") == "relax.permute_dims":
        sizes, axes = known_shape(type_of(call.args[0]).shape), call_attr(call, "axes")
        order = range(len(sizes))[::-1] if axes is None else [int(axis) for axis in axes]
        moved = [axis for axis in order if not same_size(sizes[axis], 1)]
        return moved == sorted(moved)
    return False


def _copied(x: Any) -> Any:
    """Return the same elements, computed by a function that TVM does not recognize as a reshape."""
    from tvm import te

    dtype = dtype_name(x.dtype)
    bits = "".join(letter for letter in dtype if letter.isdigit())

    def element(*index: Any) -> Any:
        if dtype == "bool":
            return tir.Cast("int8", x(*index)) != tir.const(0, "int8")
        other = f"int{bits}" if dtype.startswith(("float", "bfloat", "uint")) else f"uint{bits}"
        return tir.reinterpret(dtype, tir.reinterpret(other, x(*index)))

    return te.compute(x.shape, element, name="copy")
