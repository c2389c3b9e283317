# SPDX-License-Identifier: Apache-2.0
"""Sizes that only run time knows: what does not fit is refused in one line, never computed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import relax_ext
from helpers import build
from helpers.cases import Case
from topi_ext.compat import tir

STRIDE = (2, 1)


@cache
def machine(name: str) -> relax.VirtualMachine:
    """A face whose batches and spatial sizes are symbolic, other ones for each operand."""
    first, second = ([tir.Var(f"{of}{axis}", "int64") for axis in "nhw"] for of in "ab")
    kernel, data, other = (4, 4, 3, 3), _data(first), _data(second)
    shapes = {
        "conv": (data, kernel),
        "conv_transpose": (data, kernel),
        "conv_weight_grad": (data, other),
        "sized": (data, kernel, other),
    }[name]
    call = {
        "conv": lambda x, w: relax.op.nn.conv2d(x, w, STRIDE),
        "conv_transpose": lambda y, w: relax.op.nn.conv2d_transpose(y, w, STRIDE),
        "conv_weight_grad": lambda x, y: relax_ext.conv_weight_grad(x, y, (3, 3), STRIDE),
        "sized": lambda y, w, x: relax_ext.conv_transpose(y, w, x, STRIDE),
    }[name]
    return build.compiled(build.module(call, *shapes))


def _data(sizes: list) -> tuple:
    return (sizes[0], 4, *sizes[1:])


def run(name: str, *shapes: tuple[int, ...]) -> np.ndarray:
    arrays = [np.ones(shape, "float32") for shape in shapes]
    return machine(name)["main"](*map(tvm.runtime.tensor, arrays)).numpy()


REFUSED = {
    "no rows to transpose": (
        "conv_transpose", [(1, 4, 0, 8), (4, 4, 3, 3)],
        "conv_transpose: data size must be at least 1",
    ),
    "no result": ("conv", [(1, 4, 2, 5), (4, 4, 3, 3)], "conv: output size must be at least 1"),
    "batches": ("conv_weight_grad", [(3, 4, 7, 6), (1, 4, 3, 4)], "shape"),
    "a large batch": ("conv_weight_grad", [(30000, 4, 7, 6), (1, 4, 3, 4)], "shape"),
    "y too large": (
        "conv_weight_grad", [(1, 4, 7, 6), (1, 4, 9, 4)],
        "conv_weight_grad: sizes of x and y must belong to kernel=(3, 3) stride=(2, 1)",
    ),
    "y too small": (
        "conv_weight_grad", [(1, 4, 7, 6), (1, 4, 3, 3)],
        "conv_weight_grad: sizes of x and y must belong to kernel=(3, 3) stride=(2, 1)",
    ),
    "size too large": (
        "sized", [(1, 4, 3, 4), (4, 4, 3, 3), (1, 4, 20, 6)],
        "conv_transpose: sizes of output and data must belong to kernel=(3, 3) stride=(2, 1)",
    ),
    "size too small": (
        "sized", [(1, 4, 3, 4), (4, 4, 3, 3), (1, 4, 6, 6)],
        "conv_transpose: sizes of output and data must belong to kernel=(3, 3) stride=(2, 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "line"), REFUSED.values(), ids=REFUSED)
def test_refused(name: str, shapes: list[tuple[int, ...]], line: str) -> None:
    with pytest.raises(Exception) as caught:
        run(name, *shapes)
    assert line in str(caught.value)


sizes = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(batches=st.tuples(st.integers(0, 3), st.integers(0, 3)), x=sizes, y=sizes)
@settings(deadline=None)
def test_weight_gradients_of_any_sizes(
    batches: tuple[int, int], x: tuple[int, int], y: tuple[int, int]
) -> None:
    """Ones everywhere: what belongs together gives the number of products, the rest one line."""
    extra = [a - ((b - 1) * s + 3) for a, b, s in zip(x, y, STRIDE)]
    fits = all(0 <= e < s for e, s in zip(extra, STRIDE)) and min(y) > 0
    shapes = (batches[0], 4, *x), (batches[1], 4, *y)
    if fits and batches[0] == batches[1]:
        assert (run("conv_weight_grad", *shapes) == batches[0] * y[0] * y[1]).all()
        return
    with pytest.raises(Exception) as caught:
        run("conv_weight_grad", *shapes)
    assert "conv_weight_grad" in str(caught.value) or "shape" in str(caught.value)


@given(batch=st.integers(0, 3), y=st.tuples(st.integers(0, 6), st.integers(0, 6)))
@settings(deadline=None)
def test_transposed_convolutions_of_any_sizes(batch: int, y: tuple[int, int]) -> None:
    shapes = (batch, 4, *y), (4, 4, 3, 3)
    if min(y) < 1:
        with pytest.raises(Exception, match="conv_transpose: data size must be at least 1"):
            run("conv_transpose", *shapes)
        return
    found = run("conv_transpose", *shapes)
    if batch:
        ones = [torch.ones(shape, dtype=torch.float64) for shape in shapes]
        wanted = torch.nn.functional.conv_transpose2d(*ones, stride=STRIDE)
        np.testing.assert_array_equal(found, wanted.numpy())  # small integers are exact


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_tensors_of_another_framework_begin_anywhere(offset: int, rng: np.random.Generator) -> None:
    """Slices of a larger tensor of PyTorch, given to the virtual machine as they are."""
    case = Case(
        "conv_transpose", (16, 16), (4, 4), 1, ins=64, outs=32, stride=(2, 2), padding=(1,) * 4
    )
    vm = build.compiled(build.forward_module([case]))
    given_arrays = case.arrays(rng)
    moved = []
    for array in given_arrays:
        whole = torch.empty(array.size + 64, dtype=torch.float32)
        first = (-whole.data_ptr() % 64 + offset) // 4
        part = whole[first : first + array.size].view(array.shape)
        part.copy_(torch.from_numpy(array))
        assert part.data_ptr() % 64 == offset
        moved.append(part)
    found = np.from_dlpack(vm["f0"](*moved))
    case.check(found, *given_arrays)


@given(
    offsets=st.tuples(st.integers(0, 15), st.integers(0, 15)),
    steps=st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([1, 1, 2])),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_views_of_another_framework(
    offsets: tuple[int, int], steps: tuple[int, int], seed: int
) -> None:
    """Any element may be the first; what is not contiguous is refused, never read as if it were."""
    numbers = torch.Generator().manual_seed(seed)
    views = []
    for shape, offset, step in zip([(2, 4, 5, 6), (4, 4, 3, 3)], offsets, steps):
        whole = torch.randn(offset + 2 * np.prod(shape), generator=numbers)
        part = whole[offset:][: step * np.prod(shape)].view(*shape[:-1], shape[-1] * step)
        views.append(part[..., ::step])
    if steps != (1, 1):
        with pytest.raises(Exception, match=r"strides|contiguous"):
            machine("conv_transpose")["main"](*views)
        return
    found = np.from_dlpack(machine("conv_transpose")["main"](*views))
    wanted = torch.nn.functional.conv_transpose2d(*(v.double() for v in views), stride=STRIDE)
    np.testing.assert_allclose(found, wanted.numpy(), atol=2e-5)  # sums of 36 products in float32
