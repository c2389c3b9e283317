# SPDX-License-Identifier: Apache-2.0
"""Batch normalization by the statistics of the batch, and in mixed dtypes, for every importer.

Relay's ``nn.batch_norm`` normalizes by the statistics that it is given, in one dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from topi_ext.compat import relay
from topi_ext.spec.dtypes import byte_width

R = relay()


class Normalized(NamedTuple):
    """The result of a normalization, and the statistics of the batch.

    Attributes
    ----------
    data : relay.Expr
        The normalized data.
    mean, variance : relay.Expr
        Vectors of one number per channel; the variance is the biased one.
    """

    data: Any
    mean: Any
    variance: Any


def by_batch(
    data: Any, scale: Any, offset: Any, *, axis: int, rank: int, epsilon: float
) -> Normalized:
    """Normalize by the mean and variance of the batch: ``(x - mean) / sqrt(variance + epsilon)``.

    Parameters
    ----------
    data : relay.Expr
        Data with `rank` axes.
    scale, offset : relay.Expr or None
        Factor and summand per channel; None is 1 and 0.
    axis : int
        The axis of the channels, counted from the front.
    rank : int
        Number of axes of `data`.
    epsilon : float
        Added to the variance.
    """
    dtype = dtype_of(data)
    others = [other for other in range(rank) if other != axis]
    mean = R.mean(data, others, keepdims=True)
    variance = R.variance(data, others, keepdims=True, with_mean=mean)

    def per_channel(vector: Any) -> Any:
        return R.reshape(vector, (-1, *(1,) * (rank - 1 - axis)))

    factor = R.rsqrt(R.add(variance, R.const(epsilon, dtype)))
    if scale is not None:
        factor = R.multiply(factor, per_channel(scale))
    result = R.multiply(R.subtract(data, mean), factor)
    if offset is not None:
        result = R.add(result, per_channel(offset))
    return Normalized(result, R.squeeze(mean, others), R.squeeze(variance, others))


def arithmetic_dtype(operands: Sequence[Any]) -> str:
    """Return the widest dtype of some operands, and at least float32."""
    dtypes = ["float32", *map(dtype_of, operands)]
    return max(dtypes, key=byte_width)


def dtype_of(expr: Any) -> str:
    """Return the dtype of an expression."""
    return str(R.frontend.common.infer_type(expr).checked_type.dtype)


def cast(expr: Any, dtype: str) -> Any:
    """Return an expression in a dtype, itself where it is of that dtype."""
    return expr if dtype_of(expr) == dtype else R.cast(expr, dtype)
