# SPDX-License-Identifier: Apache-2.0
"""NaN, half precision, numbers beyond a dtype and tensors without axes, by ``torch.compile``.

All functions of a table are one graph with a product, in which nothing may stay in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers.torch_backend import compiled

NAN = float("nan")
Function = Callable[[torch.Tensor], Any]

TRUTHS: list[Function] = [
    lambda x: (x != 1, x == 1, x != x.flip(0), ~(x == x.flip(0)), ~(x < x.flip(0)), x == x),
    lambda x: (x.bool(), x.any(), x.all(), x[:1].any(), x.count_nonzero(), x.isnan()),
    lambda x: (torch.logical_and(x, x), torch.logical_or(x, x), torch.logical_xor(x, x.flip(0))),
    lambda x: (torch.logical_not(x), torch.where(x != 0, 1.0, 2.0), torch.ne(x, 0.1)),
    lambda x: (x == 0.1, x >= 0.1, x < 0.1, x == 2049, x >= 2049, x > 1e10, x < -1e39),
]
FUNCTIONS: list[Function] = [
    lambda x: (x.tanh(), x.sigmoid(), x.erf(), x.rsqrt(), x.tan(), x.sinh(), x.cosh(), x.atan()),
    lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.selu(x)),
    lambda x: (F.elu(x), F.celu(x), F.mish(x), F.leaky_relu(x), F.hardswish(x), F.logsigmoid(x)),
    lambda x: (x.log1p(), x.expm1(), x.abs() ** 0.3, torch.atan2(x, x.flip(0)), x.log2()),
    lambda x: (x.cumsum(0), x.softmax(0), x.log_softmax(0), x.var(), x.norm(), x.logsumexp(0)),
]
INTEGERS: dict[torch.dtype, list[int]] = {
    torch.uint8: [-1, 300],
    torch.int8: [200],
    torch.int32: [2**40, -(2**40) - 3],
}
OF_INTEGERS: list[Callable[[torch.Tensor, int], Any]] = [
    lambda x, n: (x > n, x == n, x != n, x <= n, x + n, x - n, x * n, n - x, x & n, x | n),
    lambda x, n: (torch.maximum(x, torch.full((), n)), -x, x.abs(), x.sign()),
    lambda x, n: (x % (n | 1), torch.div(x, n | 1, rounding_mode="floor")),
]
WITHOUT_AXES: list[Function] = [
    lambda x: (x.sum(0), x.mean(-1), x.max(0), x.min(-1), x.amax(0), x.argmax(0), x.argmin()),
    lambda x: (x.softmax(0), x.log_softmax(-1), x.cumsum(0), x.flip(0), x.any(0), x.prod(0)),
    lambda x: (x.norm(dim=0), x.norm(1), x.var(unbiased=False), x.std(), x.sum(0, keepdim=True)),
]
QUOTIENTS: list[Function] = [
    lambda x: (x / 0.0, x / -0.0, F.relu(x) / 0, x[:1].var(), x.var(correction=x.numel())),
    lambda x: (x[:0].mean(), x[:0].std(), x[:0].sum(), x.mean() / 0, (x * 0).reciprocal()),
]


def check(function: Function, x: torch.Tensor, want: Any = None, limit: float = 0.0) -> None:
    weight = torch.ones(2, 2)
    want = function(x) if want is None else want
    with torch.no_grad():
        _, got = compiled(lambda w, x: (w @ w, function(x)))(weight, x)
    pairs = zip(*(torch.utils._pytree.tree_leaves(results) for results in (got, want)))
    for number, (one, other) in enumerate(pairs):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        error = (one.double() - other.double()).abs()
        same = (one == other) | (one.isnan() & other.isnan())
        close = same | (error <= limit * (other.double().abs() + 2.0**-12))
        assert bool(close.all()), (number, one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_truths(dtype: torch.dtype) -> None:
    x = torch.tensor([NAN, 0.0, 1.0, 0.1, 2049.0, -0.0, torch.inf, NAN, -torch.inf], dtype=dtype)
    check(lambda x: [function(x) for function in TRUTHS], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_functions_of_half_precision(number: int, dtype: torch.dtype) -> None:
    """Against PyTorch's: two roundings of the dtype, since PyTorch too may round twice."""
    x = torch.tensor([6.1e-5, 1e-3, 0.01, 0.3, 0.9, 2.5, 4.0, -0.02, -0.5, -2.5, -4.0])
    x = x.abs() if number == 3 else x
    limit = 2 * torch.finfo(dtype).eps
    check(FUNCTIONS[number], x.to(dtype), limit=limit)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_beyond_an_integer_dtype(dtype: torch.dtype) -> None:
    """They wrap around, as in PyTorch."""
    limits = torch.iinfo(dtype)
    x = torch.tensor([0, 1, limits.min, limits.max, 44], dtype=dtype)
    check(lambda x: [f(x, n) for f in OF_INTEGERS for n in INTEGERS[dtype]], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tensors_without_axes(dtype: torch.dtype) -> None:
    check(lambda x: [f(x) for f in WITHOUT_AXES], torch.tensor(5.0, dtype=dtype))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_tensors_without_elements(shape: tuple[int, ...]) -> None:
    """A scan of none ended the process."""
    check(lambda x: [x.cumsum(0), x.cumprod(-1), x.sum(0), x.flip(0), x.exp()], torch.ones(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom.*")
def test_quotients_of_zero(dtype: torch.dtype) -> None:
    check(lambda x: [f(x) for f in QUOTIENTS], torch.tensor([1.0, 0.0, -2.0], dtype=dtype))
