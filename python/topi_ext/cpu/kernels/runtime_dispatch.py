# SPDX-License-Identifier: Apache-2.0
"""The kernel for sizes that are not known: two kernels, one of which runs.

::

    if there are few positions:       the kernel of these: of conv dot_product, of conv_transpose
                                      gemm_col2im, of a weight gradient wgrad_im2col; of images
                                      that long dilations leave, valid_taps
    else:                             the kernel of all others, or again one of two

It has no product of its own: M, N and K are those of the kernel that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from ...problem import Problem
from .. import emit, kernels
from ..emit import Expr, Operand
from ..plan.runtime_dispatch import DispatchPlan
from ..registry import KERNELS


def emit_body(problem: Problem, plan: DispatchPlan, operands: Sequence[Operand]) -> None:
    """What the PrimFunc does, with its arguments as `operands`."""
    is_small = _is_small(problem, plan)
    if KERNELS.of_plan(plan.small).is_bounded:
        kernel = kernels.module_of(plan.small).kernel_of(problem, plan.small, operands)
        small, is_small = kernel.emit, emit.both(is_small, kernel.fits())
    else:
        small = partial(kernels.emit_body, problem, plan.small, operands)
    emit.when(is_small, small, lambda: kernels.emit_body(problem, plan.large, operands))


def _is_small(problem: Problem, plan: DispatchPlan) -> Expr:
    """Whether there are so few positions of y."""
    limits = (problem.y_sizes, plan.most), (problem.y_sizes[1:], plan.most_of_image)
    return emit.both(*(prod(sizes) <= most for sizes, most in limits if most is not None))
