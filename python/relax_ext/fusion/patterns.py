# SPDX-License-Identifier: Apache-2.0
"""Patterns of several Relax operators that compute one function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import tvm

from topi_ext.compat import call_attr, constant_value, known_shape, relax, tensor_type_of

R = relax()

Lookup = Callable[[Any], Any]
"""The value that a variable is bound to in its function, or None."""

Readers = dict[Any, list[tuple[Any, Any]]]
"""By value, the values that are computed from it, each with its call."""


class Function(NamedTuple):
    """Values of the dataflow blocks of a function.

    Attributes
    ----------
    values : dict
        The value of each variable, in order.
    readers : Readers
        By variable, the variables whose values read it, each with its value.
    """

    values: dict[Any, Any]
    readers: Readers

    @classmethod
    def of(cls, func: Any) -> Function:
        """Return the values of a function."""
        blocks = [block for block in func.body.blocks if isinstance(block, R.DataflowBlock)]
        values = {one.var: one.value for block in blocks for one in block.bindings}
        readers: Readers = defaultdict(list)
        for var, value in values.items():
            for used in R.analysis.free_vars(value):
                readers[used].append((var, value))
        return cls(values, readers)

    def value(self, expr: Any) -> Any:
        """Return the value of a variable, or None."""
        return self.values.get(expr)

    def only_read_by(self, expr: Any, reader: Any) -> Any:
        """Return the value of a variable that nothing but a call reads, else None."""
        reads = [value for _, value in self.readers.get(expr, ())]
        is_inside = isinstance(expr, R.DataflowVar) and len(reads) == 1
        return self.value(expr) if is_inside and reads[0].same_as(reader) else None


class Scope(NamedTuple):
    """Facts about the values of a function.

    Attributes
    ----------
    lookup : Lookup
    outside : Lookup
        A `lookup` that does not see values that chains compute.
    readers : Readers
    """

    lookup: Lookup
    outside: Lookup
    readers: Readers


def masked_softmax(where: Any, lookup: Lookup) -> Any:
    """Return the softmax of which a call of ``where`` takes zeros in rows that are all minus
    infinity.

    It is what PyTorch's attention is exported as, of which masks may hide all of a row::

        where(not max(not x == -inf), zeros, softmax(x))

    Returns
    -------
    relax.Call or None
        None where it is something else.
    """
    condition, zeros, result = where.args
    softmax = named(lookup(result), "relax.nn.softmax")
    if softmax is None or not _are_zeros(zeros, lookup):
        return None
    tested = _all_minus_infinity(condition, lookup)
    return softmax if tested is not None and tested.same_as(softmax.args[0]) else None


def named(value: Any, *names: str) -> Any:
    """Return a value that is a call of one of these operators, else None."""
    return value if is_operator(value) and value.op.name in names else None


def is_operator(value: Any) -> bool:
    """Return whether a value is a call of an operator."""
    return isinstance(value, R.Call) and isinstance(value.op, tvm.ir.Op)


def number_in(expr: Any) -> float | None:
    """Return the number that a constant of one element holds."""
    value = constant_value(expr)
    if value is None:
        return None
    array = value.numpy()
    return float(array.reshape(())) if array.size == 1 else None


def _all_minus_infinity(condition: Any, lookup: Lookup) -> Any:
    """Return the tensor of which a condition says that all of its last axis is minus infinity, else
    None.
    """
    for name in ("relax.logical_not", "relax.max", "relax.logical_not", "relax.equal"):
        value = lookup(condition)
        cast = named(value, "relax.astype", "relax.not_equal")
        if cast is not None and cast.op.name != "relax.astype" and number_in(cast.args[1]) != 0:
            return None
        value = named(value if cast is None else lookup(cast.args[0]), name)
        if value is None or (name == "relax.max" and not _is_of_last_axis(value)):
            return None
        condition = value.args[0]
    return condition if number_in(value.args[1]) == -inf else None


def _is_of_last_axis(call: Any) -> bool:
    """Return whether a reduction is that of the last axis, which stays."""
    count, axes = len(known_shape(tensor_type_of(call).shape)), call_attr(call, "axis")
    is_last = axes is not None and [int(axis) % count for axis in axes] == [count - 1]
    return is_last and bool(call_attr(call, "keepdims"))


def _are_zeros(expr: Any, lookup: Lookup) -> bool:
    value = lookup(expr)
    if named(value, "relax.zeros_like", "relax.zeros") is not None:
        return True
    full = named(value, "relax.full_like", "relax.full")
    return number_in(expr if full is None else full.args[1]) == 0
