# SPDX-License-Identifier: Apache-2.0
"""Loop partition: guards of the elements that a reduction combines become bounds of its loops.

A reduction whose loops may pass the end of an axis combines its identity there::

    for step, lane: part[lane] = combine(part[lane], row[...] if step < whole else ...)

Its whole steps become a loop without a condition, of which LLVM keeps the parts in registers::

    for step < whole, lane: part[lane] = combine(part[lane], row[...])
    for step >= whole, lane < rest: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from ..compat import (
    buffer_of_region,
    conditional_parts,
    same_expression,
    scalar_dtype,
    simplify,
    tir,
    uses_var,
    with_replaced,
    with_values,
)

_IDENTITIES = {"Add": 0, "Mul": 1, "Max": -inf, "Min": inf}
"""Elements that leave a result as it is, by operation."""

_SERIAL = 0
"""Kind of a loop that one thread runs in order."""


def partitioned(func: Any) -> Any:
    """Return a scheduled function whose reductions combine only elements, in loops that end there.

    Parameters
    ----------
    func : PrimFunc
        Its reductions combine ``if_then_else(index < size, element, identity)``, which may be
        nested.
    """
    inner: list[Any] = []

    def note(loop: Any) -> None:
        inner.extend(one.variable for one in _nest(loop)[0][1:])

    def replaced(loop: Any) -> Any:
        is_inner = any(loop.loop_var.same_as(variable) for variable in inner)
        return None if is_inner else _partitioned(loop)

    with_replaced(func.body, {"For": note})
    return func.with_body(with_replaced(func.body, {"For": replaced}))


@dataclass(frozen=True)
class _Loop:
    """A loop that counts from zero."""

    variable: Any
    extent: Any


def _partitioned(loop: Any) -> Any:
    """Return the loops in place of `loop`; None where no guarded update is all that it holds."""
    loops, realize = _nest(loop)
    block = getattr(realize, "block", None)
    if not loops or block is None or block.init is not None or not _is_guarded(block.body):
        return None
    bound = [uses_var(realize.predicate, one.variable) for one in loops]
    depth = len(loops) - [*reversed(bound), True].index(True)
    values = [(axis.var, value) for axis, value in zip(block.iter_vars, realize.iter_values)]
    body = _sequence(_statements(loops[depth:], with_values(block.body, values)))
    if not isinstance(simplify(realize.predicate), int):  # not true everywhere
        body = tir.IfThenElse(realize.predicate, body, None)
    return _nested(loops[:depth], body)


def _nest(loop: Any) -> tuple[list[_Loop], Any]:
    """Return serial loops, each around the next one alone, and what they hold."""
    loops = []
    while isinstance(loop, tir.For) and int(loop.kind) == _SERIAL and not loop.annotations:
        loops.append(_Loop(loop.loop_var, loop.extent))
        loop = loop.body
    return loops, loop


def _is_guarded(store: Any) -> bool:
    """Return whether a statement combines a result with a conditional element."""
    if not isinstance(store, tir.BufferStore) or type(store.value).__name__ not in _IDENTITIES:
        return False
    result, element = store.value.a, store.value.b
    if conditional_parts(element) is None or not hasattr(result, "indices"):
        return False
    is_same = buffer_of_region(result).same_as(store.buffer)
    return is_same and all(map(same_expression, result.indices, store.indices))


def _statements(loops: list[_Loop], store: Any) -> Iterator[Any]:
    """Yield the statements that do what `store` does in `loops`."""
    parts = conditional_parts(store.value.b)
    if parts is None:
        if not _is_identity(store):
            yield _nested(loops, store)
        return
    condition, *values = parts
    stores = [_combining(store, value) for value in values]
    used = [number for number, loop in enumerate(loops) if uses_var(condition, loop.variable)]
    if not used:
        bodies = (_sequence(_statements(*_renewed(loops, one))) for one in stores)
        yield tir.IfThenElse(condition, *bodies)
        return
    number = used[-1]
    count = _count(condition, loops[number].variable)
    if count is None:
        yield _nested(loops, tir.IfThenElse(condition, *stores))
        return
    extent = loops[number].extent
    within = simplify(tir.max(tir.min(count, extent), 0))
    ranges = (0, within), (within, simplify(extent - within))
    for one, (begin, size) in zip(stores, ranges):
        yield from _statements(*_renewed(loops, one, number, begin, size))


def _count(condition: Any, variable: Any) -> Any:
    """Return how many values of a variable, from zero, fulfil a condition; None if not known."""
    if not isinstance(condition, tir.LT):
        return None
    count = simplify(condition.b - simplify(condition.a - variable))
    return None if not isinstance(count, int) and uses_var(count, variable) else count


def _renewed(
    loops: list[_Loop], store: Any, cut: int = -1, begin: Any = 0, extent: Any = 0
) -> tuple[list[_Loop], Any]:
    """Return loops with variables of their own, and a statement in them.

    Loop number `cut` covers `extent` values from `begin` on.
    """
    made: list[_Loop] = []
    values: list[tuple[Any, Any]] = []
    for number, loop in enumerate(loops):
        variable = tir.Var(loop.variable.name, scalar_dtype(loop.variable))
        is_cut = number == cut
        made.append(_Loop(variable, with_values(extent if is_cut else loop.extent, values)))
        value = with_values(begin, values) + variable if is_cut else variable
        values.append((loop.variable, value))
    return made, with_values(store, values)


def _nested(loops: list[_Loop], statement: Any) -> Any:
    for loop in reversed(loops):
        statement = tir.For(loop.variable, 0, loop.extent, _SERIAL, statement)
    return statement


def _sequence(statements: Iterator[Any]) -> Any:
    """Return statements as one, which has no effect if there is none."""
    every = list(statements) or [tir.Evaluate(0)]
    return tir.SeqStmt(every) if len(every) > 1 else every[0]


def _combining(store: Any, element: Any) -> Any:
    combined = type(store.value)(store.value.a, element)
    return tir.BufferStore(store.buffer, combined, store.indices)


def _is_identity(store: Any) -> bool:
    identity = _IDENTITIES[type(store.value).__name__]
    return bool(getattr(store.value.b, "value", None) == identity)
