# SPDX-License-Identifier: Apache-2.0
"""The plan of two kernels, one of which is chosen by the sizes at run time."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Plan


@dataclass(frozen=True)
class RuntimeDispatchPlan(Plan):
    """Plan for symbolic sizes, which choose one of two when the kernel runs.

    Attributes
    ----------
    small : Plan
        For no more than so many positions of y, where it has room for them.
    large : Plan
        For everything else: of any size.
    most, most_of_image : int, optional
        Limits for all images together, and for each; None for no limit.
    """

    small: Plan
    large: Plan
    most: int | None = None
    most_of_image: int | None = None

    @property
    def subplans(self) -> tuple[Plan, ...]:
        """See :class:`~.base.Plan`."""
        return self.small, self.large
