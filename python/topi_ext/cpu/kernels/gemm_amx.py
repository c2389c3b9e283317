# SPDX-License-Identifier: Apache-2.0
"""The kernel of matrix products of bfloat16, int8 and uint8 for processors with AMX.

The loop nest of :mod:`topi_ext.cpu.kernels.gemm`, with lanes of terms as in
:mod:`topi_ext.cpu.kernels.gemm_dot`, and tiles instead of vectors::

    if Linux grants the matrix unit:
        for each tile of rows, each K-block:
            for each 16 lanes of terms:
                accumulators[2][2] += rows[16, 16 lanes] @ panel[16 lanes, 16 columns]
    else:
        the same nest by vectors, or the kernel of gemm.py

Lanes behind the last are zero, up to a multiple of 16.  Rows behind the last are anything: their
sums are dropped.

In the matrix product, M are rows, N columns, K terms, by twos or fours in both operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ...emit.arguments import Packed
from ...spec.conv import Convolution
from ...spec.matmul import MatMul
from .. import emit, kernels
from ..emit import Array, Expr, Operand
from ..isa import amx
from ..isa.dot_int8 import LANE
from ..parts.transpose import Pitched, copy_matrix
from ..plan.direct_amx import TILE
from ..plan.gemm_amx import GemmAmxPlan
from ..products import DATA_FIRST, DOTS, TILE_DOTS
from .gemm import Rows, Task, of_known_weights, packed_panels
from .gemm_dot import TERMS, GemmDot, columns_of, lanes_of, product_in_lanes

_ROWS = 8
"""Rows of the register tile of vectors, which divides tiles."""


def emit_body(
    problem: Convolution | MatMul, plan: GemmAmxPlan, operands: Sequence[Operand]
) -> None:
    """Emit the body of ``(x, w, *operands of the epilogue, out)``, scheduled by `plan`."""
    found = product_in_lanes(problem)
    for is_granted in emit.sides(amx.is_granted()):
        if is_granted:
            GemmAmx(found, plan).emit_all(operands)
        elif plan.refused:
            kernels.emit_body(problem, plan.refused, operands)
        else:
            _by_vectors(found, plan).emit_all(operands)


def packed_weights(problem: Convolution | MatMul, plan: GemmAmxPlan) -> Packed:
    """Return size and dtype of the packed weights, and of the sums of columns behind them: for the
    matrix unit, then for vectors.
    """
    found, dot = product_in_lanes(problem), TILE_DOTS[plan.dot]
    elements = packed_panels(found, plan.nest, LANE, lanes_of(found, dot, TILE)).elements
    sets = sum(bool(one.zero_of(found)) for one in (dot, DOTS[plan.vector_dot]))
    return Packed(elements + sets * columns_of(found, plan.nest), LANE)


def pack_weights(
    problem: Convolution | MatMul, plan: GemmAmxPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    found = of_known_weights(product_in_lanes(problem))
    gemm = GemmAmx(found, plan)
    gemm.pack(gemm.viewed(weight, found.w), packed)
    by_vectors = _by_vectors(found, plan)
    if by_vectors.zero:
        by_vectors.pack_firsts(packed)


def _by_vectors(found: MatMul, plan: GemmAmxPlan) -> GemmDot:
    """Return the emitter of the same loop nest by vectors, whose first sums are behind those for
    the matrix unit.
    """
    nest = replace(plan.nest, m_tile=_ROWS)
    gemm = GemmDot(found, nest, DOTS[plan.vector_dot], TILE)
    if TILE_DOTS[plan.dot].zero_of(found):
        gemm.firsts += columns_of(found, nest)
    return gemm


class GemmAmx(GemmDot):
    """The emitter of one kernel."""

    def __init__(self, found: MatMul, plan: GemmAmxPlan):
        super().__init__(found, plan.nest, TILE_DOTS[plan.dot], TILE)
        self.name = DATA_FIRST.get(plan.dot, plan.dot)

    def emit_all(self, operands: Sequence[Operand]) -> None:
        """Emit the whole kernel for its arguments."""
        self._emit_all(operands)

    def _goes_at_once(self, out: Operand) -> bool:
        is_whole = isinstance(self.rows, int) and self.rows % TILE == 0
        return is_whole and super()._goes_at_once(out)

    def _task(
        self, task: Task, operands: tuple[Operand, Operand, Sequence[Operand], Operand]
    ) -> None:
        """Emit one task, between the configuration and the release of the matrix unit."""
        amx.configure()
        super()._task(task, operands)
        amx.release()

    # ------------------------------------------------------------ rows

    @property
    def elements(self) -> int:
        """Numbers of a row of a tile."""
        return TILE * self.dot.size

    @property
    def distances(self) -> tuple[int, int]:
        """How far tiles of other rows are apart, and those of the terms that follow."""
        return self.terms * self.dot.size * TILE, self.elements * TILE

    def _rows_of(self, task: Task, x: Operand) -> Rows:
        """Return the rows of x of a task, copied: all tiles of 16 rows, then those of the next.

        In memory, rows that are far apart may push each other out of the first cache.
        """
        stored = _Stored(x)
        array = emit.scratch(self.plan.rows * self.terms * self.dot.size, stored.dtype)
        whole, rest = divmod(self.size[TERMS], self.elements)
        apart, step = self.distances
        for tile in emit.loop(emit.ceil_div(task.rows, TILE)):
            present = emit.clamped_extent(tile * TILE, task.rows, TILE)
            part = task._replace(row=emit.let(task.row + tile * TILE), rows=present)
            into = emit.opaque_base(tile * apart)
            for i in emit.loop(whole):
                self._copy_tile(part, stored, i, self.elements, (array, into + i * step))
            if rest:
                self._copy_tile(part, stored, whole, rest, (array, into + whole * step))
        return Rows(array, 0, self.elements, 1)

    def _copy_tile(
        self, part: Task, x: Operand, tile: Expr, count: int, into: tuple[Array, Expr]
    ) -> None:
        """Copy so many terms of up to 16 rows, and write zeros behind them."""
        (array, at), elements = into, self.elements
        apart, step = x.strides.get(self.product.row, 0), x.strides[self.product.inner]
        start = emit.opaque_base(self._first_row(part, x) + tile * (elements * step))
        rows = Pitched(array, emit.opaque_base(at), elements)
        copy_matrix(rows, x, start, (apart, step), (part.rows, count), elements, TILE)
        if count < elements:
            for row in emit.loop(part.rows):
                behind = emit.opaque_base(rows.start + row * elements + count)
                emit.fill(array, behind, elements - count, emit.constant(0, array.dtype))

    # ------------------------------------------------------------ products

    def _products(
        self,
        task: Task,
        rows: Rows,
        panel: tuple[Array, Expr],
        terms: tuple[Expr, Expr],
        sums: Rows,
    ) -> None:
        (array, offset), (first, count) = panel, terms
        width, wide = self.plan.width, self.plan.vectors
        apart, step = self.distances
        first = emit.quotient(first, TILE)
        for tile, high in self._tiles_of(task.rows):
            read = emit.opaque_base(tile * apart + first * step)
            into = emit.opaque_base(sums.start + tile * (TILE * sums.pitch))
            acc = {
                (o, v): (o * wide + v, into + (o * TILE * sums.pitch + v * TILE))
                for o, v in product(range(high), range(wide))
            }
            for register, at in acc.values():
                if self.is_fresh:
                    amx.zero(register)
                else:
                    amx.load(register, sums.array, at, sums.pitch)
            data, weights = len(acc), len(acc) + high
            for i in emit.loop(emit.quotient(count, TILE)):
                for o in range(high):
                    at = read + (o * apart + i * step)
                    amx.load(data + o, rows.array, at, rows.pitch)
                for v in range(wide):
                    at = offset + (i * (TILE * width) + v * TILE)
                    amx.load(weights + v, array, at, width)
                for (o, v), (register, _) in acc.items():
                    amx.add_product(register, data + o, weights + v, self.name)
            for register, at in acc.values():
                amx.store(register, sums.array, at, sums.pitch)

    def _tiles_of(self, rows: Expr) -> Iterator[tuple[Expr, int]]:
        """Emit ``for first, high in self._tiles_of(rows)``: a loop over register tiles of one or
        two tiles of rows, and a last one of what is left."""
        high, tiles = self.plan.m_tile // TILE, emit.let(emit.ceil_div(rows, TILE))
        if isinstance(tiles, int):
            yield from emit.tiles(tiles, high)
            return
        whole = emit.let(emit.quotient(tiles, high))
        for i in emit.loop(whole):
            yield i * high, high
        if high > 1:
            for _ in emit.only_if(tiles > whole * high):
                yield emit.let(whole * high), high - 1


class _Stored(Operand):
    """Data as they are stored: with their zero point, and bfloat16 as bits, of which TVM 0.25 finds
    the address.
    """

    def __init__(self, operand: Operand):
        super().__init__(operand.buffer, operand.dtype, "", ())
        self.strides, self.is_float = operand.strides, operand.dtype == "bfloat16"
        self.dtype = "int16" if self.is_float else operand.dtype

    def __getitem__(self, index: Expr) -> Expr:
        value = super().__getitem__(index)
        if not self.is_float:
            return value
        lanes = int(getattr(index, "lanes", 1))
        return emit.bits(value, f"int16x{lanes}" if lanes > 1 else "int16")
