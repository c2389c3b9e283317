# SPDX-License-Identifier: Apache-2.0
"""Resizes along one axis as sums of elements, for which Relax has no operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from topi_ext.adapters.resizing import Taps
from topi_ext.compat import dtype_name, relax, type_of

R = relax()


def along(emit: Callable[[Any], Any], x: Any, axis: int, terms: Taps) -> Any:
    """Return a tensor whose elements along `axis` are the sums of `terms`."""
    found, result = type_of(x), None
    shape = [-1] + [1] * (found.ndim - axis - 1)
    for indices, weights in terms:
        part = emit(R.op.take(x, R.const(indices, "int64"), axis, mode="clip"))
        if np.any(weights != 1):
            factors = R.const(weights.reshape(shape), dtype_name(found.dtype))
            part = emit(R.op.multiply(part, factors))
        result = part if result is None else emit(R.op.add(result, part))
    return result
