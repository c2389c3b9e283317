# SPDX-License-Identifier: Apache-2.0
"""The arguments of kernels, declared in the order in which they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..spec.conv import TAPS, Convolution
from ..spec.problem import Argument, Problem
from .builder import argument, grid
from .expressions import Expr
from .operands import Operand, Part


class Packed(NamedTuple):
    """The number of elements of packed weights, and their dtype."""

    elements: int
    dtype: str


def arguments(problem: Problem, packed: Packed | None = None) -> list[tuple[Any, ...]]:
    """Declare the arguments of the kernel of any problem.

    Parameters
    ----------
    packed : Packed, optional
        The packed weight, if it comes packed.
    """
    stated = list(problem.arguments())
    if packed:
        stated[1] = packed_weight(packed)
    return [argument(*one) for one in stated]


def packing_arguments(problem: Problem, packed: Packed) -> list[tuple[Any, ...]]:
    """Declare the arguments of what packs a weight: as it is stored, and packed."""
    return [argument(*one) for one in (stored_weight(problem), packed_weight(packed))]


def stored_weight(problem: Problem) -> Argument:
    """Return the weight, as the user stores it."""
    return list(problem.arguments())[1]


def packed_weight(packed: Packed) -> Argument:
    """Return the packed weight, which has one axis."""
    return Argument("packed", "P", (packed.elements,), packed.dtype)


def weight_index(
    problem: Convolution,
    weight: Operand,
    group: Expr,
    in_channel: Expr,
    out_channel: Expr,
    taps: Sequence[Expr],
) -> Expr:
    """Return the index of the weight between two channels of a group, as the problem's kind reads
    it."""
    outer, inner = out_channel, in_channel
    if problem.transposed:
        outer, inner = inner, outer
    return weight.at("OI" + TAPS, group * problem.geometry.k_per_group + outer, inner, *taps)


def as_stored(weight: Operand, extents: dict[str, Expr]) -> Iterator[dict[str, Expr]]:
    """Emit ``for index in as_stored(weight, extents)``: loops over these axes, in the order in
    which `weight` is stored; `index` has the index along each axis by its letter."""
    order = sorted(extents, key=lambda letter: -weight.strides.get(letter, 0))
    for index in grid(*(extents[letter] for letter in order)):
        yield dict(zip(order, index))


def tap_number(problem: Convolution, taps: Sequence[Expr]) -> Expr:
    """Return the number of a tap among all taps of a kernel."""
    number: Expr = 0
    for tap, extent in zip(taps, problem.geometry.kernel):
        number = number * extent + tap
    return number


def copied_weight(problem: Problem, packed: Operand, start: int) -> Operand:
    """Return the weight as the user stores it, of which `packed` holds a copy from `start` on."""
    return Part(packed, start, *stored_sizes(problem))


def stored_sizes(problem: Problem) -> tuple[str, list[int]]:
    """Return the axes of the weight in the order in which the user stores them, and their sizes."""
    weight = stored_weight(problem)
    return weight.order, list(weight.shape)
