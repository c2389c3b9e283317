# SPDX-License-Identifier: Apache-2.0
"""The kernel of matrix products of bfloat16, int8 and uint8, by products within lanes.

The loop nest of :mod:`topi_ext.cpu.kernels.gemm`, with some terms in each lane of rows and panels,
as many as one instruction multiplies and adds::

    for each lane of terms:
        accumulators[m_tile][vectors] += sum over its terms of rows * panel

Zero points are those of :mod:`topi_ext.cpu.kernels.direct_dot`: sums of a column begin with ``-z *
sum of its weights``, which are packed behind the panels.

In the matrix product, M are rows, N columns, K terms, by twos or fours in both operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ...emit.arguments import Packed
from ...spec.conv import Convolution
from ...spec.matmul import MatMul
from .. import emit
from ..emit import Array, Expr, Operand
from ..isa import dot_bf16, dot_int8
from ..isa.dot_bf16 import Pairs
from ..isa.dot_int8 import LANE, Channels, Lanes
from ..parts.copies import copy
from ..parts.outer_product import MultiplyAdd
from ..plan.gemm import GemmPlan, product_of
from ..plan.gemm_dot import GemmDotPlan
from ..products import DOTS, Product
from .gemm import Gemm, Rows, Sizes, Task, of_known_weights, packed_panels

TERMS = "C"
"""Letter of terms: lanes are of channels."""


def emit_body(
    problem: Convolution | MatMul, plan: GemmDotPlan, operands: Sequence[Operand]
) -> None:
    """Emit the body of ``(x, w, *operands of the epilogue, out)``, scheduled by `plan`."""
    GemmDot(product_in_lanes(problem), plan.nest, DOTS[plan.dot]).emit_all(operands)


def packed_weights(problem: Convolution | MatMul, plan: GemmDotPlan) -> Packed:
    """Return size and dtype of the packed weights, and of the sums of columns behind them."""
    product, dot = product_in_lanes(problem), DOTS[plan.dot]
    panels = packed_panels(product, plan.nest, LANE, lanes_of(product, dot))
    if not dot.zero_of(product):
        return panels
    return Packed(panels.elements + columns_of(product, plan.nest), LANE)


def pack_weights(
    problem: Convolution | MatMul, plan: GemmDotPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    gemm = GemmDot(of_known_weights(product_in_lanes(problem)), plan.nest, DOTS[plan.dot])
    gemm.pack(gemm.viewed(weight, gemm.product.w), packed)


def product_in_lanes(problem: Convolution | MatMul) -> MatMul:
    """Return the product that a problem is, with its terms named."""
    product = product_of(problem)
    assert product is not None
    names = str.maketrans(product.inner, TERMS)
    sizes = tuple((a.translate(names), size) for a, size in product.sizes)
    return replace(product, sizes=sizes, x=product.x.translate(names), w=product.w.translate(names))


def lanes_of(product: MatMul, dot: Product, whole: int = 1) -> int:
    """Return the lanes that all terms take, a multiple of `whole`."""
    lanes: int = -(-product.extent(product.inner) // (dot.size * whole)) * whole
    return lanes


def columns_of(product: MatMul, plan: GemmPlan) -> int:
    """Return the columns of all panels of all matrices of weights."""
    panels = -(-product.extent(product.column) // plan.width)
    columns: int = product.extent(product.outer_of_w) * panels * plan.width
    return columns


class GemmDot(Gemm):
    """The emitter of one kernel.

    Attributes
    ----------
    zero : int
        The zero point that data in rows have.
    firsts : int
        Where packed panels end, and what the sums of each column begin with.
    """

    def __init__(self, product: MatMul, plan: GemmPlan, dot: Product, whole: int = 1):
        self.dot, terms = dot, lanes_of(product, dot, whole)
        super().__init__(product, plan, Sizes.emitted(product, plan), LANE, terms)
        self.zero = dot.zero_of(product)
        self.is_fresh = self.is_fresh and not self.zero
        self.firsts = packed_panels(product, plan, LANE, terms).elements
        self.multiply_add = _multiply_add_of(dot, plan.lanes)

    def emit_all(self, operands: Sequence[Operand]) -> None:
        """Emit the whole kernel for its arguments."""
        dot, lanes = self.dot, self.plan.lanes
        with dot_bf16.instruction() if dot.is_float else dot_int8.instruction(dot, lanes):
            self._emit_all(operands)

    def _emit_all(self, operands: Sequence[Operand]) -> None:
        x, w, *extra, out = operands
        product = self.product
        data = self.viewed(x, product.x)
        weight = w if product.prepacked else self.viewed(w, product.w)
        if not self.plan.copies_x:
            data = _InPlace(Lanes(self.dot, Channels(data, 0, self.dot.size)))
        behind = [step.order for step in product.epilogue if step.order]
        others = [self.viewed(operand, order) for operand, order in zip(extra, behind)]
        self.emit(data, weight, others, self.viewed(out, product.y))

    # ------------------------------------------------------------ lanes

    def _lanes_of(
        self, operand: Operand, terms: tuple[Expr, Expr], of_weights: bool
    ) -> Iterator[tuple[Operand, tuple[Expr, Expr], Expr]]:
        """Emit ``for lanes, terms, number in ...``: lanes of an operand, the first of them and how
        many, and the number of that first one among all of `terms`; the last lane may have fewer
        numbers than others.
        """
        size = self.dot.size
        (first, count), there = terms, lanes_of(self.product, self.dot)
        if there < self.terms:
            terms = first, emit.let(emit.least(count, there - first))
        if self.dot.is_float:
            yield Pairs(operand), terms, 0
            return
        lanes = partial(_WeightLanes if of_weights else Lanes, self.dot)
        whole, rest = divmod(self.size[TERMS], size)
        if not rest:
            yield lanes(Channels(operand, 0, size)), terms, 0
            return
        full = emit.let(emit.least(count, whole - first))
        if whole:
            yield lanes(Channels(operand, 0, size)), (first, full), 0
        for _ in emit.only_if(first + count > whole):
            yield lanes(Channels(operand, 0, rest)), (whole, 1), full

    def _copy_panel(
        self,
        w: Operand,
        start: Expr,
        column: Expr,
        terms: tuple[Expr, Expr],
        into: Array,
        offset: Expr,
    ) -> None:
        for lanes, part, number in self._lanes_of(w, terms, of_weights=True):
            at = emit.let(offset + number * self.plan.width)
            super()._copy_panel(lanes, start, column, part, into, at)
        for present, missing in self._missing(terms):
            behind = emit.let(offset + present * self.plan.width)
            emit.fill(into, behind, missing * self.plan.width, emit.constant(0, LANE))

    def _copy_rows(self, task: Task, x: Operand, terms: tuple[Expr, Expr], rows: Rows) -> None:
        for lanes, part, number in self._lanes_of(x, terms, of_weights=False):
            super()._copy_rows(task, lanes, part, rows._replace(start=rows.start + number))
        for present, missing in self._missing(terms):
            for m in emit.loop(task.rows):
                behind = emit.let(rows.start + m * rows.pitch + present)
                emit.fill(rows.array, behind, missing, emit.constant(0, LANE))

    def _missing(self, terms: tuple[Expr, Expr]) -> Iterator[tuple[Expr, Expr]]:
        """Emit ``for present, missing in ...``, where lanes end: how many of `terms` there are, and
        how many behind the last."""
        (first, count), there = terms, lanes_of(self.product, self.dot)
        if there < self.terms:
            for _ in emit.only_if(first + count > there):
                yield emit.let(there - first), emit.let(first + count - there)

    # ------------------------------------------------------------ zero points

    def pack(self, w: Operand, packed: Array) -> None:
        """Write all panels to `packed`, and behind them what the sums of each column begin with."""
        super().pack(w, packed)
        if self.zero:
            self.pack_firsts(packed)

    def pack_firsts(self, packed: Array) -> None:
        """Write what the sums of each column begin with to `packed`."""
        width, zero = self.plan.width, emit.constant(self.zero, LANE)
        with emit.tasks(self.panels, self.plan.parallel) as panel:
            first = emit.let(self.firsts + panel * width)
            emit.fill(packed, first, width, emit.constant(0, LANE))
            for k in emit.loop(self.terms):
                lanes = emit.let((panel * self.terms + k) * width)
                for n in emit.loop(width):
                    less = dot_int8.total(packed[lanes + n], self.dot) * zero
                    emit.store(packed, first + n, packed[first + n] - less)

    def _begin_sums(self, task: Task, acc: Array, w: Array, panel: Expr) -> None:
        if not self.zero:
            super()._begin_sums(task, acc, w, panel)
            return
        width = self.plan.width
        number = self._number_of_matrix(task) * self.splits.blocks + panel
        first = emit.opaque_base(self.firsts + number * width)
        for m in emit.loop(task.rows):
            copy(acc, emit.opaque_base(m * width), w, first, width, self.plan.lanes)


def _multiply_add_of(dot: Product, lanes: int) -> MultiplyAdd:
    """Return the function that adds products of lanes of data and of weights to sums."""
    if dot.is_float:
        return dot_bf16.add_products

    def multiply_add(sums: Expr, data: Expr, weights: Expr) -> Expr:
        return dot_int8.add_products(dot, lanes, sums, weights, data)

    return multiply_add


class _WeightLanes(Lanes):
    """Lanes of weights, which are less their zero point."""

    def __init__(self, dot: Product, channels: Channels):
        super().__init__(dot, channels)
        self.zero, self.flipped = channels.operand.zero, 0


class _InPlace(Operand):
    """Lanes of data, read as they are stored: elements are lanes."""

    def __init__(self, lanes: Lanes):
        super().__init__(lanes.buffer, lanes.dtype, "", ())
        self.lanes, self.strides = lanes, lanes.strides

    def __getitem__(self, index: Expr) -> Expr:
        return self.lanes.load(index, LANE)
