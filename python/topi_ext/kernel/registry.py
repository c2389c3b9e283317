# SPDX-License-Identifier: Apache-2.0
"""The kernels of a target: rows of a registry, for processors and for GPUs alike.

A row ties a kernel's name to the kinds that it serves, to the class of its plans and to what plans
it.  An operator gets the plan of the lowest estimated cost among all rows that serve its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..spec.problem import Problem
from .selection import ALL, Selection

MachineT = TypeVar("MachineT")


class Plan:
    """The parameters of a kernel for one problem: blocks, register tiles, order of loops.

    Every plan that a planner proposes computes the same, whichever is the fastest.
    """

    @property
    def subplans(self) -> tuple[Plan, ...]:
        """Plans of other kernels that this one runs."""
        return ()


class Refused(Exception):  # noqa: N818 - an answer, which reaches no user as an error
    """A kernel does not serve a problem; the text is the rule that the problem breaks."""


def require(holds: bool, rule: str) -> None:
    """Raise :class:`Refused` with this `rule` unless it holds."""
    if not holds:
        raise Refused(rule)


Costed = tuple[float, Any]
"""An estimated cost, in the unit of the target, and a plan; NaN where nothing was estimated."""

Planned = TypeVar("Planned")

Rated = tuple[Any, Sequence[float]]
"""A plan for symbolic sizes, and its estimated cost for each of some known sizes."""

DynamicPlans = Callable[[Any, Sequence[Any], Any], Iterable[Rated]]
"""Function of a problem with symbolic sizes, the same with known sizes, and a machine: plans."""


@dataclass(frozen=True)
class DynamicShapes:
    """Planner of a kernel for sizes that are known only at run time.

    Attributes
    ----------
    kinds : tuple of str
        Kinds whose planner accepts symbolic sizes like known ones.
    is_contested : bool
        Whether plans of other kernels are rated against the one that its planner proposes.
    few : DynamicPlans, optional
        Plans with a workspace for few positions only: chosen at run time where these fit.
    many : DynamicPlans, optional
        Plans for any number of positions.
    large : DynamicPlans, optional
        Plans that pay from some number of positions on; they have ``from_positions(problem,
        positions, machine)``, which makes them serve fewer by another kernel.
    unpadded : DynamicPlans, optional
        Plans that leave out products with padding, in place of others for small images; their
        ``room`` is the number of positions that a task holds, 0 for images of known size.
    may_be_one_of_two : bool
        Whether its plan of `many` may also serve small sizes beside a plan for all others.
    """

    kinds: tuple[str, ...] = ()
    is_contested: bool = False
    few: DynamicPlans | None = None
    many: DynamicPlans | None = None
    large: DynamicPlans | None = None
    unpadded: DynamicPlans | None = None
    may_be_one_of_two: bool = False


STATIC = DynamicShapes()
"""For kernels that serve known sizes only."""


@dataclass(frozen=True)
class Kernel(Generic[MachineT]):
    """One kernel.

    Attributes
    ----------
    name : str
        Name of its modules in ``plan/`` and in ``kernels/``.
    plan : type
        Class of its plans.
    kinds : tuple of str
        Kinds of operators that it serves.
    candidates : callable, optional
        ``candidates(problem, machine)``: all plans that are compared, each with its estimated
        cost; raises :class:`Refused` for a problem that it does not serve.  Left out for a kernel
        that only runs others.
    planner : callable, optional
        ``planner(problem, machine)``: the best plan and its cost, where another than the cheapest
        candidate is taken, or where it is found sooner.
    dynamic : DynamicShapes
    prepacks : bool
        Whether it may find its weights packed.
    is_bounded : bool
        Whether its workspace holds so many positions only: the kernel asks when it runs whether
        they fit.
    """

    name: str
    plan: type[Plan]
    kinds: tuple[str, ...]
    candidates: Callable[[Any, MachineT], Iterable[Costed]] | None = None
    planner: Callable[[Any, MachineT], Costed] | None = None
    dynamic: DynamicShapes = STATIC
    prepacks: bool = False
    is_bounded: bool = False

    def cheapest(self, problem: Problem, machine: MachineT) -> Costed | Refused:
        """Return the best plan and its estimated cost, or why the problem is not served."""
        try:
            is_planned = problem.is_static or problem.kind in self.dynamic.kinds
            require(is_planned, "sizes must be known")
            if self.planner is not None:
                return self.planner(problem, machine)
            plans = self.candidates(problem, machine) if self.candidates else ()
            found = min(plans, key=cost_of, default=None)
            return found or Refused("no plan has room for its operands")
        except Refused as refused:
            return refused


def cost_of(costed: Costed) -> float:
    """Return the cost of a pair of cost and plan, to order them."""
    return costed[0]


def accepted(plans: Iterable[Planned]) -> Iterator[Planned]:
    """Yield the plans of a planner; none where it refuses the problem."""
    with suppress(Refused):
        yield from plans


class Registry(Generic[MachineT]):
    """The kernels of one kind of target.

    Parameters
    ----------
    kernels : Kernel
        Among plans of equal cost, that of the first kernel is chosen.
    """

    def __init__(self, *kernels: Kernel[MachineT]) -> None:
        self.kernels = kernels
        self._of_plan = {kernel.plan: kernel for kernel in kernels}

    def __iter__(self) -> Iterator[Kernel[MachineT]]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __contains__(self, kernel: object) -> bool:
        return kernel in self.kernels

    @contextmanager
    def added(self, kernel: Kernel[MachineT]) -> Iterator[None]:
        """Register another kernel inside the block; chosen plans are remembered."""
        before = self.kernels
        self.kernels, self._of_plan[kernel.plan] = (*before, kernel), kernel
        try:
            yield
        finally:
            self.kernels = before
            del self._of_plan[kernel.plan]

    def of_kind(self, *kinds: str) -> list[Kernel[MachineT]]:
        """Return the kernels that serve one of these kinds of operators."""
        return [kernel for kernel in self.kernels if set(kinds) & set(kernel.kinds)]

    def of_plan(self, plan: Plan) -> Kernel[MachineT]:
        """Return the kernel of a plan."""
        return self._of_plan[type(plan)]

    def serves(self, kind: str) -> bool:
        """Return whether a kernel for a kind of operator can be chosen."""
        return any(kernel.planner or kernel.candidates for kernel in self.of_kind(kind))

    def label(self, plan: Plan) -> str:
        """Return the name of a plan's kernel, with those that it runs in parentheses."""
        parts = ", ".join(map(self.label, plan.subplans))
        return f"{self.of_plan(plan).name}({parts})" if parts else self.of_plan(plan).name

    def candidates(
        self, problem: Problem, machine: MachineT, selection: Selection = ALL
    ) -> Iterator[Costed]:
        """Yield every plan of the selected kernels for a problem, with its estimated cost."""
        for kernel in self.of_kind(problem.kind):
            if kernel.candidates is not None and selection.allows(kernel.name):
                yield from accepted(kernel.candidates(problem, machine))

    def proposals(
        self, problem: Problem, machine: MachineT, selection: Selection = ALL
    ) -> list[Costed]:
        """Return the best plan of each selected kernel that serves a problem, and its cost."""
        verdicts = (found for _, found in self.verdicts(problem, machine, selection))
        return [found for found in verdicts if not isinstance(found, Refused)]

    def verdicts(
        self, problem: Problem, machine: MachineT, selection: Selection = ALL
    ) -> Iterator[tuple[str, Costed | Refused]]:
        """Yield the name of each selected kernel of the problem's kind with its best plan, or with
        the reason why it does not serve the problem.
        """
        for kernel in self.of_kind(problem.kind):
            if selection.allows(kernel.name) and (kernel.planner or kernel.candidates):
                yield kernel.name, kernel.cheapest(problem, machine)
