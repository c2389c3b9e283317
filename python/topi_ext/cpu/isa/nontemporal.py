# SPDX-License-Identifier: Apache-2.0
"""Non-temporal stores.

Before a processor writes into a cache line that it does not hold, it reads it.  A result that no
cache has room for is written twice as fast by stores that fill whole lines and leave the caches
alone.  A result of half precision is narrowed on the way.  Such stores may become visible late:
:func:`settle` waits for them.

Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Non-temporal Stores".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ... import compat
from ...spec.dtypes import byte_width
from .. import emit
from ..emit import Array, Expr

_TYPES = {"float32": "float", "float64": "double"}

_NARROWED = {
    "float16": ("half", """
  %narrow = fptrunc <{n} x float> %value to <{n} x half>"""),
    # To the nearest, of two that are as near to the even one, as TVM rounds.
    "bfloat16": ("i16", """
  %bits = bitcast <{n} x float> %value to <{n} x i32>
  %above = lshr <{n} x i32> %bits, {sixteen}
  %odd = and <{n} x i32> %above, {one}
  %half = add <{n} x i32> %odd, {bias}
  %rounded = add <{n} x i32> %bits, %half
  %upper = lshr <{n} x i32> %rounded, {sixteen}
  %narrow = trunc <{n} x i32> %upper to <{n} x i16>"""),
}  # fmt: skip

_CONSTANTS = {"one": 1, "sixteen": 16, "bias": 0x7FFF}

_STORE, _SETTLE, _SKEW = "topi_ext_stream", "topi_ext_settle", "topi_ext_skew"


@contextmanager
def instructions(dtype: str, given: str, lanes: int) -> Iterator[None]:
    """Statements inside may call :func:`store` and :func:`skew` for vectors of `lanes`, and
    :func:`settle`.

    They support float32 and float64, and float32 that becomes float16 or bfloat16.
    """
    kind, narrow = _NARROWED.get(dtype, (_TYPES[given], ""))
    if narrow:
        splats = {name: _splat(value, lanes) for name, value in _CONSTANTS.items()}
        narrow = narrow.format(n=lanes, **splats)
    stored = "%narrow" if narrow else "%value"
    store_name, skew_name = _name(_STORE, dtype, lanes), _name(_SKEW, dtype, lanes)
    text = f"""
define void @{store_name}(ptr %place, <{lanes} x {_TYPES[given]}> %value) {{{narrow}
  store <{lanes} x {kind}> {stored}, ptr %place, align {lanes * byte_width(dtype)},
    !nontemporal !0
  ret void
}}
define void @{_SETTLE}() {{
  fence seq_cst
  ret void
}}
define i64 @{skew_name}(ptr %place) {{
  %address = ptrtoint ptr %place to i64
  %element = udiv i64 %address, {byte_width(dtype)}
  %skew = urem i64 %element, {lanes}
  ret i64 %skew
}}
!0 = !{{i32 1}}
"""
    with compat.imported_llvm(text):
        yield


def store(array: Array, start: Expr, value: Expr, lanes: int) -> None:
    """Write a vector to elements that begin :func:`skew` before a multiple of `lanes`."""
    place = compat.address(array.buffer, emit.wide(start) * byte_width(array.dtype))
    compat.extern_call(_name(_STORE, array.dtype, lanes), place, value)


def skew(array: Array, lanes: int) -> Expr:
    """Return how many elements lie between an address that is a multiple of a vector's bytes and
    the first of `array`.
    """
    place = compat.address(array.buffer, emit.wide(0))
    return compat.extern_value("int64", _name(_SKEW, array.dtype, lanes), place)


def settle() -> None:
    """Make what was written visible to other threads before what is written next."""
    compat.extern_call(_SETTLE)


def _name(function: str, dtype: str, lanes: int) -> str:
    return f"{function}_{dtype}x{lanes}"


def _splat(value: int, lanes: int) -> str:
    return "<" + ", ".join([f"i32 {value}"] * lanes) + ">"
