# SPDX-License-Identifier: Apache-2.0
"""The base of all problems: one operator to be built, of any kind, for any target.

A problem names its kind, states the arguments of its kernel, and knows which of its sizes are
symbolic.  Planners and emitters take a problem; :mod:`topi_ext.backend` builds it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .geometry import Size
from .post_ops import NO_ZERO_POINTS, Epilogue, without_letters
from .size_hints import Unknown
from .size_rules import Rule

if TYPE_CHECKING:
    from typing_extensions import Self

FreshSize = Callable[[str], Size]
"""Make a variable of this name for a size that only run time knows."""

NOMINAL_SIZE = 256
"""Value of symbolic sizes when kernels are compared."""


class Argument(NamedTuple):
    """One argument of a kernel: its name, the letters of its axes in memory order, and its type."""

    name: str
    order: str
    shape: tuple[Size, ...]
    dtype: str


class Problem:
    """One operator to be built; subclasses are frozen dataclasses.

    Attributes
    ----------
    kind : str
        Kind of operator, for which kernels are registered.
    shape_text : str
        Sizes of operands and result, for people.
    dtypes : tuple of str
        Dtypes of operands and of the result.
    epilogue : tuple of PostOp
        Post-ops that are applied to the result before it is written.
    prepacked : bool
        Whether a kernel that packs its second operand may find it packed.
    zero_points : tuple of int
        Numbers that are subtracted from elements of both operands.
    is_static : bool
        Whether all sizes are numbers.
    is_part : bool
        Whether the kernel writes a concatenation, of which it computes one part.
    """

    kind: Any
    shape_text: Any
    dtypes: Any
    epilogue: Epilogue = ()
    prepacked: Any = False
    zero_points: Any = NO_ZERO_POINTS
    is_static: Any = True
    is_part: Any = False

    def arguments(self) -> Iterable[Argument]:
        """Return the arguments of the kernel, in order; a weight is the second."""
        raise NotImplementedError

    def anonymous(self) -> Problem:
        """Return this problem with None in place of symbolic sizes, to be a key."""
        return self

    def with_sizes(self, fresh: FreshSize) -> Problem:
        """Return an anonymous problem with a fresh variable in place of each None."""
        return self

    def expecting(self, value: Callable[[Size], int | None]) -> Problem:
        """Return this problem for calls whose sizes are about ``value(size)``, None if unknown."""
        return self

    def planned(self) -> Problem:
        """Return the problem that plans are made for: equal ones have equal symbolic sizes."""
        return self if self.is_static else self.anonymous().with_sizes(Unknown)

    def of_nominal_sizes(self) -> Problem:
        """Return the problem with 256 in place of each symbolic size, for estimates."""
        return self.anonymous().with_sizes(lambda _: NOMINAL_SIZE)

    def rules(self) -> list[Rule]:
        """Return what a kernel checks of symbolic sizes when it runs."""
        return []

    def canonical(self) -> Problem:
        """Return the problem that is planned in place of this one; usually itself."""
        return self

    def separate(self) -> tuple[Problem, ...]:
        """Return the problems whose kernels compute this one, one after the other; usually none."""
        return ()

    @property
    def signature(self) -> str:
        """Return this problem, with known sizes, as one line: its key in databases of plans."""
        return f"{self.kind} {listed(self)}"


def by(sizes: Sequence[Any]) -> str:
    """Return sizes as text: ``1x3x8x8``."""
    return "x".join(map(str, sizes)) or "scalar"


def listed(value: Any) -> str:
    """Return the fields of a dataclass as ``name=value``, but for zero points that are none."""
    pairs = [(each.name, getattr(value, each.name)) for each in fields(value)]
    named = (pair for pair in pairs if pair != ("zero_points", NO_ZERO_POINTS))
    return " ".join(f"{name}={text_of(field)}" for name, field in named)


def text_of(value: Any) -> str:
    """Return a field as text; a tuple as its elements with commas between them."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def is_one(size: Size) -> bool:
    """Return whether a size is the number 1."""
    return isinstance(size, int) and size == 1


class LetteredProblem(Problem):
    """A problem with a letter for each axis; subclasses are frozen dataclasses.

    Attributes
    ----------
    sizes : tuple of (str, int or symbolic)
        Size of each letter.
    """

    sizes: tuple[tuple[str, Size], ...]
    _ordered: ClassVar[tuple[str, ...]]
    """Names of the attributes that are letters in memory order."""

    @property
    def is_static(self) -> bool:
        """Return whether all sizes are numbers."""
        return all(isinstance(size, int) for _, size in self.sizes)

    @cached_property
    def size(self) -> dict[str, Size]:
        """Size by letter."""
        return dict(self.sizes)

    def extent(self, letters: str) -> Size:
        """Return how many combinations of these letters there are."""
        return prod(self.shape(letters), start=1)

    def shape(self, letters: str) -> tuple[Size, ...]:
        """Return the shape of a tensor with these letters."""
        return tuple(self.size[a] for a in letters)

    def anonymous(self) -> Self:
        """See :meth:`Problem.anonymous`."""
        sizes = tuple((a, size if isinstance(size, int) else None) for a, size in self.sizes)
        return replace(self, sizes=sizes)  # type: ignore[type-var]

    def with_sizes(self, fresh: FreshSize) -> Self:
        """See :meth:`Problem.with_sizes`."""
        sizes = tuple((a, fresh(f"size_{a}") if size is None else size) for a, size in self.sizes)
        return replace(self, sizes=sizes)  # type: ignore[type-var]

    def merged(self) -> Self:
        """Return the problem with as few letters as possible: none of size 1 that it does without,
        and neighbours everywhere merged."""
        made = self._without("".join(a for a in self._spared() if is_one(self.size[a])))
        while (pair := next(made._pairs(), None)) is not None:
            kept, gone = pair
            made = made._without(gone, {kept: made.size[kept] * made.size[gone]})
        return made

    def _operands(self) -> Iterator[Argument]:
        """Yield the operands of the epilogue."""
        for number, step in enumerate(step for step in self.epilogue if step.order):
            dtype = step.dtype or self.dtypes[-1]
            yield Argument(f"operand{number}", step.order, self.shape(step.order), dtype)

    def _spared(self) -> Iterable[str]:
        """Return the letters that the problem does without where their size is 1."""
        return self.size

    def _orders(self) -> list[str]:
        """Return the letters of every tensor, in memory order."""
        orders = [getattr(self, name) for name in self._ordered]
        return orders + [step.order for step in self.epilogue]

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield letters that are neighbours in every tensor that has one of them: kept and gone."""
        orders = self._orders()
        for order in orders:
            for one, other in itertools.pairwise(order):
                if all((one + other in a) or not {one, other} & set(a) for a in orders):
                    yield one, other

    def _without(self, gone: str, sizes: dict[str, Size] | None = None) -> Self:
        """Return the problem without some letters, and with other sizes of some."""
        sized = {**self.size, **(sizes or {})}
        orders: dict[str, Any] = {
            name: "".join(a for a in getattr(self, name) if a not in gone) for name in self._ordered
        }
        kept = tuple((a, size) for a, size in sized.items() if a not in gone)
        steps = without_letters(self.epilogue, gone)
        return replace(self, sizes=kept, epilogue=steps, **orders)  # type: ignore[type-var]
