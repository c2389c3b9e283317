# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``conv`` and ``conv_transpose`` of bfloat16 for processors with AVX512-BF16.

The loop nest of :mod:`topi_ext.cpu.kernels.direct`, with a pair of input channels in each lane of
its panel and in each of its weights::

    for each pair of input channels, for each tap of the phase:
        accumulators[channels][vectors] += even weight * even lane + odd weight * odd lane

One instruction does both: twice the products of float32 in the same time, from half the bytes.

The matrix product is that of the direct kernel, with pairs along K, in both operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...emit.arguments import Packed, weight_index
from ...spec.conv import Convolution
from ..emit import Expr, Operand
from ..isa.dot_bf16 import PAIR, Pairs, add_products, instruction, pair
from ..parts.direct_weights import DirectWeights, Steps
from ..plan.direct_dot_bf16 import DirectDotBf16Plan
from .direct import Direct


def emit_body(problem: Convolution, plan: DirectDotBf16Plan, operands: Sequence[Operand]) -> None:
    """Emit the body of the PrimFunc, whose arguments are `operands`."""
    data, weight, *extra, out = operands
    weights = DotWeights(problem, plan.gather, weight)
    with instruction():
        DirectDot(problem, plan.gather, weights, Pairs(data), out, extra).emit()


def packed_weights(problem: Convolution, plan: DirectDotBf16Plan) -> Packed:
    """Return size and dtype of the packed weights."""
    return DotWeights(problem, plan.gather).packed


def pack_weights(
    problem: Convolution, plan: DirectDotBf16Plan, weight: Operand, packed: Operand
) -> None:
    """Emit the packing of the weights."""
    DotWeights(problem, plan.gather, weight).pack(packed)


class DotWeights(DirectWeights):
    """Weights in pairs of input channels."""

    def _steps(self) -> Steps:
        """Return the steps: one pair of input channels each."""
        return Steps(self.problem.in_channels // 2, 1, PAIR, self.plan.channels, PAIR)

    def _present_weight(
        self, group: Expr, step: Expr, out_channel: Expr, taps: Sequence[Expr]
    ) -> Expr:
        even, odd = (
            weight_index(self.problem, self.weight, group, 2 * step + i, out_channel, taps)
            for i in range(2)
        )
        return pair(self.weight[even], self.weight[odd])


class DirectDot(Direct):
    """The emitter of one kernel."""

    def _add(self, acc: Expr, weight: Expr, row: Expr) -> Expr:
        return add_products(acc, weight, row)
