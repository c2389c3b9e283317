# SPDX-License-Identifier: Apache-2.0
"""A matrix product, batched and of any rank, stated as ``einsum`` does it: a letter for each axis.

=========  =======================  =====================================
letters    stand in                 in ``y[b, m, n] = x[b, m, k] w[b, k, n]``
=========  =======================  =====================================
rows       x and y                  m
columns    w and y                  n
batch      x, w and y               b
inner      x and w: summed over     k
=========  =======================  =====================================

Each operand names its letters in the order in which it is stored, so that every transpose of every
operand is a statement, not a copy.  Where x or w is broadcast along a batch, the batch is rows or
columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from string import ascii_letters
from typing import ClassVar

from .conv import BYTE_RANGES, DATA, Convolution
from .dtypes import FLOATS, accumulator
from .geometry import Geometry, Size
from .layout import Layouts
from .post_ops import NO_ZERO_POINTS, Epilogue, ZeroPoints, finished
from .problem import Argument, LetteredProblem, by, is_one


@dataclass(frozen=True)
class MatMul(LetteredProblem):
    """One matrix product to be built.

    Attributes
    ----------
    sizes : tuple of (str, int or symbolic)
        Size of each letter.
    x, w, y : str
        Letters of the operands and of the result, in memory order.
    dtypes : tuple of str
        Dtypes of x, w and y; w may be bytes beside floating-point x.
    epilogue : tuple of PostOp
        Post-ops that are applied before sums are written; operands have the letters that they vary
        along, and no others.
    prepacked : bool
        Whether the kernel may find w packed.
    zero_points : tuple of int
        Numbers that stand for zero in x and in w, of integers.
    """

    sizes: tuple[tuple[str, Size], ...]
    x: str
    w: str
    y: str
    dtypes: tuple[str, str, str]
    epilogue: Epilogue = ()
    prepacked: bool = False
    zero_points: ZeroPoints = NO_ZERO_POINTS

    _ordered: ClassVar[tuple[str, ...]] = ("x", "w", "y")

    @property
    def kind(self) -> str:
        """Kind of operator."""
        return "matmul"

    @classmethod
    def of(cls, problem: Convolution) -> MatMul | None:
        """Return a convolution that is one: with one tap, one group, no stride and no padding."""
        g = problem.geometry
        is_plain = problem.kind == "conv" and g.taps == 1 and g.groups == 1
        steps = any(size != 1 for size in g.stride) or any((*g.pad_before, *g.pad_after))
        if not is_plain or steps:
            return None
        sizes = (*zip(DATA, problem.y_sizes), ("K", g.c), ("F", g.k))
        of_one = {"C" if a == "F" else a for a, size in sizes if is_one(size)}
        if any(step.order and set(step.varies) <= of_one for step in problem.epilogue):
            return None  # an operand of one element has no letter
        x, y = (
            layout.replace("C", letter)
            for layout, letter in ((problem.layouts.x, "K"), (problem.layouts.y, "F"))
        )
        w = "".join({"O": "F", "I": "K"}.get(letter, "") for letter in problem.layouts.w)
        steps_behind = tuple(
            replace(step, order=varies, varies=varies)
            for step in problem.epilogue
            for varies in ["".join(a for a in step.order if a in step.varies).replace("C", "F")]
        )
        options = steps_behind, problem.prepacked, problem.zero_points
        return cls(sizes, x, w, y, problem.dtypes, *options).merged()

    @property
    def shape_text(self) -> str:
        """Sizes of the operands and of the result."""
        x, w, y = (by(self.shape(letters)) for letters in (self.x, self.w, self.y))
        return f"{x} @ {w} -> {y} as {self.x},{self.w}->{self.y}"

    @cached_property
    def acc_dtype(self) -> str:
        """Dtype of the accumulators; weights that are bytes beside floating point are widened."""
        x, w, y = self.dtypes
        return accumulator("matmul", x, x if self.widens_weights else w, y)

    @property
    def widens_weights(self) -> bool:
        """Return whether w has bytes and x floating-point numbers."""
        return self.dtypes[0] in FLOATS and self.dtypes[1] in BYTE_RANGES

    @cached_property
    def finished_dtype(self) -> str:
        """Dtype of what the epilogue makes of them, before it is that of the result."""
        return finished(self.epilogue, self.acc_dtype)

    @property
    def rows(self) -> str:
        """Letters of x and y alone, in the order of y."""
        return "".join(a for a in self.y if a in self.x and a not in self.w)

    @property
    def columns(self) -> str:
        """Letters of w and y alone, in the order of y."""
        return "".join(a for a in self.y if a in self.w and a not in self.x)

    @property
    def inner(self) -> str:
        """Letters that are summed over, in the order of w."""
        return "".join(a for a in self.w if a not in self.y)

    @property
    def row(self) -> str:
        """The letter that register tiles have rows of; empty where there is one row."""
        return self.rows[-1:]

    @property
    def column(self) -> str:
        """The letter that vectors run over; empty where there is one column."""
        return self.columns[-1:]

    @property
    def outer(self) -> str:
        """The letters that separate products have: all of y but these two."""
        return "".join(a for a in self.y if a not in self.row + self.column)

    @property
    def outer_of_w(self) -> str:
        """Return the outer letters that w has: one matrix is packed for each combination."""
        return "".join(a for a in self.outer if a in self.w)

    @property
    def is_matrix_product(self) -> bool:
        """Return whether no letter stands in one operand alone, and one at most is summed over."""
        x, w, y = map(set, (self.x, self.w, self.y))
        return x | w == (x & w) | y and y <= x | w and len(self.inner) <= 1

    @property
    def has_pairs(self) -> bool:
        """Return whether operands are bfloat16, with an even number of terms: pairs of them."""
        terms = self.extent(self.inner)
        return self.dtypes[:2] == ("bfloat16",) * 2 and isinstance(terms, int) and terms % 2 == 0

    def arguments(self) -> Iterator[Argument]:
        """Yield both operands, those of the epilogue, and the result."""
        of_x, of_w, of_y = self.dtypes
        yield Argument("x", self.x, self.shape(self.x), of_x)
        yield Argument("w", self.w, self.shape(self.w), of_w)
        yield from self._operands()
        yield Argument("out", self.y, self.shape(self.y), of_y)

    def canonical(self) -> Convolution | MatMul:
        """Return the convolution with one tap that it is, which more kernels serve."""
        return self.as_conv() or self

    def step(self, role: str, letter: str) -> Size:
        """Return how far neighbours along a letter are apart in ``"x"``, ``"w"`` or ``"y"``; 0
        where that has no such letter.
        """
        order = {"x": self.x, "w": self.w, "y": self.y}[role]
        _, found, behind = order.partition(letter) if letter else ("", "", "")
        return self.extent(behind) if found else 0

    def merged(self) -> MatMul:
        """See :meth:`LetteredProblem.merged`; there is a letter for rows in any case: a single one
        has size 1."""
        made = super().merged()
        if made.rows:
            return made
        letter = next(a for a in ascii_letters if a not in made.size)
        sizes = ((letter, 1), *made.sizes)
        return replace(made, sizes=sizes, x=letter + made.x, y=letter + made.y)

    def as_conv(self) -> Convolution | None:
        """Return the convolution with one tap that it is; None of a batch, of symbolic sizes, and
        of weights that are widened.
        """
        rows, columns = self.rows, self.columns
        if self.widens_weights or not self.is_static:
            return None
        if set(self.outer) - set(rows) or len(rows) > len(DATA):
            return None
        if not (rows and columns and self.inner):
            return None
        axes = dict(zip(reversed(rows), reversed(DATA)))
        of_data = {**axes, **dict.fromkeys(columns, "C")}
        sizes = {axes[a]: self.size[a] for a in rows}
        spatial = tuple(sizes.get(axis, 1) for axis in DATA[1:])
        inner, outputs = self.extent(self.inner), self.extent(columns)
        if 0 in (*spatial, sizes.get("N", 1), inner, outputs):
            return None
        layouts = Layouts(
            _renamed(self.x, {**axes, **dict.fromkeys(self.inner, "C")}),
            _renamed(self.w, {**dict.fromkeys(self.inner, "I"), **dict.fromkeys(columns, "O")}),
            _renamed(self.y, of_data),
        )
        ones, zeros = (1,) * 3, (0,) * 3
        geometry = Geometry(
            inner, outputs, 1, ones, ones, ones, zeros, zeros, x_size=spatial, y_size=spatial
        )
        steps = tuple(
            replace(step, order=order, varies=order)
            for step in self.epilogue
            for order in [_renamed(step.order, of_data)]
        )
        n = sizes.get("N", 1)
        return Convolution(
            "conv", geometry, layouts, n, self.dtypes, steps, self.prepacked, self.zero_points
        )


def _renamed(letters: Sequence[str], names: dict[str, str]) -> str:
    return "".join(names[letter] for letter in letters)
