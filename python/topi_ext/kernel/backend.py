# SPDX-License-Identifier: Apache-2.0
"""The base of backends: each builds the kernels of one kind of target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from ..spec.post_ops import ZeroPoints
from ..spec.problem import Problem
from ..spec.size_rules import Rule
from .database import plain
from .info import KernelInfo, with_info
from .registry import Costed, MachineT, Refused
from .selection import ALL, Selection

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..emit.arguments import Packed
    from ..emit.functions import Functions


class Choice(NamedTuple):
    """A plan, and where it comes from.

    Attributes
    ----------
    plan : plan
    estimate : float or None
        Estimated time, by the cost model.
    origin : str
        As :class:`~topi_ext.kernel.info.KernelInfo` has it.
    """

    plan: Any
    estimate: float | None = None
    origin: str = "estimate"


@dataclass(frozen=True)
class Backend(Generic[MachineT]):
    """Builds kernels for one machine: equal ones build equal kernels.

    It gets only problems of kinds that it supports, and only plans of its own.

    Attributes
    ----------
    machine : machine
    selection : Selection
        Kernels that may be chosen.
    functions : Functions
        Emitters of the kernels, and their registry.
    unit : str
        Unit of estimates.
    """

    machine: MachineT
    selection: Selection = ALL

    functions: ClassVar[Functions]
    unit: ClassVar[str] = "cycles"

    @classmethod
    def of(cls, target: Any, selection: Selection = ALL) -> Self | None:
        """Return the backend of a target; None for one that it does not know."""
        raise NotImplementedError

    def choice(self, problem: Problem) -> Choice:
        """Return the plan that is built, with its origin and its estimate."""
        raise NotImplementedError

    def build(self, problem: Problem, plan: Any = None) -> Any:
        """Return the PrimFunc of the kernel with this `plan`, one of :meth:`candidates`; of the
        fastest one without.

        Raises
        ------
        ValueError
            Where known sizes break one of :meth:`rules`; of symbolic ones the function asks when it
            runs.
        """
        for holds, line in self.rules(problem):
            if holds is False:
                raise ValueError(line)
        choice = self.choice(problem) if plan is None else Choice(plan, None, "given")
        info = KernelInfo(
            problem.kind,
            problem.shape_text,
            tuple(problem.dtypes),
            tuple(step.op for step in problem.epilogue),
            self.functions.registry.label(choice.plan),
            plain(choice.plan),
            choice.estimate,
            self.unit,
            choice.origin,
        )
        return with_info(self.functions.build(problem, choice.plan), info)

    def build_packing(self, problem: Problem, plan: Any = None) -> tuple[Any, Packed] | None:
        """Return the PrimFunc that packs the weights of that kernel, and what it writes; None where
        the kernel reads weights as they are.
        """
        plan = self.choice(problem).plan if plan is None else plan
        packed = self.functions.packed_weights(problem, plan)
        return packed and (self.functions.build_packing(problem, plan), packed)

    def candidates(self, problem: Problem) -> Iterator[Costed]:
        """Yield every plan that is compared for a problem, with its estimated cost."""
        return self.functions.registry.candidates(problem, self.machine)

    def verdicts(self, problem: Problem) -> Iterator[str]:
        """Yield for each kernel of the problem's kind its estimate, or why it was refused; symbolic
        sizes are taken for 256.
        """
        known = problem.of_nominal_sizes().canonical()
        for name, found in self.functions.registry.verdicts(known, self.machine, self.selection):
            if isinstance(found, Refused):
                yield f"{name} refused: {found}"
            else:
                yield f"{name} estimated {found[0]:.3g} {self.unit}"

    def supports(self, kind: str) -> bool:
        """Return whether there are kernels for a kind of operator."""
        return self.functions.registry.serves(kind)

    def fuses(self, zero_points: ZeroPoints) -> bool:
        """Return whether kernels subtract these zero points."""
        return True

    def rules(self, problem: Problem) -> list[Rule]:
        """Return the rules for sizes that hold in addition to those of every target."""
        return []
