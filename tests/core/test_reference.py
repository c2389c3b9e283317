# SPDX-License-Identifier: Apache-2.0
"""The two oracles against PyTorch's own functions and against each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from helpers import oracle
from helpers.cases import SPATIAL, Case, any_case, cases, geometry_of, numbers
from helpers.compare import numpy_dtype
from topi_ext.spec.layout import Layouts
from topi_ext.spec.reference import Reference

seeds = st.integers(0, 2**32 - 1)
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
WEIGHT_GRAD = {1: torch.nn.grad.conv1d_weight, 2: torch.nn.grad.conv2d_weight}
WEIGHT_GRAD[3] = torch.nn.grad.conv3d_weight


def close(got: np.ndarray, want: torch.Tensor) -> None:
    """Both sides add up in float64, in different orders, at most some 10**4 terms of size 1."""
    want = want.detach().numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------- the PyTorch oracle, where PyTorch goes


@pytest.mark.parametrize("rank", [1, 2, 3])
@given(data=st.data(), seed=seeds)
def test_oracle_is_pytorchs_conv_transpose(rank: int, data, seed: int) -> None:
    """With symmetric padding the window around conv_transpose is PyTorch's own padding."""
    case = data.draw(cases("conv_transpose", rank))
    pad = tuple(max(0, b) for b in case.padding[:rank])
    case = case.with_(padding=pad * 2)
    if min(case.out_size) < 1:
        return
    y, w = (oracle.tensor(a) for a in case.arrays(np.random.default_rng(seed)))
    want = CONV_TRANSPOSE[rank](
        y, w, None, case.stride, pad, case.output_padding, case.groups, case.dilation
    )
    close(case.forward(y, w).numpy(), want)
    assert tuple(want.shape) == case.out_shape


@pytest.mark.parametrize("rank", [1, 2, 3])
@given(data=st.data(), seed=seeds)
def test_oracle_is_pytorchs_conv_and_its_weight_grad(rank: int, data, seed: int) -> None:
    case = data.draw(cases("conv", rank))
    pad = tuple(max(0, b, a) for b, a in zip(case.padding[:rank], case.padding[rank:]))
    case = case.with_(padding=pad * 2)
    rng = np.random.default_rng(seed)
    x, w = (oracle.tensor(a) for a in case.arrays(rng))
    want = CONV[rank](x, w, None, case.stride, pad, case.dilation, case.groups)
    close(case.forward(x, w).numpy(), want)
    y = oracle.tensor(rng.standard_normal(case.out_shape))
    got = oracle.conv_weight_grad(
        x, y, case.kernel, case.stride, case.padding, case.dilation, case.groups
    )
    arguments = (x, w.shape, y, case.stride, pad, case.dilation, case.groups)
    close(got.numpy(), WEIGHT_GRAD[rank](*arguments))


def test_permute_by_hand() -> None:
    a = np.arange(2 * 8 * 3).reshape(2, 8, 3)
    blocked = oracle.permute(a, "NCW", "NCW4c")
    assert blocked.shape == (2, 2, 3, 4)
    assert blocked[1, 1, 2, 3] == a[1, 4 * 1 + 3, 2]
    assert (oracle.permute(blocked, "NCW4c", "NCW") == a).all()
    assert (oracle.permute(blocked, "NCW4c", "WCN") == a.transpose(2, 1, 0)).all()
    twice = oracle.permute(a, "NCW", "2cWNC2c")
    assert twice.shape == (2, 3, 2, 2, 2)
    assert twice[1, 2, 0, 1, 0] == a[0, 4 * 1 + 2 * 1 + 0, 2]


# ------------------------------------------------------------------ the NumPy oracle


@given(case=any_case, seed=seeds)
def test_reference_is_pytorch(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    g = geometry_of(case)
    x, w, y = (rng.standard_normal(s) for s in (g.x_shape(case.n), g.w_shape, g.y_shape(case.n)))
    tx, tw, ty = (oracle.tensor(a) for a in (x, w, y))
    attributes = (g.stride, g.padding)
    ops = Reference()
    close(
        ops.conv_transpose(y, w, g),
        oracle.conv_transpose(ty, tw, *attributes, g.output_padding, g.dilation, g.groups),
    )
    # An x with output padding of the stride or more would give a longer y: fit the padding to y.
    fitted = (g.stride, g.fitted().padding)
    close(ops.conv(x, w, g), oracle.conv(tx, tw, *fitted, g.dilation, g.groups))
    want = oracle.conv_weight_grad(tx, ty, g.kernel, *fitted, g.dilation, g.groups)
    close(ops.conv_weight_grad(x, y, g), want)


@given(case=any_case, seed=seeds)
def test_the_faces_are_one_trilinear_form(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    g, ops = geometry_of(case), Reference()
    x, w, y = (rng.integers(-9, 9, s) for s in (g.x_shape(2), g.w_shape, g.y_shape(2)))
    form = (ops.conv(x, w, g) * y).sum()
    assert form == (ops.conv_transpose(y, w, g) * x).sum()
    assert form == (ops.conv_weight_grad(x, y, g) * w).sum()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_reference_in_every_layout(rank: int, rng: np.random.Generator) -> None:
    letters = SPATIAL[rank]
    case = Case(
        "conv_transpose", (3, 2, 4)[:rank], (2, 3, 1)[:rank], groups=2, ins=4, outs=6,
        stride=(2, 1, 3)[:rank],
    )  # fmt: skip
    g = geometry_of(case)
    arrays = {
        "x": rng.random(g.x_shape(2)),
        "w": rng.random(g.w_shape),
        "y": rng.random(g.y_shape(2)),
    }
    data = ["".join(p) for p in itertools.permutations("NC" + letters)]
    kernels = ["".join(p) for p in itertools.permutations("OI" + letters)]
    faces = {"conv": "xwy", "conv_transpose": "ywx", "conv_weight_grad": "xyw"}
    for number, order in enumerate(data):
        layouts = Layouts(order, kernels[-number], data[(7 * number) % len(data)])

        def stored(role: str, array: np.ndarray, layouts: Layouts = layouts) -> np.ndarray:
            canonical = ("OI" if role == "w" else "NC") + letters
            return oracle.permute(array, canonical, getattr(layouts, role))

        for face, (a, b, out) in faces.items():
            plain = getattr(Reference(), face)(arrays[a], arrays[b], g)
            got = getattr(Reference(layouts), face)(stored(a, arrays[a]), stored(b, arrays[b]), g)
            np.testing.assert_array_equal(got, stored(out, plain), err_msg=f"{face} {layouts}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "bfloat16", "float32"])
def test_reference_adds_up_wide(dtype: str, rng: np.random.Generator) -> None:
    """Narrow operands must not narrow the sum: 512 channels overflow or drown otherwise."""
    case = Case("conv_transpose", (2, 2), (3, 3), ins=512, outs=2, dtype=dtype)
    y, w = case.arrays(rng)
    got = Reference().conv_transpose(y, w, geometry_of(case))
    assert got.dtype == (np.int64 if "int" in dtype else np.float64)
    close(got, case.forward(oracle.tensor(y), oracle.tensor(w)))


def test_reference_with_an_empty_batch() -> None:
    case = Case("conv_transpose", (2, 2), (3, 3), n=0)
    g, ops = geometry_of(case), Reference()
    x, w, y = np.zeros(g.x_shape(0)), np.ones(g.w_shape), np.zeros(g.y_shape(0))
    assert ops.conv_transpose(y, w, g).shape == g.x_shape(0)
    assert ops.conv(x, w, g).shape == g.y_shape(0)
    assert not ops.conv_weight_grad(x, y, g).any()


def test_numbers_cover_the_dtype(rng: np.random.Generator) -> None:
    """Operands of tests reach both ends of an int8, and are of the dtype asked for."""
    assert set(numbers(rng, (10**4,), "int8")) == set(range(-128, 128))
    assert numbers(rng, (2,), "bfloat16").dtype == numpy_dtype("bfloat16")
