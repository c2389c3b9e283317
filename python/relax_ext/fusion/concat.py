# SPDX-License-Identifier: Apache-2.0
"""Concatenations of channels that the kernel of one part writes.

A decoder convolves ``concat(skip, up)``, where nothing else reads `up`, the end of a chain of
:mod:`.chains`.  Its kernel writes `up` where the concatenation has it, and a launch behind it
copies `skip`: `up` is written and read once less.  Only targets that support ``concat`` do so.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from topi_ext import backend
from topi_ext.compat import call_attr, relax, tensor_type_of
from topi_ext.fusion.anchors import ConvAnchor
from topi_ext.spec.dtypes import byte_width

from ..ir import are_same, dtype_of
from ..target import target_of
from .chains import Chain
from .patterns import Function, named
from .views import shapes_of

R = relax()

SECTOR = 32
"""Bytes of memory that a GPU writes at once: shorter runs would be written in parts."""


def with_concats(func: Any, chains: dict[Any, Chain]) -> dict[Any, Chain]:
    """Return the chains of a function by their last calls, of which some are concatenations.

    Parameters
    ----------
    func : relax.Function
    chains : dict
        The chains by their last calls.
    """
    function, found = Function.of(func), dict(chains)
    for var, value in function.values.items():
        fields = _fields(value)
        if not fields or not _is_launch(var, value, function, chains):
            continue
        calls = [function.only_read_by(field, value) for field in fields]
        numbers = [
            number
            for number, call in enumerate(calls)
            if call in chains and _may_write(chains[call], value, number)
        ]
        if numbers:
            number = max(numbers, key=lambda one: _channels(fields, chains[calls[one]])[one])
            chain = found.pop(calls[number])
            _join(chain, value, number)
            found[value] = chain
    return found


def _fields(value: Any) -> list[Any]:
    """Return the parts of a concatenation; none of other values."""
    concat = named(value, "relax.concat")
    is_read = concat is not None and isinstance(concat.args[0], R.Tuple)
    return list(concat.args[0].fields) if is_read else []


def _is_launch(var: Any, concat: Any, function: Function, chains: dict[Any, Chain]) -> bool:
    """Return whether a concatenation is a launch of its own: TVM fuses it neither with its only
    reader nor with what it alone reads.
    """
    kernels = {link.call for chain in chains.values() for link in chain.links}

    def is_kernel(value: Any) -> bool:
        return value in kernels or named(value, "relax.call_tir") is not None

    readers = function.readers[var]
    if isinstance(var, R.DataflowVar) and len(readers) == 1 and not is_kernel(readers[0][1]):
        return False
    read = (function.only_read_by(field, concat) for field in _fields(concat))
    return all(value is None or is_kernel(value) for value in read)


def _may_write(chain: Chain, concat: Any, number: int) -> bool:
    """Return whether the kernel of a chain may write the concatenation, of which its result is part
    `number`.
    """
    anchor, fields, axis = chain.anchor, _fields(concat), call_attr(concat, "axis")
    if not isinstance(anchor, ConvAnchor) or chain.views or axis is None:
        return False
    if not backend.supports("concat", target_of(chain.match.type)):
        return False
    shapes, channels = shapes_of(*fields), anchor.axes.index("C")
    if shapes is None or int(axis) % len(anchor.axes) != channels:
        return False
    if {dtype_of(field) for field in fields} != {anchor.dtype}:
        return False
    others = [(*shape[:channels], *shape[channels + 1 :]) for shape in shapes]
    if not all(are_same(one, others[number]) for one in others):
        return False
    counts = _channels(fields, chain)
    inner = (size for size in shapes[number][channels + 1 :] if isinstance(size, int))
    run = counts[number] * prod(inner) * byte_width(anchor.dtype)
    is_once = sum(field.same_as(fields[number]) for field in fields) == 1
    return min(counts) > 0 and run >= SECTOR and is_once


def _channels(fields: list[Any], chain: Chain) -> list[int]:
    """Return the channels of each part; 0 where they are symbolic."""
    axis = chain.anchor.axes.index("C")
    sizes = (shape[axis] for shape in shapes_of(*fields) or ())
    return [size if isinstance(size, int) else 0 for size in sizes]


def _join(chain: Chain, concat: Any, number: int) -> None:
    """Let the kernel of a chain write the concatenation, of which its result is part `number`."""
    assert isinstance(chain.anchor, ConvAnchor)
    fields = _fields(concat)
    channels = tuple(_channels(fields, chain))
    joined = channels[:number], channels[number + 1 :]
    chain.anchor = replace(chain.anchor, joined=joined)
    chain.operands += [*fields[:number], *fields[number + 1 :]]
    chain.match = chain.match._replace(type=tensor_type_of(concat))
