# SPDX-License-Identifier: Apache-2.0
"""AMX, the matrix unit of x86 processors, as primitives in addition to :mod:`topi_ext.emit`.

Eight registers hold a tile each, of 16 rows of 64 bytes.  One instruction adds a product of
two tiles of bfloat16 to one of float32::

    sums[m][n] += sum over p of  a[m][2p] * b[2p][n] + a[m][2p+1] * b[2p+1][n]

where a row of `a` holds pairs of neighbours in the sum, and row p of `b` the pair (2p, 2p+1) of
each column.  A pair has 32 bits, the even element in the lower half.
Numbers below the normal range count as zero; sums are rounded to nearest.

Others do so for four neighbours of int8 or uint8 in 32 bits, and sums of int32, which wrap around.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

import ctypes

from ... import compat
from ...spec.dtypes import byte_width
from .. import emit
from ..emit import Array, Expr
from ..plan.direct_amx import TILE

TILES = 8
"""Number of tile registers."""

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def is_granted() -> Expr:
    """Ask Linux for the tile registers: whether this process may use them."""
    answer = compat.system_call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return answer == emit.wide(0)


def is_granted_now() -> bool:
    """Return whether Linux grants AMX to this process now."""
    libc = ctypes.CDLL(None)
    return bool(libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def configure() -> None:
    """Give this thread its tiles, all of them of full size.

    Not smaller ones where fewer rows would do: LLVM takes all tiles for equal, and may rename one.
    """
    palette, row, rows = [1], list((4 * TILE).to_bytes(2, "little")), [TILE]
    layout = bytes(palette + [0] * 15 + row * TILES + [0] * 16 + rows * TILES + [0] * 8)
    table = emit.scratch(len(layout) // 8, "int64")
    for i in range(len(layout) // 8):
        emit.store(table, i, emit.wide(int.from_bytes(layout[8 * i : 8 * i + 8], "little")))
    compat.llvm_call("llvm.x86.ldtilecfg", compat.address(table.buffer, 0))


def release() -> None:
    """Give this thread's tiles back."""
    compat.llvm_call("llvm.x86.tilerelease")


def zero(tile: int) -> None:
    """``tile = 0``."""
    compat.llvm_call("llvm.x86.tilezero", _register(tile))


def load(tile: int, array: Array, index: Expr, step: Expr) -> None:
    """Rows of `tile` = what `array` holds from `index`, from ``index + step``, and so on."""
    compat.llvm_call("llvm.x86.tileloadd64", _register(tile), *_where(array, index, step))


def store(tile: int, array: Array, index: Expr, step: Expr) -> None:
    """The reverse of :func:`load`."""
    compat.llvm_call("llvm.x86.tilestored64", _register(tile), *_where(array, index, step))


def add_product(sums: int, a: int, b: int, name: str = "tdpbf16ps") -> None:
    """``sums += a @ b``, as above, by the instruction of a name."""
    compat.llvm_call(f"llvm.x86.{name}", *map(_register, (sums, a, b)))


def _register(number: int) -> Expr:
    return emit.constant(number, "int8")


def _where(array: Array, index: Expr, step: Expr) -> tuple[Expr, Expr]:
    width = byte_width(array.dtype)
    return compat.address(array.buffer, emit.wide(index * width)), emit.wide(step * width)
