# SPDX-License-Identifier: Apache-2.0
"""The gradient of maximum poolings, against PyTorch in float64: the same bits, as nothing rounds
but sums of gradients that share an element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import tvm
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F
from tvm import relax
from tvm.relax import op

import relax_ext
from helpers import build
from helpers.profile import compiling
from helpers.whole import TARGET, compiled
from topi_ext.compat import tir


@dataclass(frozen=True)
class Pool:
    """A pooling of data of NCHW; gradients are small integers, whose sums are exact."""

    shape: tuple[int, ...]
    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceils: bool = False

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "pool_size": self.kernel,
            "strides": self.stride,
            "padding": (*self.padding, *self.padding),
            "dilation": self.dilation,
            "ceil_mode": self.ceils,
        }

    def operands(self, seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        """The gradient of the result and the data, which have ties."""
        torch.manual_seed(seed)
        x = torch.randint(-3, 4, self.shape).to(dtype)
        return torch.randint(-4, 5, self.pooled(x).shape).to(dtype), x

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(
            x, self.kernel, self.stride, self.padding, self.dilation, ceil_mode=self.ceils
        )

    def oracle(self, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        data = x.double().requires_grad_(True)
        return torch.autograd.grad(self.pooled(data), data, dy.double())[0]


def backward(pool: Pool, dtype: str, layout: str = "NCHW", batch: Any = None) -> tvm.IRModule:
    """The gradient as an operator."""
    dy, x = pool.operands(0)
    shapes = [list(tensor.shape) for tensor in (dy, x)]
    if batch is not None:
        shapes = [[batch, *shape[1:]] for shape in shapes]
    if layout == "NHWC":
        shapes = [[n, h, w, c] for n, c, h, w in shapes]
    call = partial(op.grad.max_pool2d_backward, **pool.attributes, layout=layout)
    return build.module(call, *shapes, dtype=dtype)


def run(function: Any, *tensors: torch.Tensor) -> torch.Tensor:
    result = function(*(tvm.runtime.tensor(tensor.numpy()) for tensor in tensors))
    return torch.from_numpy(result.numpy()).double()


def check(pool: Pool, dy: torch.Tensor, x: torch.Tensor) -> None:
    dtype = str(x.dtype).removeprefix("torch.")
    got = run(compiled(backward(pool, dtype))[0], dy, x)
    assert torch.equal(got, pool.oracle(dy, x))


POOLS = [
    Pool((2, 3, 8, 10)),
    Pool((2, 3, 9, 11), (3, 3), (2, 2), (1, 1)),
    Pool((1, 2, 9, 7), (3, 3), (1, 1), (1, 1)),
    Pool((2, 3, 17, 19), (3, 2), (2, 3), (1, 1), (2, 3)),
    Pool((1, 2, 10, 11), (3, 3), (2, 2), (1, 0), ceils=True),
    Pool((1, 2, 5, 6), (5, 6), (1, 1)),
    Pool((1, 40, 30, 30), (2, 2), (3, 3)),
]


@pytest.mark.parametrize("pool", POOLS)
def test_values(pool: Pool) -> None:
    check(pool, *pool.operands(1))


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    two = st.tuples(st.integers(1, 4), st.integers(1, 4))
    kernel = draw(two)
    padding = tuple(draw(st.integers(0, size // 2)) for size in kernel)
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        *draw(st.tuples(*[st.integers(1, 20)] * 2)),
    )
    return Pool(shape, kernel, draw(two), padding, draw(two), draw(st.booleans()))


@compiling(10)
@given(pool=pools(), seed=st.integers(0, 2**31))
def test_any_pooling(pool: Pool, seed: int) -> None:
    span = [(k - 1) * d + 1 for k, d in zip(pool.kernel, pool.dilation)]
    assume(all(a + 2 * p >= b for a, p, b in zip(pool.shape[2:], pool.padding, span)))
    dy, x = pool.operands(seed)
    # PyTorch gives the gradient of a window of padding alone to an element outside of it.
    assume(pool.pooled(x).isfinite().all())
    check(pool, dy, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    check(POOLS[1], *POOLS[1].operands(2, dtype))


def test_nan_and_infinity() -> None:
    """A window of infinities alone has a first place; among several NaN the last one counts."""
    pool = Pool((1, 2, 8, 8), (3, 3), (2, 2), (1, 1))
    dy, x = pool.operands(3)
    x[0, 0, 1, 1] = x[0, 0, 1, 2] = x[0, 0, 6, 3] = float("nan")
    x[0, 0, 4, 4] = float("inf")
    x[0, 1] = -float("inf")
    check(pool, dy, x)


def test_channels_last_and_symbolic_batch() -> None:
    pool, n = POOLS[3], tir.Var("n", "int64")
    dy, x = pool.operands(4)
    function, _ = compiled(backward(pool, "float32", "NHWC", n))
    got = run(function, *(tensor.permute(0, 2, 3, 1).contiguous() for tensor in (dy, x)))
    assert torch.equal(got.permute(0, 3, 1, 2), pool.oracle(dy, x))


@pytest.mark.parametrize("pool", [POOLS[1], POOLS[3]])
def test_differentiated_model(pool: Pool) -> None:
    """By ``relax.transform.Gradient`` and plain ``tvm.compile``, with dilation too."""
    dy, x = pool.operands(5)

    def loss(x: Any, dy: Any) -> Any:
        return op.sum(op.multiply(op.nn.max_pool2d(x, **pool.attributes), dy))

    mod = build.module(loss, x.shape, dy.shape)
    mod = relax.transform.Gradient("main", require_grads=mod["main"].params[:1])(mod)
    machine = build.compiled(mod, TARGET)
    _, (gradient,) = machine["main_adjoint"](*(tvm.runtime.tensor(v.numpy()) for v in (x, dy)))
    assert torch.equal(torch.from_numpy(gradient.numpy()).double(), pool.oracle(dy, x))


def test_other_layouts_with_dilation_are_refused() -> None:
    """Symbolic images with dilation have no lowering; without dilation TVM's is used."""
    h = tir.Var("h", "int64")
    pool = Pool((1, 2, 9, 9), (3, 3), (1, 1), (2, 2), (2, 2))
    call = partial(op.grad.max_pool2d_backward, **pool.attributes)
    mod = build.module(call, *[(1, 2, h, 9)] * 2)
    with pytest.raises(Exception, match=r"max_pool2d_backward: dilation \(2, 2\) .* known sizes"):
        tvm.compile(mod, TARGET)


def test_stock_has_its_own_lowering() -> None:
    with relax_ext.stock(), pytest.raises(Exception, match="max_pool2d_backward"):
        tvm.compile(backward(POOLS[3], "float32"), TARGET)
