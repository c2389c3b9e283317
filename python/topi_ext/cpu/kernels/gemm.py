# SPDX-License-Identifier: Apache-2.0
"""The kernel of matrix products, batched and of any layout; of ``conv`` with one tap, too.

Lanes run over columns, values of x are broadcast::

    parallel (outer letters, block of rows, split of columns):
        copy its rows of x, unless they can be read as they are      -> rows
        for each panel of `vectors` vectors of columns:
            for each K-block of `depth` terms:
                copy its rows of the panel of w, unless it comes packed         -> panel
                for each tile of `m_tile` rows:
                    for each term:
                        accumulators[m_tile][vectors] += rows * panel           -> acc
                        prefetch a line of the next K-block of packed w
            for each row: epilogue                                              -> out

Sums over one K-block, of whole panels without an epilogue, go to `out` at once.

In the matrix product, M are rows, N columns, K terms.  Left, rows of x, each value broadcast;
right, panels of w.

A panel is ``[term][columns]``: a K-block of it stays in the first cache for all rows.  The panels
of a matrix follow each other in memory, and so do the matrices of packed w.  Elements behind the
last column are zero or not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from ...emit.arguments import Packed
from ...emit.post_ops import RowEpilogue
from ...spec.conv import Convolution
from ...spec.matmul import MatMul
from .. import emit
from ..emit import Array, Expr, Operand
from ..parts import prefetch
from ..parts.copies import copy
from ..parts.outer_product import Matrix, MultiplyAdd, RegisterTile, add_products
from ..parts.splits import Splits
from ..parts.transpose import Pitched, Runs, copy_matrix, transpose
from ..plan.gemm import GemmPlan, product_of


def emit_body(problem: Convolution | MatMul, plan: GemmPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of ``(x, w, *operands of the epilogue, out)``, scheduled by `plan`."""
    product = _product(problem)
    gemm = Gemm(product, plan, Sizes.emitted(product, plan))
    x, w, *extra, out = operands
    w = gemm.viewed(w, product.w) if not product.prepacked else w
    behind = [step.order for step in product.epilogue if step.order]
    others = [gemm.viewed(operand, order) for operand, order in zip(extra, behind)]
    gemm.emit(gemm.viewed(x, product.x), w, others, gemm.viewed(out, product.y))


def packed_weights(problem: Convolution | MatMul, plan: GemmPlan) -> Packed:
    """Return size and dtype of the packed weights."""
    product = _product(problem)
    return packed_panels(product, plan, _packed_dtype(product))


def packed_panels(product: MatMul, plan: GemmPlan, dtype: str, terms: int = 0) -> Packed:
    """Return size and dtype of all panels of weights, of so many terms if not those of the
    product.
    """
    panels = -(-product.extent(product.column) // plan.width)
    terms = terms or product.extent(product.inner)
    matrices = product.extent(product.outer_of_w)
    return Packed(matrices * panels * terms * plan.width, dtype)


def pack_weights(
    problem: Convolution | MatMul, plan: GemmPlan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    product = of_known_weights(_product(problem))
    gemm = Gemm(product, plan, Sizes.emitted(product, plan))
    gemm.pack(gemm.viewed(weight, product.w), packed)


def of_known_weights(product: MatMul) -> MatMul:
    """Return the product without the sizes that packed weights do not depend on, which may be
    symbolic.
    """
    known = ((a, size if a in product.w else 1) for a, size in product.sizes)
    return replace(product, sizes=tuple(known))


def _packed_dtype(product: MatMul) -> str:
    """Return the dtype of packed weights: bytes stay so beside floating point, to be widened where
    they are multiplied.
    """
    return product.dtypes[1] if product.widens_weights else product.acc_dtype


def _product(problem: Convolution | MatMul) -> MatMul:
    """Return the product that a problem with a plan is."""
    product = product_of(problem)
    assert product is not None
    return product


class Sizes(NamedTuple):
    """Sizes by letter, and the splits of the panels of columns; symbolic ones known at run time."""

    of: dict[str, Expr]
    splits: Splits

    @classmethod
    def emitted(cls, product: MatMul, plan: GemmPlan) -> Sizes:
        """Return the sizes of a product."""
        sizes = {a: emit.opaque_value(size) for a, size in product.sizes}
        panels = emit.ceil_div(sizes.get(product.column, 1), plan.width)
        per_split = emit.opaque_value(emit.ceil_div(panels, plan.splits))
        return cls(sizes, Splits(panels, plan.splits, per_split))


class Task(NamedTuple):
    """One task.

    Attributes
    ----------
    where : dict
        Index along the outer letters.
    row, rows : Expr
        Its first row, and how many it has.
    split : Expr
        Its split of the columns.
    """

    where: dict[str, Expr]
    row: Expr
    rows: Expr
    split: Expr


class Rows(NamedTuple):
    """Rows of a matrix: where the first begins, and distances of rows and of their elements."""

    array: Array
    start: Expr
    pitch: Expr
    step: Expr


class _Widened(Array):
    """Packed weights, of which vectors are read in a wider dtype."""

    def __init__(self, array: Array, wide: str, lanes: int):
        super().__init__(array.buffer, array.dtype)
        self.wide, self.lanes = wide, lanes

    def __getitem__(self, index: Expr) -> Expr:
        return emit.converted(super().__getitem__(index), self.wide, self.lanes)


class Gemm:
    """The emitter of one kernel.

    Attributes
    ----------
    dtype, held : str
        Dtypes of sums, and of copied rows and panels.
    terms : Expr
        Terms of a sum: those of the product, or as many as are stated, some numbers in each.
    multiply_add : callable or None
        As of :func:`~topi_ext.cpu.parts.outer_product.add_products`.
    """

    multiply_add: MultiplyAdd | None = None

    def __init__(
        self, product: MatMul, plan: GemmPlan, sizes: Sizes, held: str = "", terms: int = 0
    ):
        self.product, self.plan, self.dtype = product, plan, product.acc_dtype
        self.held = held or self.dtype
        self.number_of = emit.let if product.is_static else emit.opaque_value
        self.size, self.splits = sizes
        self.columns, self.terms, self.rows = (
            self.size.get(letter, 1) for letter in (product.column, product.inner, product.row)
        )
        self.terms = terms or self.terms
        known = isinstance(self.terms, int)
        self.depth = min(plan.depth, self.terms) if known else plan.depth
        self.is_whole = isinstance(self.columns, int) and self.columns % plan.width == 0
        # TVM moves an allocation of symbolic size to where that size is not defined yet.
        self.copies_by_depth = plan.copies_x and not known
        rows = product.extent(product.row)
        self.prefetches = product.prepacked and prefetch.pays(
            packed_panels(product, plan, held or _packed_dtype(product), terms),
            rows,
            plan.m_tile,
        )
        self.is_fresh = known and 0 < self.terms <= plan.depth

    def viewed(self, operand: Operand, letters: str) -> Operand:
        """Return the operand with these letters."""
        view = Operand(operand.buffer, operand.dtype, letters, [self.size[a] for a in letters])
        view.strides = {a: emit.opaque_value(step) for a, step in view.strides.items()}
        view.zero = operand.zero
        return view

    # ------------------------------------------------------------ weights

    @property
    def panels(self) -> Expr:
        """Panels of all matrices of w."""
        return prod(self.size[a] for a in self.product.outer_of_w) * self.splits.blocks

    def pack(self, w: Operand, packed: Array) -> None:
        """Write packed[outer letters of w][panel][term][columns]."""
        outer = self.product.outer_of_w
        extents = [self.size[a] for a in outer]
        panels, elements = self.splits.blocks, self.terms * self.plan.width
        with emit.tasks(self.panels, self.plan.parallel) as task:
            *where, panel = map(emit.let, emit.unravel(task, (*extents, panels)))
            start = emit.let(w.at(outer, *where))
            into = emit.opaque_base(task * elements)
            self._copy_panel(w, start, panel * self.plan.width, (0, self.terms), packed, into)

    def _copy_panel(
        self,
        w: Operand,
        start: Expr,
        column: Expr,
        terms: tuple[Expr, Expr],
        into: Array,
        offset: Expr,
    ) -> None:
        """Copy the panel that begins at a column; `terms` are the first term and how many."""
        width, product = self.plan.width, self.product
        first, count = terms
        apart, step = w.strides.get(product.inner, 0), w.strides.get(product.column, 1)
        present = width if self.is_whole else emit.let(emit.least(self.columns - column, width))
        begin = emit.opaque_base(start + first * apart + column * step)
        if not self.is_whole:
            zero = emit.constant(0, into.dtype)
            for _ in emit.only_if(present < width):
                emit.fill(into, offset, count * width, zero)
        if step == 1 or apart != 1:
            for k in emit.loop(count):
                source = emit.opaque_base(begin + k * apart)
                at = emit.opaque_base(offset + k * width)
                copy(into, at, w, source, present, self.plan.lanes, step)
            return
        # Terms are neighbours: squares of them are transposed.
        for v in emit.loop(self.plan.vectors):
            source = emit.opaque_base(begin + v * (self.plan.lanes * step))
            left = emit.let(emit.least(present - v * self.plan.lanes, self.plan.lanes))
            runs = Runs(w, source, 1, left, count, self.depth, step)
            at = emit.opaque_base(offset + v * self.plan.lanes)
            for _ in emit.only_if(left > 0):
                transpose(Pitched(into, at, width), runs, self.plan.lanes)

    # ------------------------------------------------------------ tasks

    def emit(self, x: Operand, w: Operand, others: Sequence[Operand], out: Operand) -> None:
        """Emit the whole kernel."""
        outer, plan = self.product.outer, self.plan
        blocks = emit.opaque_value(emit.ceil_div(self.rows, plan.rows))
        extents = (*(self.size[a] for a in outer), blocks, plan.splits)
        with emit.tasks(prod(extents), plan.parallel) as number:
            *where, block, split = map(self.number_of, emit.unravel(number, extents))
            row = self.number_of(block * plan.rows)
            rows = self.number_of(emit.clamped_extent(row, self.rows, plan.rows))
            self._task(Task(dict(zip(outer, where)), row, rows, split), (x, w, others, out))

    def _task(
        self, task: Task, operands: tuple[Operand, Operand, Sequence[Operand], Operand]
    ) -> None:
        """Emit one task: its panels, one after the other."""
        (x, w, others, out), plan = operands, self.plan
        rows, at_once = self._rows_of(task, x), self._goes_at_once(out)
        acc = out if at_once else emit.scratch(plan.rows * plan.width, self.dtype)
        panel = w if not plan.copies_w else emit.scratch(self.depth * plan.width, self.held)
        start = self.number_of(self._matrix(task, w))
        for number, _ in self.splits.blocks_of(task.split):
            column = emit.let(number * plan.width)
            if not self.is_fresh:
                self._begin_sums(task, acc, w, number)
            sums = Rows(acc, 0, plan.width, 1)
            if at_once:
                apart = out.strides.get(self.product.row, 0)
                sums = Rows(out, self._offset(task, out, 0, column), apart, 1)
            for i in emit.loop(emit.ceil_div(self.terms, self.depth)):
                first = emit.let(i * self.depth)
                count = emit.clamped_extent(first, self.terms, self.depth)
                offset = emit.let(start + (number * self.terms + first) * plan.width)
                if plan.copies_w:
                    self._copy_panel(w, start, column, (first, count), panel, 0)
                    offset = 0
                if self.copies_by_depth:
                    self._copy_rows(task, x, (first, count), rows)
                    first = 0
                self._products(task, rows, (panel, offset), (first, count), sums)
            if not at_once:
                self._write(task, acc, column, others, out)

    def _begin_sums(self, task: Task, acc: Array, w: Array, panel: Expr) -> None:
        """Write what the sums of a panel begin with: zeros."""
        emit.fill(acc, 0, task.rows * self.plan.width, emit.constant(0, self.dtype))

    def _goes_at_once(self, out: Operand) -> bool:
        """Return whether tiles are written to the result as they are summed."""
        is_plain = out.dtype == self.dtype and not self.product.epilogue
        step = out.strides.get(self.product.column, 1)
        return self.is_fresh and self.is_whole and is_plain and step == 1

    def _offset(self, task: Task, out: Operand, row: Expr, column: Expr) -> Expr:
        """Return where in the result the elements of a row of the task begin."""
        where = self._where(task, row, column)
        return emit.opaque_base(out.at("".join(where), *where.values()))

    def _where(self, task: Task, row: Expr, column: Expr) -> dict[str, Expr]:
        """Return the index by letter of an element of the task."""
        where = {
            **task.where,
            self.product.row: task.row + row,
            self.product.column: column,
        }
        where.pop("", None)
        return where

    def _matrix(self, task: Task, w: Operand) -> Expr:
        """Return where the matrix of w begins that a task multiplies by."""
        if self.plan.copies_w:
            return w.at("".join(task.where), *task.where.values())
        return self._number_of_matrix(task) * (self.splits.blocks * self.terms * self.plan.width)

    def _number_of_matrix(self, task: Task) -> Expr:
        number: Expr = 0
        for letter in self.product.outer_of_w:
            number = number * self.size[letter] + task.where[letter]
        return number

    def _rows_of(self, task: Task, x: Operand) -> Rows:
        """Return the rows of x of a task: in place, copied, or room for a part of the terms."""
        product, plan = self.product, self.plan
        if not plan.copies_x:
            apart, step = x.strides.get(product.row, 0), x.strides.get(product.inner, 1)
            return Rows(x, self._first_row(task, x), apart, step)
        terms = self.depth if self.copies_by_depth else self.terms
        pitch = emit.opaque_value(plan.pitch(terms))
        rows = Rows(emit.scratch(plan.rows * pitch, self.held), 0, pitch, 1)
        if not self.copies_by_depth:
            self._copy_rows(task, x, (0, terms), rows)
        return rows

    def _first_row(self, task: Task, x: Operand) -> Expr:
        """Return where the first row of a task begins."""
        start = x.at("".join(task.where), *task.where.values())
        return emit.opaque_base(start + task.row * x.strides.get(self.product.row, 0))

    def _copy_rows(self, task: Task, x: Operand, terms: tuple[Expr, Expr], rows: Rows) -> None:
        """Copy the rows of x of a task; `terms` are the first term and how many."""
        product, plan, (first_term, count) = self.product, self.plan, terms
        apart, step = x.strides.get(product.row, 0), x.strides.get(product.inner, 1)
        start = self._first_row(task, x)
        if not isinstance(first_term, int) or first_term:
            start = emit.opaque_base(start + first_term * step)
        into = Pitched(rows.array, rows.start, rows.pitch)
        shape = (task.rows, count)
        copy_matrix(into, x, start, (apart, step), shape, plan.lanes, plan.rows)

    def _products(
        self,
        task: Task,
        rows: Rows,
        panel: tuple[Array, Expr],
        terms: tuple[Expr, Expr],
        sums: Rows,
    ) -> None:
        """sums[row][columns] (+)= rows * panel, over terms: the first one and how many."""
        width, plan = self.plan.width, self.plan
        (array, offset), (first, count) = panel, terms
        known = isinstance(rows.step, int) and isinstance(rows.pitch, int)
        steps = (None, None) if known else (rows.step, width)
        if array.dtype != self.held:
            array = _Widened(array, self.held, plan.lanes)
        b = Matrix(array, lambda k: offset + k * width, steps[1])
        for m, size in self._m_tiles(task.rows):
            read = emit.opaque_base(rows.start + m * rows.pitch + first * rows.step)
            into = emit.opaque_base(sums.start + m * sums.pitch)

            def element(o: int, k: Expr, read: Expr = read) -> Expr:
                return read + (o * rows.pitch + k * rows.step)

            offsets = [into + o * sums.pitch for o in range(size)]
            c = RegisterTile(sums.array, offsets, plan.vectors, plan.lanes)
            a = Matrix(rows.array, element, steps[0])
            ahead = None
            if known and self.prefetches:
                following, tile = offset + count * width, emit.quotient(m, plan.m_tile)
                ahead = partial(prefetch.prefetch_block, array, following, (count, width), tile)
            add_products(
                (count,), a, b, c, fresh=self.is_fresh, prefetch=ahead,
                multiply_add=self.multiply_add,
            )  # fmt: skip

    def _m_tiles(self, count: Expr) -> Iterator[tuple[Expr, int]]:
        """Emit ``for first, size in self._m_tiles(count)``: a loop over M-tiles of the rows of a
        task, then those of what is left.

        Only the last block of rows has a smaller tile.  Its size is known if that of all rows is;
        else there are tiles of a half, a quarter, ... of the whole size.
        """
        size = self.plan.m_tile
        if isinstance(count, int):
            yield from emit.tiles(count, size)
            return
        whole = emit.let(count // size)
        for i in emit.loop(whole):
            yield i * size, size
        done = emit.let(whole * size)
        if isinstance(self.rows, int):
            rest = self.rows % self.plan.rows % size
            if rest:
                for _ in emit.only_if(done < count):
                    yield done, rest
            return
        half = 1 << (size - 1).bit_length() - 1 if size > 1 else 0
        while half:
            left = emit.let(count - done)
            for _ in emit.only_if(left >= half):
                yield done, half
            done = emit.let(done + (left // half) * half)
            half //= 2

    # ------------------------------------------------------------ output

    def _write(
        self, task: Task, acc: Array, column: Expr, others: Sequence[Operand], out: Operand
    ) -> None:
        """Write the rows of a panel."""
        product, plan = self.product, self.plan
        step = out.strides.get(product.column, 1)
        present: Expr = plan.width
        if not self.is_whole:
            present = emit.let(emit.least(self.columns - column, plan.width))
        for is_full in emit.sides(present >= plan.width):
            columns = plan.width if is_full else present
            for m in emit.loop(task.rows):
                where = self._where(task, m, column)
                into = self._offset(task, out, m, column)
                source = emit.opaque_base(m * plan.width)
                epilogue = RowEpilogue.along(
                    product.epilogue, self.dtype, others, where, product.column
                )
                if product.epilogue or step != 1:
                    for n in emit.loop(columns):
                        value = epilogue(acc[source + n], n)
                        value = emit.cast(value, product.finished_dtype, out.dtype)
                        emit.store(out, into + n * step, value)
                else:
                    copy(out, into, acc, source, columns, plan.lanes)
