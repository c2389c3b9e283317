# SPDX-License-Identifier: Apache-2.0
"""Dot products of several integers in lanes of 32 bits.

========== ======= ================= ====================================================
instruction numbers of                since
========== ======= ================= ====================================================
pmaddwd    2       int16 and int16   SSE2; the sum is another instruction
vpdpbusd   4       uint8 and int8    AVX512-VNNI, AVX-VNNI
sdot       4       int8 and int8     Armv8.2 dotprod
udot       4       uint8 and uint8   the same
usdot      4       uint8 and int8    Armv8.6 i8mm
========== ======= ================= ====================================================

The first number is in the lowest bits.  All are exact: what was 8 bits wide, less a zero point, is
9 bits wide, and products of two are 18.

Not ``pmaddubsw``, which adds pairs of products in 16 bits, where they saturate.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; Arm A64 Instruction
Set Architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ... import compat
from .. import emit
from ..emit import Array, Expr, Operand
from ..products import Product

LANE = "int32"
"""Dtype of lanes and sums."""

_ADD = "topi_ext_int_dot"


@contextmanager
def instruction(dot: Product, lanes: int) -> Iterator[None]:
    """Statements inside may call :func:`add_products` of vectors of so many lanes."""
    vector = f"<{lanes} x i32>"
    body, declared = definition(dot, lanes)
    text = f"""
define {vector} @{_ADD}_{dot.name}{lanes}({vector} %sum, {vector} %weights, {vector} %data) {{
{body}
  ret {vector} %result
}}
{declared}
"""
    with compat.imported_llvm(text):
        yield


def definition(dot: Product, lanes: int) -> tuple[str, str]:
    """In LLVM's language, how ``%result`` comes of ``%sum``, ``%weights`` and ``%data``, and what
    is declared for it."""
    vector = f"<{lanes} x i32>"
    if dot.name == "pmaddwd":
        return _pmaddwd(lanes), ""
    if dot.name == "vpdpbusd":
        name = f"@llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        call = f"  %result = call {vector} {name}({vector} %sum, {vector} %data, {vector} %weights)"
        return call, f"declare {vector} {name}({vector}, {vector}, {vector})"
    name, numbers = f"@llvm.aarch64.neon.{dot.name}.v4i32.v16i8", "<16 x i8>"
    body = f"""
  %x = bitcast {vector} %data to {numbers}
  %w = bitcast {vector} %weights to {numbers}
  %result = call {vector} {name}({vector} %sum, {numbers} %x, {numbers} %w)"""
    return body, f"declare {vector} {name}({vector}, {numbers}, {numbers})"


def _pmaddwd(lanes: int) -> str:
    # As assembly, of which LLVM knows nothing: it would add products of several taps to each other
    # before it adds them to their sum, and multiply long before; there are too few registers.
    vector = f"<{lanes} x i32>"
    text, register = r"vpmaddwd $4, $3, $1\0Avpaddd $1, $0, $0", "v"
    if lanes == 4:  # of processors without AVX too
        text, register = r"movdqa $3, $1\0Apmaddwd $4, $1\0Apaddd $1, $0", "x"
    places = f"={register},=&{register},0,{register},{register}"
    return f"""
  %both = call {{ {vector}, {vector} }} asm "{text}", "{places}"
      ({vector} %sum, {vector} %weights, {vector} %data)
  %result = extractvalue {{ {vector}, {vector} }} %both, 0"""


def add_products(dot: Product, lanes: int, sums: Expr, weights: Expr, data: Expr) -> Expr:
    """``sums += weights * data`` of vectors of so many lanes, each of which holds some numbers."""
    name = f"{_ADD}_{dot.name}{lanes}"
    return compat.extern_value(f"{LANE}x{lanes}", name, sums, weights, data)


def joined(numbers: Sequence[Expr], size: int, lanes: int = 1) -> Expr:
    """Integers of dtype `LANE`, or vectors of them, as lanes of `size` parts: the lower bits of
    each; parts of which there is no number are zero."""
    width = 32 // size
    lane: Expr = None
    for i, number in enumerate(numbers):
        part = number
        if i < size - 1:
            part = part & _constant((1 << width) - 1, lanes)
        part = part << _constant(i * width, lanes) if i else part
        lane = part if lane is None else lane | part
    return lane


def total(lane: Expr, dot: Product) -> Expr:
    """Return the sum of the weights that a lane holds, of an instruction for bytes."""
    result: Expr = None
    for i in range(4):
        if dot.weights == "int8":
            number = (lane << _constant(24 - 8 * i)) >> _constant(24)
        else:
            number = (lane >> _constant(8 * i)) & _constant(255)
        result = number if result is None else result + number
    return result


def repeated(byte: int) -> int:
    """Return a lane, as a number of dtype `LANE`, whose bytes are all this one."""
    return int.from_bytes((byte & 255).to_bytes(1, "little") * 4, "little", signed=True)


def _constant(value: int, lanes: int = 1) -> Expr:
    number = emit.constant(value, LANE)
    return number if lanes == 1 else emit.broadcast(number, lanes)


class Channels(NamedTuple):
    """Input channels that share the 32 bits of a lane.

    Attributes
    ----------
    operand : Operand
        An operand of int8 or uint8.
    base : Expr
        Where its channel 0 is taken to be.
    present : int
        Channels in each lane.
    """

    operand: Operand
    base: Expr
    present: int


class Lanes(Operand):
    """An operand of int8 or uint8 read in lanes of neighbouring channels; its channels are lanes.

    Numbers of 16 bits are less the zero point, others are as they are stored, but in the dtype that
    the instruction takes; what is missing in a lane is anything.
    """

    def __init__(self, dot: Product, channels: Channels):
        operand, self.base, self.present = channels
        super().__init__(operand.buffer, operand.dtype, "", ())
        self.dot, self.step = dot, operand.strides["C"]
        self.strides = {**operand.strides, "C": dot.size * self.step}
        self.zero = operand.zero if dot.size == 2 else 0
        self.flipped = repeated(dot.shift_of(operand.dtype))

    def at(self, letters: str, *where: Expr) -> Expr:
        """Flat index of the first element of a lane."""
        return self.base + super().at(letters, *where)

    def load(self, index: Expr, dtype: str) -> Expr:
        """Return the lane whose first element is at `index`."""
        is_run = isinstance(self.step, int) and self.step == 1 and not self.zero
        if self.dot.size == self.present == 4 and is_run:
            return self._flipped(emit.bits(self[emit.lanes_of(index, 4)], dtype))
        numbers = [super(Lanes, self).load(i, dtype) for i in self._places(index)]
        return self._flipped(joined(numbers, self.dot.size))

    def neighbours(self, start: Expr, dtype: str, lanes: int) -> Expr:
        """Return the lanes whose first elements are `start` and those behind it."""
        vectors = [super(Lanes, self).neighbours(i, dtype, lanes) for i in self._places(start)]
        return self._flipped(joined(vectors, self.dot.size, lanes), lanes)

    def _flipped(self, lane: Expr, lanes: int = 1) -> Expr:
        return lane ^ _constant(self.flipped, lanes) if self.flipped else lane

    def _places(self, index: Expr) -> list[Expr]:
        return [index + i * self.step for i in range(self.present)]


class Bytes(Operand):
    """An operand of int8 or uint8 that is stored in lanes of four, behind `start` of them; it is
    only read."""

    def __init__(self, lanes: Array, start: int, kind: str, order: str, shape: Sequence[Expr]):
        super().__init__(lanes.buffer, lanes.dtype, order, shape)
        self.start, self.kind = start, kind

    def load(self, index: Expr, dtype: str) -> Expr:
        """One element as `dtype`, less the zero point."""
        lane = self[self.start + emit.quotient(index, 4)]
        shift = emit.cast(emit.remainder(emit.wide(index), 4) * 8, "int64", LANE)
        if self.kind == "int8":
            number = (lane << (_constant(24) - shift)) >> _constant(24)
        else:
            number = (lane >> shift) & _constant(255)
        return emit.cast(number - _constant(self.zero), LANE, dtype)
