# SPDX-License-Identifier: Apache-2.0
"""The kernel for sizes that are not known: two kernels, one of which runs.

::

    if there are few positions:       the kernel of these: of conv inner.py, of conv_transpose
                                      scatter.py, of a weight gradient weight_columns.py; of images
                                      that long dilations leave, clipped.py
    else:                             the kernel of all others, or again one of two
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from .. import emit
from ..emit import Expr, Operand
from ..plan.clipped import ClippedPlan
from ..plan.either import EitherPlan
from ..plan.gather import GatherPlan
from ..plan.inner import InnerPlan
from ..plan.phases import PhasesPlan
from ..plan.problem import Problem
from ..plan.scatter import ScatterPlan
from ..plan.weight_channels import ChannelsPlan
from ..plan.weight_columns import ColumnsPlan
from ..plan.weight_grad import WeightGradPlan
from ..plan.weight_tiles import WeightTilesPlan
from ..plan.window import Plan
from ..plan.winograd import WinogradPlan
from . import (
    ATTRIBUTES,
    clipped,
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
    ClippedPlan: clipped,
    ColumnsPlan: weight_columns,
}

_LARGE: dict[type, Any] = {
    GatherPlan: gather,
    WinogradPlan: winograd,
    PhasesPlan: phases,
    ClippedPlan: clipped,
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
            emit_body(problem, plan, operands)
    return made[0]


def emit_body(problem: Problem, plan: Plan, operands: Sequence[Operand]) -> None:
    """What that PrimFunc does, with its arguments as `operands`, or one of its two kernels."""
    if not isinstance(plan, EitherPlan):
        _LARGE[type(plan)].emit_body(problem, plan, operands)
        return
    is_small = _is_small(problem, plan)
    if type(plan.small) in _SMALL:
        kernel = _SMALL[type(plan.small)].kernel_of(problem, plan.small, operands)
        small, is_small = kernel.emit, emit.both(is_small, kernel.fits())
    else:
        small = partial(emit_body, problem, plan.small, operands)
    emit.when(is_small, small, lambda: emit_body(problem, plan.large, operands))


def _is_small(problem: Problem, plan: EitherPlan) -> Expr:
    """Whether there are so few positions of y."""
    limits = (problem.y_sizes, plan.most), (problem.y_sizes[1:], plan.most_of_image)
    return emit.both(*(prod(sizes) <= most for sizes, most in limits if most is not None))
