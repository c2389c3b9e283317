# SPDX-License-Identifier: Apache-2.0
"""Tolerances of results against float64, and their reasons."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
"""NumPy dtypes that NumPy does not know by name."""


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of a TVM dtype name."""
    return NUMPY.get(name) or np.dtype(name)


def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of a floating-point dtype."""
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)


def accumulator(first: str, second: str, out: str) -> str:
    """Return the dtype that sums must be accumulated in, by the rule of the design."""
    return "float64" if "float64" in (first, second, out) else "float32"


def assert_close(
    got: np.ndarray,
    want: np.ndarray,
    magnitude: np.ndarray,
    terms: int,
    *,
    dtypes: tuple[str, str, str],
    what: object = "",
) -> None:
    """Compare a sum of products with its float64 value.

    Integers must be equal, wrapped to the output dtype. For floats, ::

        |got - want| <= eps(out) * |want|  +  4 * sqrt(terms) * eps(accumulator) * magnitude

    The first term is the rounding of the result. The second is the rounding while adding: every
    addition errs by at most eps/2 of a partial sum, partial sums are at most ``sum |a||b|``
    (`magnitude`, per element), and independent errors of `terms` additions add up like
    ``sqrt(terms)``; 4 is a margin for the largest of many elements and for products that were
    rounded before. In bfloat16, adding up would be 65536 times worse.

    Parameters
    ----------
    got, want, magnitude : np.ndarray
        The result, the float64 result, and the same with the operands' absolute values.
    terms : int
        Number of products that each element adds up.
    dtypes : tuple of str
        Of the first operand, the second, and the result.
    """
    out = dtypes[2]
    assert got.shape == want.shape, f"{what}: shape {got.shape}, want {want.shape}"
    assert got.dtype == numpy_dtype(out), f"{what}: dtype {got.dtype}, want {out}"
    if np.issubdtype(got.dtype, np.integer):
        wrapped = want.astype(np.int64).astype(got.dtype)
        wrong = got != wrapped
        assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} integers differ"
        return
    acc = epsilon(accumulator(*dtypes))
    limit = (
        epsilon(out) * np.abs(want)
        + 4 * math.sqrt(max(terms, 1)) * acc * magnitude
        + float(ml_dtypes.finfo(numpy_dtype(out)).smallest_subnormal)
    )
    error = np.abs(got.astype(np.float64) - want)
    wrong = ~(error <= limit)
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, error / limit, 0)), error.shape)
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} elements differ; worst at {worst}: "
            f"{got[worst]} instead of {want[worst]}, allowed error {limit[worst]:.3g}"
        )
