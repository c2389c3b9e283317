# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv_transpose`` for sizes that are not known: two kernels, one of which runs.

::

    if an image has few positions:    the kernel of small images, scatter.py
    else:                             the kernel of all others: gather.py, winograd.py or phases.py
"""

from __future__ import annotations

from typing import Any

from .. import emit
from ..plan.plans import EitherPlan, GatherPlan, PhasesPlan, WinogradPlan
from ..plan.problem import Problem
from . import ATTRIBUTES, gather, phases, scatter, winograd
from .operands import gather_arguments

_LARGE = {GatherPlan: gather, WinogradPlan: winograd, PhasesPlan: phases}


def build(problem: Problem, plan: EitherPlan) -> Any:
    """The PrimFunc ``(y, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        with emit.body(*gather_arguments(problem)) as operands:
            large = _LARGE[type(plan.large)]
            small = scatter.kernel_of(problem, plan.small, operands)
            emit.when(
                small.fits(),
                small.emit,
                lambda: large.emit_body(problem, plan.large, operands),
            )
    return made[0]
