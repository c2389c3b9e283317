# SPDX-License-Identifier: Apache-2.0
"""Loads of bfloat16 vectors as float32.

TVM has no vectors of bfloat16.  A float32 whose upper half is the number is the number, so a few
lines of LLVM's language read and widen as many as a vector has lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ... import compat
from ...spec.dtypes import byte_width
from .. import emit
from ..emit import Array, Expr

_WIDEN = "topi_ext_widen"


@contextmanager
def instructions(lanes: int) -> Iterator[None]:
    """Statements inside may call :func:`widened` with vectors of `lanes`."""
    half, whole = f"<{lanes} x i16>", f"<{lanes} x i32>"
    shifts = ", ".join(["i32 16"] * lanes)
    text = f"""
define <{lanes} x float> @{_WIDEN}{lanes}(ptr %place) {{
  %halves = load {half}, ptr %place, align 2
  %wide = zext {half} %halves to {whole}
  %bits = shl {whole} %wide, <{shifts}>
  %value = bitcast {whole} %bits to <{lanes} x float>
  ret <{lanes} x float> %value
}}
"""
    with compat.imported_llvm(text):
        yield


def widened(array: Array, start: Expr, lanes: int) -> Expr:
    """Return the `lanes` neighbours from `start` on of an array of bfloat16, which nothing
    writes.
    """
    place = compat.address(array.buffer, emit.wide(start) * byte_width(array.dtype))
    return compat.extern_value(f"float32x{lanes}", f"{_WIDEN}{lanes}", place)
