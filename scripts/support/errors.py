# SPDX-License-Identifier: Apache-2.0
"""Errors of results, their tolerances, and failures as messages of one line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from topi_ext.spec.dtypes import accumulator


def relative_error(got: Tensor, want: Tensor) -> float | None:
    """``max |got - want| / max |want|``; None where the shapes differ."""
    if got.shape != want.shape:
        return None
    scale = want.abs().max().item() or 1.0
    return (got.to(want.dtype) - want).abs().max().item() / scale


def allowed(terms: int, dtype: str) -> float:
    """Return the error that rounding explains: of the result, and of a sum of `terms` products.

    Independent roundings of the sum add up like ``sqrt(terms)``; one missing product of normally
    distributed numbers stands out as about ``1 / (4.5 sqrt(terms))``.
    """
    accumulating = getattr(torch, accumulator("bench", dtype, dtype, dtype))
    eps = torch.finfo(getattr(torch, dtype)).eps
    return 2 * eps + 2 * math.sqrt(terms) * torch.finfo(accumulating).eps


def finite(value: float | None) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if value is not None and math.isfinite(value) else None


def one_line(error: BaseException) -> str:
    """Return the last line of a message that says something: TVM puts its traceback first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160]
