# SPDX-License-Identifier: Apache-2.0
"""The plan that was chosen for a problem, and its description."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..spec.post_ops import Epilogue
from ..tuning.database import plain
from .info import KernelInfo


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


class Described(Protocol):
    """Properties that every problem states."""

    @property
    def kind(self) -> str:
        """Kind of operator."""

    @property
    def shape_text(self) -> str:
        """Sizes of operands and result."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of operands and result."""

    @property
    def epilogue(self) -> Epilogue:
        """Post-ops that are applied to the result before it is written."""


def info(problem: Described, kernel: str, choice: Choice, unit: str = "cycles") -> KernelInfo:
    """Return the info of the kernel that is built for a problem by a plan."""
    return KernelInfo(
        problem.kind,
        problem.shape_text,
        tuple(problem.dtypes),
        tuple(step.op for step in problem.epilogue),
        kernel,
        plain(choice.plan),
        choice.estimate,
        unit,
        choice.origin,
    )
