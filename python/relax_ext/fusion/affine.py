# SPDX-License-Identifier: Apache-2.0
"""Batch norms of inference as one multiplication and one addition, or only as an addition if
constant float32 weights include the factor; see :mod:`topi_ext.fusion.affine`."""

from __future__ import annotations

import numpy as np

from topi_ext.compat import constant_value, relax
from topi_ext.fusion.affine import AFFINE, merged, scaled_weight
from topi_ext.fusion.anchors import ConvAnchor
from topi_ext.fusion.post_ops import Step
from topi_ext.spec.conv import Convolution
from topi_ext.spec.post_ops import PostOp

from .chains import Chain
from .constants import value_of
from .patterns import Lookup

R = relax()


def merge_affine(chain: Chain) -> None:
    """Merge scales and shifts of a convolution's chain whose values are known."""
    anchor = chain.anchor
    if not isinstance(anchor, ConvAnchor) or anchor.sums_integers:
        return

    def change(steps: list[Step]) -> list[Step]:
        values = [_known(step, chain.lookup) for step in steps]
        steps = merged(steps, values, anchor.dtype)
        if steps and _scale_weight(chain, anchor.base, steps):
            steps[0] = PostOp("multiply", value=1.0), None  # which `simplify` removes
        return steps

    chain.replace_steps(change)
    chain.simplify()


def _known(step_and_operand: Step, lookup: Lookup) -> np.ndarray | None:
    """Return the operand that a step adds or multiplies by, if it is known."""
    step, operand = step_and_operand
    if step.op not in AFFINE or step.earlier is not None:
        return None
    return value_of(operand, lookup) if step.order else np.asarray(step.value)


def _scale_weight(chain: Chain, base: Convolution, steps: list[Step]) -> bool:
    """Multiply constant weights by the factor of the first step, if it is known."""
    data, weight = chain.match.inputs
    constant, (step, factor) = constant_value(weight), steps[0]
    if constant is None or base.dtypes != ("float32",) * 3 or not isinstance(factor, np.ndarray):
        return False
    if step.op != "multiply" or step.varies != "C" or any(one.earlier == 0 for one, _ in steps):
        return False
    scaled = scaled_weight(base, constant.numpy(), factor)
    if scaled is None:
        return False
    chain.match = chain.match._replace(inputs=(data, R.const(scaled)))
    return True
