# SPDX-License-Identifier: Apache-2.0
"""Precision of float32 products, where a target has more than one implementation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PRECISIONS = ("float32", "tf32x3")

_asked: ContextVar[str] = ContextVar("float32_precision", default=PRECISIONS[0])


@contextmanager
def float32_precision(name: str) -> Iterator[None]:
    """Allow code that is compiled inside the block to multiply float32 by ``"tf32x3"``.

    Tensor cores of GPUs since Ampere then multiply each pair of numbers as three products of TF32,
    which keep 21 bits: errors are those of sums in float32, and up to twice as large where a sum
    has few terms.  An infinite operand gives NaN.  Without it, and on other targets, float32 is
    multiplied by the lanes of float32.

    Parameters
    ----------
    name : {"float32", "tf32x3"}

    Raises
    ------
    ValueError
        For an unknown name.
    """
    if name not in PRECISIONS:
        raise ValueError(f"float32_precision: {name!r} must be one of {', '.join(PRECISIONS)}")
    before = _asked.set(name)
    try:
        yield
    finally:
        _asked.reset(before)


def may_use_tf32() -> bool:
    """Return whether ``"tf32x3"`` is enabled."""
    return _asked.get() == "tf32x3"
