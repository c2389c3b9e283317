# SPDX-License-Identifier: Apache-2.0
"""The kernel of matrix products, batched and of any layout; of ``conv`` with one tap, too.

Lanes run over columns, values of x are broadcast::

    parallel (outer letters, block of rows, split of columns):
        copy its rows of x, unless they can be read as they are      -> rows
        for each panel of `vectors` vectors of columns:
            for each chunk of `depth` terms:
                copy that part of the panel of w, unless it comes packed        -> panel
                for each tile of `m_tile` rows:
                    for each term:
                        accumulators[m_tile][vectors] += rows * panel           -> acc
            for each row: epilogue                                              -> out

Sums of one chunk, of whole panels without an epilogue, go to `out` at once.

Of the matrix product, M are rows, N columns, K terms.  Left, rows of x, each value broadcast;
right, panels of w.

A panel is ``[term][columns]``: a chunk of it stays in the first cache while all rows pass by.  All
panels of a matrix follow each other, and of packed w all matrices.  Beyond the last column panels
hold zeros, or what is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed
from ...emit.post_ops import RowEpilogue
from ...problem import Problem
from ...product import Product
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts.copies import copy
from ..parts.outer_product import Matrix, RegisterTile, add_products
from ..parts.splits import Splits
from ..parts.transpose import Pitched, Runs, transpose
from ..plan.gemm import GemmPlan, product_of


def emit_body(problem: Problem | Product, plan: GemmPlan, operands: Sequence[Operand]) -> None:
    """What ``(x, w, *operands of the epilogue, out)`` does, scheduled by `plan`."""
    product = product_of(problem)
    gemm = Gemm(product, plan, _Sizes.emitted(product, plan))
    x, w, *extra, out = operands
    w = gemm.viewed(w, product.w) if not product.prepacked else w
    behind = [step.order for step in product.epilogue if step.order]
    others = [gemm.viewed(one, order) for one, order in zip(extra, behind)]
    gemm.emit(gemm.viewed(x, product.x), w, others, gemm.viewed(out, product.y))


def packed_weights(problem: Problem | Product, plan: GemmPlan) -> Packed:
    """What the packed weights are."""
    product = product_of(problem)
    panels = -(-product.extent(product.column) // plan.width)
    terms = product.extent(product.inner)
    matrices = product.extent(product.outer_of_w)
    return Packed(matrices * panels * terms * plan.width, product.acc_dtype)


def pack_weights(
    problem: Problem | Product, plan: GemmPlan, weight: Operand, packed: Operand
) -> None:
    """Pack them."""
    product = product_of(problem)
    # Of the other sizes, which may be symbolic, packed weights know nothing.
    known = ((a, size if a in product.w else 1) for a, size in product.sizes)
    product = replace(product, sizes=tuple(known))
    gemm = Gemm(product, plan, _Sizes.emitted(product, plan))
    gemm.pack(gemm.viewed(weight, product.w), packed)


class _Sizes(NamedTuple):
    """Sizes of letters, and how panels of columns are divided; symbolic ones known at run time."""

    of: dict[str, Expr]
    splits: Splits

    @classmethod
    def emitted(cls, product: Product, plan: GemmPlan) -> _Sizes:
        """Those of a product."""
        sizes = {a: emit.opaque_value(size) for a, size in product.sizes}
        panels = emit.ceil_div(sizes.get(product.column, 1), plan.width)
        per_split = emit.opaque_value(emit.ceil_div(panels, plan.splits))
        return cls(sizes, Splits(panels, plan.splits, per_split))


class _Task(NamedTuple):
    """One task.

    Attributes
    ----------
    where : dict
        Numbers along the outer letters.
    row, rows : Expr
        Its first row, and how many it has.
    split : Expr
        Which columns.
    """

    where: dict[str, Expr]
    row: Expr
    rows: Expr
    split: Expr


class _Rows(NamedTuple):
    """The rows of x of a task: where the first begins, how far they and their terms are apart."""

    array: Array
    start: Expr
    pitch: Expr
    step: Expr


class Gemm:
    """One kernel while it is being emitted."""

    def __init__(self, product: Product, plan: GemmPlan, sizes: _Sizes):
        self.product, self.plan, self.dtype = product, plan, product.acc_dtype
        self.number_of = emit.let if product.is_static else emit.opaque_value
        self.size, self.splits = sizes
        self.columns, self.terms, self.rows = (
            self.size.get(letter, 1) for letter in (product.column, product.inner, product.row)
        )
        known = isinstance(self.terms, int)
        self.depth = min(plan.depth, self.terms) if known else plan.depth
        self.is_whole = isinstance(self.columns, int) and self.columns % plan.width == 0
        self.is_fresh = known and 0 < self.terms <= plan.depth

    def viewed(self, operand: Operand, letters: str) -> Operand:
        """An operand as one with these letters."""
        seen = Operand(operand.buffer, operand.dtype, letters, [self.size[a] for a in letters])
        seen.strides = {a: emit.opaque_value(step) for a, step in seen.strides.items()}
        return seen

    # ------------------------------------------------------------ weights

    def pack(self, w: Operand, packed: Array) -> None:
        """packed[outer letters of w][panel][term][columns]."""
        outer = self.product.outer_of_w
        extents = [self.size[a] for a in outer]
        panels, elements = self.splits.blocks, self.terms * self.plan.width
        with emit.tasks(prod(extents) * panels, self.plan.parallel) as task:
            *where, panel = map(emit.let, emit.unravel(task, (*extents, panels)))
            start = emit.let(w.at(outer, *where))
            place = emit.opaque_base(task * elements)
            self._copy_panel(w, start, panel * self.plan.width, (0, self.terms), packed, place)

    def _copy_panel(
        self,
        w: Operand,
        start: Expr,
        column: Expr,
        terms: tuple[Expr, Expr],
        into: Array,
        place: Expr,
    ) -> None:
        """The panel that begins at a column: from a term on, so many of them."""
        width, product = self.plan.width, self.product
        first, count = terms
        apart, step = w.strides.get(product.inner, 0), w.strides.get(product.column, 1)
        present = width if self.is_whole else emit.let(emit.least(self.columns - column, width))
        begin = emit.opaque_base(start + first * apart + column * step)
        if not self.is_whole:
            zero = emit.constant(0, self.dtype)
            emit.when(present < width, lambda: emit.fill(into, place, count * width, zero))
        if step == 1 or apart != 1:

            def term(k: Expr) -> None:
                source = emit.opaque_base(begin + k * apart)
                at = emit.opaque_base(place + k * width)
                copy(into, at, w, source, present, self.plan.lanes, step)

            emit.loop(count, term)
            return

        # Terms are neighbours: squares of them are turned.
        def vector(v: Expr) -> None:
            source = emit.opaque_base(begin + v * (self.plan.lanes * step))
            left = emit.let(emit.least(present - v * self.plan.lanes, self.plan.lanes))
            runs = Runs(w, source, 1, left, count, self.depth, step)
            at = emit.opaque_base(place + v * self.plan.lanes)
            emit.when(left > 0, lambda: transpose(Pitched(into, at, width), runs, self.plan.lanes))

        emit.loop(self.plan.vectors, vector)

    # ------------------------------------------------------------ tasks

    def emit(self, x: Operand, w: Operand, others: Sequence[Operand], out: Operand) -> None:
        """The whole kernel."""
        outer, plan = self.product.outer, self.plan
        blocks = emit.opaque_value(emit.ceil_div(self.rows, plan.rows))
        extents = (*(self.size[a] for a in outer), blocks, plan.splits)
        with emit.tasks(prod(extents), plan.parallel) as number:
            *where, block, split = map(self.number_of, emit.unravel(number, extents))
            row = self.number_of(block * plan.rows)
            rows = self.number_of(emit.clamped_extent(row, self.rows, plan.rows))
            self._task(_Task(dict(zip(outer, where)), row, rows, split), (x, w, others, out))

    def _task(
        self, task: _Task, operands: tuple[Operand, Operand, Sequence[Operand], Operand]
    ) -> None:
        """The panels of a task, one after the other."""
        (x, w, others, out), plan = operands, self.plan
        rows, at_once = self._rows_of(task, x), self._goes_at_once(out)
        acc = out if at_once else emit.scratch(plan.rows * plan.width, self.dtype)
        panel = w if not plan.copies_w else emit.scratch(self.depth * plan.width, self.dtype)
        start = self.number_of(self._matrix(task, w))
        zero = emit.constant(0, self.dtype)

        def one(number: Expr, _: Expr) -> None:
            column = emit.let(number * plan.width)
            if not self.is_fresh:
                emit.fill(acc, 0, task.rows * plan.width, zero)

            def chunk(i: Expr) -> None:
                first = emit.let(i * self.depth)
                count = emit.clamped_extent(first, self.terms, self.depth)
                place = emit.let(start + (number * self.terms + first) * plan.width)
                if plan.copies_w:
                    self._copy_panel(w, start, column, (first, count), panel, 0)
                    place = 0
                self._products(task, rows, (panel, place), (first, count), sums)

            sums = _Rows(acc, 0, plan.width, 1)
            if at_once:
                apart = out.strides.get(self.product.row, 0)
                sums = _Rows(out, self._place(task, out, 0, column), apart, 1)
            emit.loop(emit.ceil_div(self.terms, self.depth), chunk)
            if not at_once:
                self._write(task, acc, column, others, out)

        self.splits.over_blocks(task.split, one)

    def _goes_at_once(self, out: Operand) -> bool:
        """Whether tiles are written to the result as they are summed."""
        is_plain = out.dtype == self.dtype and not self.product.epilogue
        step = out.strides.get(self.product.column, 1)
        return self.is_fresh and self.is_whole and is_plain and step == 1

    def _place(self, task: _Task, out: Operand, row: Expr, column: Expr) -> Expr:
        """Where in the result the elements of a row of the task begin."""
        place = self._where(task, row, column)
        return emit.opaque_base(out.at("".join(place), *place.values()))

    def _where(self, task: _Task, row: Expr, column: Expr) -> dict[str, Expr]:
        """That by letters."""
        place = {
            **task.where,
            self.product.row: task.row + row,
            self.product.column: column,
        }
        place.pop("", None)
        return place

    def _matrix(self, task: _Task, w: Operand) -> Expr:
        """Where the matrix of w begins that a task multiplies by."""
        if self.plan.copies_w:
            return w.at("".join(task.where), *task.where.values())
        number: Expr = 0
        for letter in self.product.outer_of_w:
            number = number * self.size[letter] + task.where[letter]
        return number * (self.splits.blocks * self.terms * self.plan.width)

    def _rows_of(self, task: _Task, x: Operand) -> _Rows:
        """The rows of a task, copied if need be."""
        product, plan, terms = self.product, self.plan, self.terms
        apart, step = x.strides.get(product.row, 0), x.strides.get(product.inner, 1)
        start = x.at("".join(task.where), *task.where.values()) + task.row * apart
        start = emit.opaque_base(start)
        if not plan.copies_x:
            return _Rows(x, start, apart, step)
        pitch = emit.opaque_value(plan.pitch(terms))
        rows = emit.scratch(plan.rows * pitch, self.dtype)
        if step == 1 or apart != 1:

            def row(m: Expr) -> None:
                source = emit.opaque_base(start + m * apart)
                copy(rows, emit.opaque_base(m * pitch), x, source, terms, plan.lanes, step)

            emit.loop(task.rows, row)
        else:

            def vector(v: Expr) -> None:
                first = emit.let(v * plan.lanes)
                source = emit.opaque_base(start + first * step)
                count = emit.let(emit.least(terms - first, plan.lanes))
                runs = Runs(x, source, 1, count, task.rows, plan.rows, step)
                transpose(Pitched(rows, emit.opaque_base(first), pitch), runs, plan.lanes)

            emit.loop(emit.ceil_div(terms, plan.lanes), vector)
        return _Rows(rows, 0, pitch, 1)

    def _products(
        self,
        task: _Task,
        rows: _Rows,
        panel: tuple[Array, Expr],
        terms: tuple[Expr, Expr],
        sums: _Rows,
    ) -> None:
        """sums[row][columns] of a panel: from a term on, so many of them."""
        width, plan = self.plan.width, self.plan
        (array, place), (first, count) = panel, terms
        known = isinstance(rows.step, int) and isinstance(rows.pitch, int)
        steps = (None, None) if known else (rows.step, width)

        def tile(m: Expr, size: int) -> None:
            read = emit.opaque_base(rows.start + m * rows.pitch + first * rows.step)
            into = emit.opaque_base(sums.start + m * sums.pitch)
            add_products(
                (count,),
                Matrix(rows.array, lambda o, k: read + (o * rows.pitch + k * rows.step), steps[0]),
                Matrix(array, lambda k: place + k * width, steps[1]),
                RegisterTile(
                    sums.array,
                    [into + o * sums.pitch for o in range(size)],
                    plan.vectors,
                    plan.lanes,
                ),
                fresh=self.is_fresh,
            )

        self._row_tiles(task.rows, tile)

    def _row_tiles(self, count: Expr, step: Callable[[Expr, int], None]) -> None:
        """``step(first, size)`` for tiles of the rows of a task.

        Of blocks of rows only the last has a smaller tile, of known rows always the same; of others
        it is made of tiles of a half, a quarter, ...
        """
        size = self.plan.m_tile
        if isinstance(count, int):
            emit.tiles(count, size, step)
            return
        whole = emit.let(count // size)
        emit.loop(whole, lambda i: step(i * size, size))
        done = emit.let(whole * size)
        if isinstance(self.rows, int):
            rest = self.rows % self.plan.rows % size
            if rest:
                emit.when(done < count, lambda: step(done, rest))
            return
        half = 1 << (size - 1).bit_length() - 1 if size > 1 else 0
        while half:
            left = emit.let(count - done)
            emit.when(left >= half, lambda at=done, size=half: step(at, size))
            done = emit.let(done + (left // half) * half)
            half //= 2

    # ------------------------------------------------------------ output

    def _write(
        self, task: _Task, acc: Array, column: Expr, others: Sequence[Operand], out: Operand
    ) -> None:
        """The rows of a panel."""
        product, plan = self.product, self.plan
        step = out.strides.get(product.column, 1)

        def columns(present: Expr) -> None:
            def row(m: Expr) -> None:
                place = self._where(task, m, column)
                into = self._place(task, out, m, column)
                source = emit.opaque_base(m * plan.width)
                epilogue = RowEpilogue.along(
                    product.epilogue, self.dtype, others, place, product.column
                )

                def element(n: Expr) -> None:
                    value = epilogue(acc[source + n], n)
                    value = emit.cast(value, product.finished_dtype, out.dtype)
                    emit.store(out, into + n * step, value)

                if product.epilogue or step != 1:
                    emit.loop(present, element)
                else:
                    copy(out, into, acc, source, present, plan.lanes)

            emit.loop(task.rows, row)

        present: Expr = plan.width
        if not self.is_whole:
            present = emit.let(emit.least(self.columns - column, plan.width))
        emit.when(present >= plan.width, lambda: columns(plan.width), lambda: columns(present))
