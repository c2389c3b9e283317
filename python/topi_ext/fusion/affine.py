# SPDX-License-Identifier: Apache-2.0
"""Additions and multiplications by known values as one multiplication and one addition.

A batch norm of inference is four post-ops, one of which divides each element::

    ((x - mean) / sqrt(variance + epsilon)) * gamma + beta  =  x * scale + shift

Both are computed in float64 and rounded once to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..spec.conv import Convolution
from ..spec.post_ops import PostOp
from .post_ops import Step, is_normal

AFFINE = ("add", "subtract", "multiply", "divide")


def merged(steps: Sequence[Step], values: Sequence[np.ndarray | None], dtype: str) -> list[Step]:
    """Return post-ops whose runs of additions and multiplications by known values are two steps.

    Parameters
    ----------
    steps : sequence of (PostOp, operand)
        Post-ops of a floating-point result.
    values : sequence of array or None
        Right operand of each step, if it is known: it broadcasts against the result.
    dtype : str
        Dtype of the result.
    """
    cuts = {step.earlier for step, _ in steps if step.earlier is not None}
    found: list[Step] = []
    numbers = [0]  # how many post-ops there are after each step
    start = 0
    while start < len(steps):
        end = start
        while end < len(steps) and values[end] is not None and (end == start or end not in cuts):
            end += 1
        run = _two(steps[start:end], values[start:end], dtype) if end - start > 2 else None
        if run is None:
            run, end = [_renumbered(steps[start], numbers)], start + 1
        found += run
        numbers += [len(found)] * (end - start)
        start = end
    return found


def _renumbered(step: Step, numbers: Sequence[int]) -> Step:
    """Return a step that reads the same earlier value."""
    post_op, operand = step
    if post_op.earlier is None:
        return step
    return replace(post_op, earlier=numbers[post_op.earlier]), operand


def _two(
    steps: Sequence[Step], values: Sequence[np.ndarray | None], dtype: str
) -> list[Step] | None:
    """Return a multiplication and an addition; None if they would lose accuracy."""
    scale, shift = np.ones(()), np.zeros(())
    with np.errstate(all="ignore"):
        for (step, _), value in zip(steps, values):
            known = np.asarray(value, "float64")
            if step.op in ("add", "subtract"):
                shift = shift + (known if step.op == "add" else -known)
                continue
            scale = scale * known if step.op == "multiply" else scale / known
            shift = shift * known if step.op == "multiply" else shift / known
    sums = "float64" if dtype == "float64" else "float32"
    if not (is_normal(scale, sums) and is_normal(shift, sums) and np.all(scale)):
        return None
    operands = [step for step, _ in steps if step.order]
    if len({step.varies for step in operands}) != 1:
        return None
    order = max((step.order for step in operands), key=len)
    found: list[Step] = []
    for op, array in (("multiply", scale), ("add", shift)):
        step = PostOp(op, order, operands[0].varies, dtype="" if sums == dtype else sums)
        if array.size == 1:
            found.append((PostOp(op, value=float(array.reshape(()))), None))
        else:
            found.append((step, np.ascontiguousarray(array, sums)))
    return found


def scaled_weight(base: Convolution, weight: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """Return float32 weights of a convolution whose result is multiplied by `scale`.

    Parameters
    ----------
    base : Convolution
    weight : array
        As stored.
    scale : array
        One number for each channel of the result.

    Returns
    -------
    array or None
        None if products are outside the normal range.
    """
    g, letters = base.geometry, base.layouts.w
    factor = scale.astype("float64").reshape(-1, 1)
    if base.transposed:
        factor = np.repeat(factor.reshape(g.groups, g.c_per_group), g.k_per_group, axis=0)
    # Axes O and I come first in `factor`, in the order of `letters` in the product.
    axes = {"O": factor.shape[0], "I": factor.shape[1]}
    if letters.index("I") < letters.index("O"):
        factor = factor.T
    product = weight.astype("float64") * factor.reshape([axes.get(one, 1) for one in letters])
    return product.astype("float32") if is_normal(product) else None
