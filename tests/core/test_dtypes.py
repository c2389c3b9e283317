# SPDX-License-Identifier: Apache-2.0
"""The accumulation rule, spelled out, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from topi_ext.spec.dtypes import SUPPORTED, accumulator

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "uint8", "int16", "int32", "int64"]


@pytest.mark.parametrize(
    ("first", "second", "out", "want"),
    [
        ("float32", "float32", "float32", "float32"),
        ("float16", "float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16", "float32"),
        ("float32", "float32", "float16", "float32"),
        ("float64", "float64", "float64", "float64"),
        ("float64", "float64", "float32", "float64"),
        ("float32", "float32", "float64", "float64"),
        ("float16", "float64", "float16", "float64"),
        ("int8", "int8", "int8", "int32"),
        ("int8", "int8", "int32", "int32"),
        ("uint8", "int8", "int32", "int32"),
        ("int16", "int16", "int16", "int32"),
        ("int8", "int8", "int64", "int64"),
        ("int64", "int8", "int32", "int64"),
    ],
)
def test_rule(first: str, second: str, out: str, want: str) -> None:
    assert accumulator("op", first, second, out) == want


def test_every_combination_is_wide_enough_or_refused() -> None:
    assert set(SUPPORTED) == {*FLOATS, *INTS}
    bits = {name: int(name.lstrip("abcdefghijklmnopqrstuvwxyz")) for name in SUPPORTED}
    for first, second, out in itertools.product(SUPPORTED, repeat=3):
        floating = [name in FLOATS for name in (first, second, out)]
        if floating[0] != floating[1] or (floating[0] and not floating[2]):
            with pytest.raises(ValueError, match=r"^op: .*floating point"):
                accumulator("op", first, second, out)
            continue
        wide = accumulator("op", first, second, out)
        assert bits[wide] >= max(32, bits[first], bits[second])
        assert (wide in FLOATS) == floating[0]
        if floating[0] == floating[2]:
            assert bits[wide] >= bits[out]


@pytest.mark.parametrize("dtype", ["bool", "int4", "uint16", "uint32", "float8_e4m3fn", "handle"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_unknown_dtypes_are_refused_in_one_line(dtype: str, place: int) -> None:
    dtypes = ["float32"] * 3
    dtypes[place] = dtype
    with pytest.raises(ValueError) as caught:
        accumulator("conv2d", *dtypes)
    said = str(caught.value)
    assert said.startswith(f"conv2d: dtype {dtype} is not supported") and "\n" not in said
