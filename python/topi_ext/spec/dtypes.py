# SPDX-License-Identifier: Apache-2.0
"""The dtypes that the operators accept, and their accumulators."""

from __future__ import annotations

from .geometry import fail

_FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_INTS = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8}

FLOATS = tuple(_FLOATS)

SUPPORTED = (*_FLOATS, *_INTS)


def accumulator(op: str, first: str, second: str, out: str) -> str:
    """Return the dtype in which products are added up.

    float32 for float16, bfloat16 and float32; float64 as soon as one operand or the output is
    float64; int32 for the integers of at most 32 bits, int64 beyond.  A narrow accumulator is what
    makes a sum of 512 bfloat16 products 13 % wrong, so the output dtype never narrows it.

    Parameters
    ----------
    op : str
        Name of the operator, for errors.
    first, second, out : str
        Dtypes of the operands and of the output.

    Raises
    ------
    ValueError
        For a dtype that is not in `SUPPORTED`, or a float operand beside an integer one.
    """
    # Compilers pass dtype objects that compare like strings but hash otherwise.
    first, second, out = str(first), str(second), str(out)
    for dtype in (first, second, out):
        if not dtype:
            raise fail(op, "the dtypes of both operands must be known")
        if dtype not in SUPPORTED:
            raise fail(op, f"dtype {dtype} is not supported, must be one of {', '.join(SUPPORTED)}")
    if (first in _FLOATS) != (second in _FLOATS):
        raise fail(op, f"dtypes {first} and {second} must both be floating point or both integer")
    if first in _FLOATS:
        if out in _INTS:
            raise fail(op, f"output dtype {out} must be floating point like {first}")
        return "float64" if "float64" in (first, second, out) else "float32"
    return "int64" if "int64" in (first, second, out) else "int32"


_WIDTHS = {**_FLOATS, **_INTS, "bool": 1}


def byte_width(dtype: str) -> int:
    """Return the bytes of one element."""
    return _WIDTHS[dtype]
