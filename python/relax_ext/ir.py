# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of Relax expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.compat import dtype_name, known_shape, same_size, tensor_type_of

HALF = ("float16", "bfloat16")


def dtype_of(expr: Any) -> str:
    """Return the dtype of a normalized tensor, "" of an expression that is none."""
    tensor = tensor_type_of(expr)
    return "" if tensor is None else dtype_name(tensor.dtype)


def shape_of(expr: Any) -> tuple[Any, ...] | None:
    """Return the shape of a normalized tensor, or None where it is not known."""
    tensor = tensor_type_of(expr)
    return None if tensor is None else known_shape(tensor.shape)


def sizes_of(tensor: Any) -> tuple[Any, ...]:
    """Return the shape of a tensor, which is known."""
    shape = shape_of(tensor)
    assert shape is not None
    return shape


def are_same(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes are known to be equal."""
    return len(shape) == len(other) and all(map(same_size, shape, other))
