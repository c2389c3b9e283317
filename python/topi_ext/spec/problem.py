# SPDX-License-Identifier: Apache-2.0
"""The base of all problems: one operator to be built, of any kind, for any target.

A problem names its kind, states the arguments of its kernel, and knows which of its sizes are
symbolic.  Planners and emitters take a problem; :mod:`topi_ext.backend` builds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from .geometry import Size
from .post_ops import NO_ZERO_POINTS, Epilogue
from .size_hints import Unknown
from .size_rules import Rule

FreshSize = Callable[[str], Size]
"""Make a variable of this name for a size that only run time knows."""


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
    """Return the fields of a dataclass as ``name=value``."""
    pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
    return " ".join(f"{name}={text_of(field)}" for name, field in pairs)


def text_of(value: Any) -> str:
    """Return a field as text; a tuple as its elements with commas between them."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


class LetteredProblem(Problem):
    """A problem whose sizes are pairs of a letter and a number, or a symbolic size."""

    sizes: tuple[tuple[str, Size], ...]

    @property
    def is_static(self) -> bool:
        """Return whether all sizes are numbers."""
        return all(isinstance(size, int) for _, size in self.sizes)

    def anonymous(self) -> Problem:
        """See :meth:`Problem.anonymous`."""
        sizes = tuple((a, size if isinstance(size, int) else None) for a, size in self.sizes)
        return replace(self, sizes=sizes)  # type: ignore[type-var]

    def with_sizes(self, fresh: FreshSize) -> Problem:
        """See :meth:`Problem.with_sizes`."""
        sizes = tuple((a, fresh(f"size_{a}") if size is None else size) for a, size in self.sizes)
        return replace(self, sizes=sizes)  # type: ignore[type-var]
