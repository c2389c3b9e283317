# SPDX-License-Identifier: Apache-2.0
"""Attributes and layouts that nobody should write: taken as integers, or refused in one line.

``make fuzz`` draws many more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from tvm import relax
from tvm.script import relax as R

import relax_ext

value = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([2**20, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, -(2**31), -(2**63)]),
    st.sampled_from([True, False, None, 1.0, 1.5, float("nan"), "1", "x", b"1", [], {}, (1,)]),
    st.sampled_from([np.int8(1), np.int64(2), np.uint32(3), np.float32(1), np.bool_(True)]),
)
attribute = st.one_of(value, st.lists(value, max_size=5), st.tuples(value, value))
letters = st.permutations("NCHW").map("".join)
layout = st.one_of(
    letters,
    st.sampled_from(["NCHW4c", "NCHW3c", "NCHW2n", "NCHW0c", "NCHW4h", "nchw", "NC", "", "NCHWW"]),
)


@given(
    own=st.booleans(),
    given_attributes=st.fixed_dictionaries(
        {},
        optional={
            "strides": attribute,
            "padding": attribute,
            "dilation": attribute,
            "groups": value,
            "data_layout": layout,
            "out_layout": layout,
            "kernel_layout": st.permutations("OIHW").map("".join),
            "out_dtype": st.sampled_from(["float32", "float64", "foo", ""]),
        },
    ),
    kernel_size=st.one_of(st.just((3, 3)), attribute),
)
def test_one_line_or_a_type(
    own: bool, given_attributes: dict[str, Any], kernel_size: object
) -> None:
    """Test an operator of our own, whose attributes only we read, and one of TVM's."""
    x = relax.Var("x", R.Tensor((3, 4, 8, 8), "float32"))
    y = relax.Var("y", R.Tensor((3, 4, 6, 6), "float32"))
    w = relax.Var("w", R.Tensor((4, 4, 3, 3), "float32"))
    bb = relax.BlockBuilder()
    name = "conv_weight_grad" if own else "conv2d"
    refused: Exception | None = None
    with bb.function("main", [x, y, w]):
        out = x
        try:
            if own:
                out = bb.emit(relax_ext.conv_weight_grad(x, y, kernel_size, **given_attributes))
            else:
                out = bb.emit(relax.op.nn.conv2d(x, w, **given_attributes))
        except Exception as error:
            refused = error
        bb.emit_func_output(out)
    is_one_line = refused is not None and f"{name}: " in str(refused)
    event("taken" if refused is None else "one line" if is_one_line else "TVM's own refusal")
    # What TVM's own constructors refuse, before an operator is there, is said by TVM.
    assert refused is None or is_one_line or not own, f"no line of ours: {refused!r}"
