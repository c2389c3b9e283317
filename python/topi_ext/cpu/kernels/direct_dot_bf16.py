# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of bfloat16 for processors with AVX512-BF16.

The loop nest of :mod:`topi_ext.kernels.gather`, with a pair of input channels in each lane of its
panel and in each of its weights::

    for each pair of input channels, for each tap of the phase:
        sums[channels][vectors] += even weight * even lane + odd weight * odd lane

One instruction does both: twice the products of float32 in the same time, from half the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...emit.arguments import Packed, conv_arguments, packed_weight, stored_weight, weight_index
from ...problem import Problem
from .. import emit
from ..emit import ATTRIBUTES, Expr
from ..isa.dot_bf16 import PAIR, Pairs, add_products, instruction, pair
from ..plan.direct_dot_bf16 import DirectDotPlan
from .direct import Direct, Steps


def build(problem: Problem, plan: DirectDotPlan) -> Any:
    """The PrimFunc ``(data, weight, *operands of the epilogue, out)``, scheduled by `plan`."""
    with emit.kernel(ATTRIBUTES) as made:
        packed = packed_weights(problem, plan) if problem.prepacked else None
        with emit.body(*conv_arguments(problem, packed)) as (data, weight, *extra, out):
            ours = DirectDot(problem, plan.gather, weight, Pairs(data), out, extra)
            with instruction():
                ours.emit()
    return made[0]


def is_prepacked(problem: Problem, plan: DirectDotPlan) -> bool:
    """Whether the kernel wants its weights as :func:`build_packing` writes them."""
    return problem.prepacked


def build_packing(problem: Problem, plan: DirectDotPlan) -> Any:
    """The PrimFunc ``(weight, packed)`` that packs weights for the kernel of the same plan."""
    with emit.kernel(ATTRIBUTES) as made:
        arguments = stored_weight(problem), packed_weight(packed_weights(problem, plan))
        with emit.body(*arguments) as (weight, packed):
            DirectDot(problem, plan.gather, weight).pack_weights(packed)
    return made[0]


def packed_weights(problem: Problem, plan: DirectDotPlan) -> Packed:
    """What the packed weights are."""
    return Packed(DirectDot(problem, plan.gather).packed_elements, PAIR)


class DirectDot(Direct):
    """One kernel while it is being emitted."""

    def _steps(self) -> Steps:
        """A pair of input channels at a time."""
        return Steps(self.problem.in_channels // 2, 1, PAIR, self.plan.channels, PAIR)

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        even, odd = (
            weight_index(self.problem, self.weight, group, 2 * step + i, out_channel, taps)
            for i in range(2)
        )
        return pair(self.weight[even], self.weight[odd])

    def _add_products(self, sums: Expr, weight: Expr, row: Expr) -> Expr:
        return add_products(sums, weight, row)
