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

from ...emit.arguments import gather_arguments, weight_grad_arguments
from ...problem import Problem
from .. import emit
from ..emit import ATTRIBUTES, Expr, Operand
from ..plan.direct import GatherPlan
from ..plan.dot_product import InnerPlan
from ..plan.gemm_col2im import ScatterPlan
from ..plan.phase_lanes import PhasesPlan
from ..plan.runtime_dispatch import EitherPlan
from ..plan.valid_taps import ClippedPlan
from ..plan.wgrad_channels import ChannelsPlan
from ..plan.wgrad_im2col import ColumnsPlan
from ..plan.wgrad_positions import WeightGradPlan
from ..plan.wgrad_winograd import WeightTilesPlan
from ..plan.window import Plan
from ..plan.winograd import WinogradPlan
from . import (
    direct,
    dot_product,
    gemm_col2im,
    phase_lanes,
    valid_taps,
    wgrad_channels,
    wgrad_im2col,
    wgrad_positions,
    wgrad_winograd,
    winograd,
)

_SMALL: dict[type, Any] = {
    InnerPlan: dot_product,
    ScatterPlan: gemm_col2im,
    ClippedPlan: valid_taps,
    ColumnsPlan: wgrad_im2col,
}

_LARGE: dict[type, Any] = {
    GatherPlan: direct,
    WinogradPlan: winograd,
    PhasesPlan: phase_lanes,
    ClippedPlan: valid_taps,
    WeightGradPlan: wgrad_positions,
    ChannelsPlan: wgrad_channels,
    WeightTilesPlan: wgrad_winograd,
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
