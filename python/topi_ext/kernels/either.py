# SPDX-License-Identifier: Apache-2.0
"""The kernel for sizes that are not known: two kernels, one of which runs.

::

    if there are few positions:       the kernel of these: of conv inner.py, of conv_transpose
                                      scatter.py, of a weight gradient weight_columns.py
    else:                             the kernel of all others
"""

from __future__ import annotations

from typing import Any

from .. import emit
from ..plan.plans import (
    ChannelsPlan,
    ColumnsPlan,
    EitherPlan,
    GatherPlan,
    InnerPlan,
    PhasesPlan,
    ScatterPlan,
    WeightGradPlan,
    WeightTilesPlan,
    WinogradPlan,
)
from ..plan.problem import Problem
from . import (
    ATTRIBUTES,
    gather,
    inner,
    phases,
    scatter,
    weight_channels,
    weight_columns,
    weight_grad,
    weight_tiles,
    winograd,
)
from .operands import gather_arguments, weight_grad_arguments

_SMALL: dict[type, Any] = {
    InnerPlan: inner,
    ScatterPlan: scatter,
    ColumnsPlan: weight_columns,
}

_LARGE: dict[type, Any] = {
    GatherPlan: gather,
    WinogradPlan: winograd,
    PhasesPlan: phases,
    WeightGradPlan: weight_grad,
    ChannelsPlan: weight_channels,
    WeightTilesPlan: weight_tiles,
}


def build(problem: Problem, plan: EitherPlan) -> Any:
    """The PrimFunc of the face, scheduled by `plan`."""
    is_weight = problem.face == "conv_weight_grad"
    with emit.kernel(ATTRIBUTES) as made:
        arguments = weight_grad_arguments(problem) if is_weight else gather_arguments(problem)
        with emit.body(*arguments) as operands:
            small = _SMALL[type(plan.small)].kernel_of(problem, plan.small, operands)
            large = _LARGE[type(plan.large)]
            emit.when(
                small.fits(),
                small.emit,
                lambda: large.emit_body(problem, plan.large, operands),
            )
    return made[0]
