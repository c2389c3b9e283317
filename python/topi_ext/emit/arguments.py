# SPDX-License-Identifier: Apache-2.0
"""The arguments of kernels, declared in the order in which they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..problem import DATA, TAPS, Problem
from ..product import Product
from .builder import argument, grid
from .expressions import Expr
from .operands import Operand, Part


class Packed(NamedTuple):
    """The number of elements of packed weights, and their dtype."""

    elements: int
    dtype: str


def arguments(problem: Any, packed: Packed | None = None) -> list[tuple[Any, ...]]:
    """Return the arguments of the kernel of any problem.

    Parameters
    ----------
    packed : Packed, optional
        The packed weights, if they come packed.
    """
    if isinstance(problem, Product):
        return product_arguments(problem, packed)
    if not isinstance(problem, Problem):
        return [argument(*stated) for stated in problem.arguments()]
    if problem.face == "conv_weight_grad":
        return weight_grad_arguments(problem)
    return conv_arguments(problem, packed)


def conv_arguments(problem: Problem, packed: Packed | None = None) -> list[tuple[Any, ...]]:
    """Declare data, weight, the operands of the epilogue, and the result of ``conv`` or its
    transpose.

    Parameters
    ----------
    packed : Packed, optional
        The packed weights, if they come packed.
    """
    geometry, layouts = problem.geometry, problem.layouts
    x = layouts.x, _data_sizes(problem.x_sizes, geometry.c)
    y = layouts.y, _data_sizes(problem.y_sizes, geometry.k)
    source, result = (y, x) if problem.transposed else (x, y)
    data = _argument("data", *source, problem.dtypes[0])
    weight = packed_weight(packed) if packed else stored_weight(problem)
    extra = _epilogue_arguments(problem)
    return [data, weight, *extra, _argument("out", *result, problem.dtypes[2])]


def weight_grad_arguments(problem: Problem) -> list[tuple[Any, ...]]:
    """Declare x, y, and the gradient of the weight."""
    geometry, layouts = problem.geometry, problem.layouts
    x = _argument("x", layouts.x, _data_sizes(problem.x_sizes, geometry.c), problem.dtypes[0])
    y = _argument("y", layouts.y, _data_sizes(problem.y_sizes, geometry.k), problem.dtypes[1])
    return [x, y, _argument("out", layouts.w, _weight_sizes(problem), problem.dtypes[2])]


def product_arguments(product: Product, packed: Packed | None = None) -> list[tuple[Any, ...]]:
    """Declare both operands, those of the epilogue, and the result of a matrix product; see
    :func:`conv_arguments`."""
    sizes, (of_x, _, of_y) = product.size, product.dtypes
    x = _argument("x", product.x, sizes, of_x)
    w = packed_weight(packed) if packed else stored_weight(product)
    behind = (step for step in product.epilogue if step.order)
    extra = [
        _argument(f"operand{i}", step.order, sizes, step.dtype or of_y)
        for i, step in enumerate(behind)
    ]
    return [x, w, *extra, _argument("out", product.y, sizes, of_y)]


def stored_weight(problem: Problem | Product) -> tuple[Any, ...]:
    """Declare the weight, as the user stores it."""
    if isinstance(problem, Product):
        return _argument("w", problem.w, problem.size, problem.dtypes[1])
    return _argument("weight", problem.layouts.w, _weight_sizes(problem), problem.dtypes[1])


def packed_weight(packed: Packed) -> tuple[Any, ...]:
    """Declare the packed weight, which has one axis."""
    return _argument("packed", "P", {"P": packed.elements}, packed.dtype)


def weight_index(
    problem: Problem,
    weight: Operand,
    group: Expr,
    in_channel: Expr,
    out_channel: Expr,
    taps: Sequence[Expr],
) -> Expr:
    """Return the index of the weight between two channels of a group, as the problem's face reads
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


def tap_number(problem: Problem, taps: Sequence[Expr]) -> Expr:
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
    sizes, order = _weight_sizes(problem), problem.layouts.w
    return order, [sizes[letter] for letter in order]


def _epilogue_arguments(problem: Problem) -> list[tuple[Any, ...]]:
    """Declare the operands of the steps, in their order."""
    sizes = _data_sizes(problem.out_sizes, problem.geometry.groups * problem.out_channels)
    return [
        _argument(
            f"operand{number}",
            step.order,
            {letter: sizes[letter] if letter in step.varies else 1 for letter in step.order},
            step.dtype or problem.dtypes[2],
        )
        for number, step in enumerate(step for step in problem.epilogue if step.order)
    ]


def _data_sizes(sizes: Sequence[Expr], channels: int) -> dict[str, Expr]:
    """Return sizes by letter of data with these four axes."""
    return {**dict(zip(DATA, sizes)), "C": channels}


def _weight_sizes(problem: Problem) -> dict[str, int]:
    geometry = problem.geometry
    return {**dict(zip(TAPS, geometry.kernel)), "O": geometry.k, "I": geometry.c_per_group}


def _argument(name: str, order: str, sizes: dict[str, Any], dtype: str) -> tuple[Any, ...]:
    """Declare an argument stored in `order`; axes that it does not name are unit axes."""
    return argument(name, order, [sizes[letter] for letter in order], dtype)
