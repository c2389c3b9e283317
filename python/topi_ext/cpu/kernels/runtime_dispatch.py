# SPDX-License-Identifier: Apache-2.0
"""The kernel for symbolic sizes: two kernels, one of which runs.

::

    if there are few positions:       the kernel of these: of conv dot_product, of conv_transpose
                                      gemm_col2im, of a weight gradient wgrad_im2col; of images
                                      that long dilations leave, valid_taps
    else:                             the kernel of all others, or again one of two

It has no product of its own: M, N and K are those of the kernel that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...spec.conv import Convolution
from .. import emit, kernels
from ..emit import Expr, Operand
from ..plan.runtime_dispatch import RuntimeDispatchPlan
from ..registry import KERNELS


def emit_body(problem: Convolution, plan: RuntimeDispatchPlan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    is_small, small = _is_small(problem, plan), None
    if KERNELS.of_plan(plan.small).is_bounded:
        small = kernels.module_of(plan.small).kernel_of(problem, plan.small, operands)
        is_small = emit.both(is_small, small.fits())
    for runs_small in emit.sides(is_small):
        if not runs_small:
            kernels.emit_body(problem, plan.large, operands)
        elif small:
            small.emit()
        else:
            kernels.emit_body(problem, plan.small, operands)


def _is_small(problem: Convolution, plan: RuntimeDispatchPlan) -> Expr:
    """Return whether y has few enough positions for the small kernel."""
    limits = (problem.y_sizes, plan.most), (problem.y_sizes[1:], plan.most_of_image)
    return emit.both(*(prod(sizes) <= most for sizes, most in limits if most is not None))
