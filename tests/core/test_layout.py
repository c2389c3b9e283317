# SPDX-License-Identifier: Apache-2.0
"""Layout strings: what is understood, what shapes follow, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import oracle
from topi_ext.spec.layout import Layout, Layouts


@st.composite
def layout_texts(draw: st.DrawFn, letters: str) -> str:
    """A permutation with up to two blocks anywhere."""
    axes = list(draw(st.permutations(letters)))
    for _ in range(draw(st.integers(0, 2))):
        block = f"{draw(st.sampled_from([1, 2, 3, 4]))}{draw(st.sampled_from(letters)).lower()}"
        axes.insert(draw(st.integers(0, len(axes))), block)
    return "".join(axes)


@pytest.mark.parametrize("letters", ["NCW", "NCHW", "OIDHW"])
@given(data=st.data())
def test_shapes_are_those_of_the_stored_array(letters: str, data) -> None:
    text = data.draw(layout_texts(letters))
    layout = Layout.parse("op", "layout", text, letters)
    shape = [data.draw(st.integers(1, 2)) * layout.factor(letter) for letter in letters]
    stored = oracle.permute(np.empty(shape), letters, text).shape
    assert layout.stored_shape("op", shape) == stored
    assert layout.unblocked_shape(stored) == tuple(shape)
    assert layout.is_plain == (len(stored) == len(letters))
    if layout.is_plain:
        assert layout.order == text and layout.blocks == ()


def test_blocks_by_hand() -> None:
    layout = Layout.parse("op", "kernel_layout", "OIHW4i8o", "OIHW")
    assert layout.order == "OIHW"
    assert layout.blocks == (("I", 4), ("O", 8))
    assert layout.stored_shape("op", (16, 12, 3, 2)) == (2, 3, 3, 2, 4, 8)
    assert layout.unblocked_shape((2, 3, 3, 2, 4, 8)) == (16, 12, 3, 2)
    assert Layout.parse("op", "layout", "NCHW16c", "NCHW").blocks == (("C", 16),)


@pytest.mark.parametrize(
    "text",
    ["", "NCH", "NCHWW", "NCHX", "nchw", "NCHW4", "NCHW4x", "NCHW0c", "NCHWc", "NC HW", "NCHW4c ",
     "4cNHW", "NCDHW", "OIHW", "NCHW-4c"],
)  # fmt: skip
def test_unknown_layouts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Layout.parse("conv2d", "data_layout", text, "NCHW")
    assert str(caught.value) == (
        f"conv2d: data_layout={text!r} must be a permutation of 'NCHW', optionally with blocks"
    )


@pytest.mark.parametrize(
    ("letters", "text", "letter"),
    [("NCHW", "NCHW2n", "N"), ("NCHW", "NCHW2c", "C"), ("NCHW", "NCHW2h", "H"),
     ("NCDHW", "NCDHW2d", "D"), ("NCW", "2wNCW", "W"), ("OIHW", "OIHW2o", "O"),
     ("OIHW", "O2iIHW", "I"), ("NCHW", "NCHW2n2n", "N")],
)  # fmt: skip
def test_every_axis_has_to_divide(letters: str, text: str, letter: str) -> None:
    layout = Layout.parse("conv2d", "layout", text, letters)
    whole = layout.factor(letter)
    fits = [4 if name == letter else 3 for name in letters]
    assert 4 // whole in layout.stored_shape("conv2d", fits)
    with pytest.raises(ValueError) as caught:
        layout.stored_shape("conv2d", [3] * len(letters))
    assert str(caught.value) == (
        f"conv2d: layout {text!r} needs axis {letter}=3 to be a multiple of {whole}"
    )


class Rest:
    """A symbolic size of which only the rest of a division is asked."""

    def __mod__(self, _: int) -> Rest:
        return self

    def __floordiv__(self, _: int) -> str:
        return "n//2"

    def __repr__(self) -> str:
        return "n"


def test_symbolic_sizes_divide_where_that_is_known() -> None:
    layout = Layout.parse("conv2d", "layout", "NCHW2n", "NCHW")
    with pytest.raises(ValueError) as caught:
        layout.stored_shape("conv2d", (Rest(), 4, 5, 5))
    assert str(caught.value) == (
        "conv2d: layout 'NCHW2n' needs axis N=n to be a multiple of 2, which is not known"
    )
    even = layout.stored_shape("conv2d", (Rest(), 4, 5, 5), lambda _: 0)
    assert even == ("n//2", 4, 5, 5, 2)


def test_exchanged_channels() -> None:
    layout = Layout.parse("op", "kernel_layout", "IOHW4i8o", "IOHW")
    assert layout.exchanged == Layout.parse("op", "kernel_layout", "OIHW4o8i", "OIHW")
    assert layout.exchanged.exchanged == layout


def test_canonical_layouts() -> None:
    assert Layouts.canonical(1) == Layouts("NCW", "OIW", "NCW")
    assert Layouts.canonical(2) == Layouts("NCHW", "OIHW", "NCHW")
    assert Layouts.canonical(3) == Layouts("NCDHW", "OIDHW", "NCDHW")
