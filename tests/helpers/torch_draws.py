# SPDX-License-Identifier: Apache-2.0
"""Calls of PyTorch's operators with random arguments, for each operator that importers convert."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A function of tensors, and the tensors."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]


Whole = int
"""The type, where `int` is a method."""


class Draw:
    """Random arguments from one seed."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.randrange(2**31))

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def real(self, low: float = 0.25, high: float = 2.0) -> float:
        return round(self.random.uniform(low, high), 3)

    def int(self, low: Whole, high: Whole) -> Whole:
        return self.random.randint(low, high)

    def shape(self, rank: Whole | None = None) -> tuple[Whole, ...]:
        return tuple(self.int(2, 6) for _ in range(rank or self.int(2, 4)))

    def normal(self, *shape: Whole, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        values = torch.randn(shape or self.shape(), generator=self.generator) * 2
        return values.to(dtype)

    def floats(self, *shape: Whole) -> torch.Tensor:
        """Return a tensor of any dtype that models have between layers."""
        return self.normal(
            *shape, dtype=self.pick(torch.float32, torch.float32, torch.float64, torch.float16)
        )

    def positive(self, *shape: Whole) -> torch.Tensor:
        return self.normal(*shape).abs() + 0.1

    def unit(self, *shape: Whole) -> torch.Tensor:
        """Inside (-1, 1)."""
        return torch.tanh(self.normal(*shape)) * 0.99

    def ints(
        self, low: Whole, high: Whole, *shape: Whole, dtype: Any = torch.int64
    ) -> torch.Tensor:
        size = shape or self.shape()
        return torch.randint(low, high, size, generator=self.generator).to(dtype)

    def numbers(self, *shape: Whole) -> torch.Tensor:
        """Floats or integers."""
        if self.pick(True, False):
            return self.floats(*shape)
        return self.ints(-9, 10, *shape, dtype=self.pick(torch.int32, torch.int64))

    def truths(self, *shape: Whole) -> torch.Tensor:
        return self.ints(0, 2, *shape) > 0

    def axis(self, tensor: torch.Tensor) -> Whole:
        return self.int(-tensor.ndim, tensor.ndim - 1)

    def axes(self, tensor: torch.Tensor) -> list[Whole]:
        return sorted(self.random.sample(range(tensor.ndim), self.int(1, tensor.ndim)))


def _unary(function: Callable[..., Any], values: str = "normal") -> Callable[[Draw], Call]:
    return lambda d: Call(function, (getattr(d, values)(),))


def _binary(function: Callable[..., Any], values: str = "floats") -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = getattr(d, values)()
        y = getattr(d, values)(*x.shape[d.int(0, x.ndim - 1) :]).to(x.dtype)
        return Call(function, (x, y))

    return draw


def _with_number(function: Callable[..., Any], values: str = "numbers") -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        number = d.pick(d.int(1, 3), d.real())
        return Call(lambda x: function(x, number), (getattr(d, values)(),))

    return draw


def _scaled(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.numbers()
        alpha = d.int(2, 3) if not x.is_floating_point() else d.real()
        return Call(lambda x, y: function(x, y, alpha=alpha), (x, d.normal(*x.shape).to(x.dtype)))

    return draw


def _scaled_number(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        number, alpha = d.real(), d.real()
        return Call(lambda x: function(x, number, alpha), (d.floats(),))

    return draw


def _reduced(function: Callable[..., Any], values: str = "floats") -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = getattr(d, values)()
        axes, keep = d.axes(x), d.pick(True, False)
        return Call(lambda x: function(x, axes, keep), (x,))

    return draw


def _along(function: Callable[..., Any], values: str = "numbers") -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = getattr(d, values)()
        axis = d.axis(x)
        return Call(lambda x: function(x, axis), (x,))

    return draw


def _typed(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    """A function that is told a dtype."""

    def draw(d: Draw) -> Call:
        x = d.numbers()
        axis, dtype = d.axis(x), d.pick(torch.float32, torch.float64)
        return Call(lambda x: function(x, axis, dtype=dtype), (x,))

    return draw


def _clamp(d: Draw) -> Call:
    x = d.numbers()
    low, high = d.pick(None, d.real(-2, 1), d.int(-3, 1)), d.pick(d.real(0, 2), d.int(0, 3))
    high = high if low is None else d.pick(None, high)
    return Call(lambda x: torch.clamp(x, low, high), (x,))


def _clamp_by_tensors(d: Draw) -> Call:
    x = d.numbers()
    low, high = d.normal(x.shape[-1]).to(x.dtype), d.normal(*x.shape).to(x.dtype)
    if d.pick(True, False):
        return Call(torch.clamp, (x, low, high))
    return Call(lambda x, low: torch.clamp(x, low), (x, low - 1))


def _pad(d: Draw) -> Call:
    x = d.numbers(*(d.int(4, 6) for _ in range(d.int(2, 4))))
    pad = [d.int(-1, 3) for _ in range(2 * d.int(1, x.ndim))]
    value = d.pick(0, 1, 1.5)
    return Call(lambda x: F.pad(x, pad, "constant", value), (x,))


def _pad_mode(d: Draw) -> Call:
    mode, rank = d.pick("reflect", "replicate", "circular"), d.int(1, 2)
    pad = [d.int(0, 2) for _ in range(2 * rank)]
    return Call(lambda x: F.pad(x, pad, mode), (d.normal(*(4,) * (rank + 2)),))


def _matrices(function: Callable[..., Any], *ranks: int) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        n, k, m, b = (d.int(2, 7) for _ in range(4))
        x = d.floats(*(b,) * (ranks[0] - 2), n, k)
        return Call(function, (x, d.normal(*(b,) * (ranks[1] - 2), k, m).to(x.dtype)))

    return draw


def _added_product(function: Callable[..., Any], rank: int) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        n, k, m, b = (d.int(2, 7) for _ in range(4))
        x = d.floats(*(b,) * (rank - 2), n, k)
        y, z = d.normal(*(b,) * (rank - 2), k, m).to(x.dtype), d.normal(m).to(x.dtype)
        alpha, beta = d.pick(1, 0, d.real()), d.pick(1, 0, d.real())
        return Call(lambda z, x, y: function(z, x, y, alpha=alpha, beta=beta), (z, x, y))

    return draw


def _linear(d: Draw) -> Call:
    x = d.floats()
    w, b = d.normal(5, x.shape[-1]).to(x.dtype), d.normal(5).to(x.dtype)
    return Call(F.linear, (x, w, b)[: d.int(2, 3)])


def _pool(function: Callable[..., Any], rank: int, largest: bool) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        kernel = [d.int(1, 4) for _ in range(rank)]
        options: dict[str, Any] = {"padding": [d.int(0, k // 2) for k in kernel]}
        options["stride"] = d.pick(None, [d.int(1, 3) for _ in range(rank)])
        options["ceil_mode"] = d.pick(True, False)
        if largest:
            options["dilation"] = d.pick(1, 2) if max(kernel) < 3 else 1
        else:
            options["count_include_pad"] = d.pick(True, False)
            if rank > 1:
                options["divisor_override"] = d.pick(None, None, 3)
        batch = (2,) * d.pick(1, 2)
        x = d.normal(*batch, *(d.int(6, 9) for _ in range(rank)))
        return Call(lambda x: function(x, kernel, **options), (x,))

    return draw


def _indices(d: Draw) -> Call:
    which = d.int(0, 1)
    return Call(lambda x: F.max_pool2d(x, 2, return_indices=True)[which], (d.normal(1, 2, 6, 6),))


def _adaptive(function: Callable[..., Any], rank: int) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        size = d.pick(1, [d.int(1, 7) for _ in range(rank)])
        size = size if rank > 1 else (size if isinstance(size, int) else size[0])
        x = d.normal(*(2,) * d.pick(1, 2), *(d.int(5, 9) for _ in range(rank)))
        return Call(lambda x: function(x, size), (x,))

    return draw


def _norm(d: Draw) -> Call:
    order, keep, dtype = d.pick(1, 2, 3, 2.5, float("inf")), d.pick(True, False), None
    x = d.normal()
    axes = d.pick(None, d.axes(x))
    dtype = d.pick(None, None, torch.float64)
    return Call(lambda x: torch.linalg.vector_norm(x, order, axes, keep, dtype=dtype), (x,))


def _spread(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.normal()
        axes, correction, keep = d.axes(x), d.pick(None, 0, 1, 1, 2), d.pick(True, False)
        return Call(lambda x: function(x, axes, correction=correction, keepdim=keep), (x,))

    return draw


def _group_norm(d: Draw) -> Call:
    x = d.normal(2, 6, *d.shape(d.int(1, 2)))
    groups, eps, weights = d.pick(1, 2, 3), d.real(0.001, 1), (d.normal(6), d.normal(6))
    if d.pick(True, False):
        return Call(lambda x, w, b: F.group_norm(x, groups, w, b, eps), (x, *weights))
    return Call(lambda x: F.group_norm(x, groups, eps=eps), (x,))


def _layer_norm(d: Draw) -> Call:
    x = d.normal()
    shape, eps = x.shape[d.int(0, x.ndim - 1) :], d.real(0.001, 1)
    weights = (d.normal(*shape), d.normal(*shape))[: d.pick(0, 1, 2)]

    def function(x: Any, weight: Any = None, bias: Any = None) -> Any:
        return F.layer_norm(x, shape, weight, bias, eps)

    return Call(function, (x, *weights))


def _instance_norm(d: Draw) -> Call:
    eps, tracked = d.real(0.001, 1), d.pick(True, False)
    weights = tuple(d.positive(3) for _ in range(4))[: 4 if tracked else d.pick(0, 2)]

    def function(x: Any, *four: Any) -> Any:
        weight, bias, mean, var = (*four, None, None, None, None)[:4]
        return F.instance_norm(x, mean, var, weight, bias, use_input_stats=not tracked, eps=eps)

    return Call(function, (d.normal(2, 3, 4, 5), *weights))


def _batch_norm(d: Draw) -> Call:
    eps, affine = d.real(0.001, 1), d.pick(True, False)
    stats = tuple(d.positive(3) for _ in range(4 if affine else 2))

    def function(x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None) -> Any:
        return F.batch_norm(x, mean, var, weight, bias, eps=eps)

    return Call(function, (d.normal(2, 3, 4, 5), *stats))


def _attention(d: Draw) -> Call:
    q, k, v = (d.normal(2, 3, 5, 4) for _ in range(3))
    scale, causal = d.pick(None, d.real()), d.pick(True, False)
    if causal or d.pick(True, False):
        return Call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale),
            (q, k, v),
        )
    return Call(
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, scale=scale),
        (q, k, v, d.normal(2, 3, 5, 5)),
    )


def _resize(mode: str) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.normal(1, 2, d.int(4, 7), d.int(4, 7))
        options: dict[str, Any] = {"mode": mode}
        if d.pick(True, False):
            options["size"] = [d.int(3, 14), d.int(3, 14)]
        else:
            options["scale_factor"] = d.pick(2, 2.0, [2, 3], 1.5, 0.5, [0.7, 2.3])
            options["recompute_scale_factor"] = d.pick(None, True)
        if mode != "nearest":
            options["align_corners"] = d.pick(True, False)
        return Call(lambda x: F.interpolate(x, **options), (x,))

    return draw


def _antialiased(d: Draw) -> Call:
    size, corners = [d.int(3, 12), d.int(3, 12)], d.pick(True, False)
    return Call(
        lambda x: F.interpolate(x, size, mode="bilinear", align_corners=corners, antialias=True),
        (d.normal(1, 2, 6, 6),),
    )


def _recurrent(kind: str) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        torch.manual_seed(d.int(0, 999))
        first, biases, both = d.pick(True, False), d.pick(True, False), d.pick(True, False)
        layer = getattr(torch.nn, kind)(3, 4, batch_first=first, bias=biases, bidirectional=both)
        states = (2, 2, 4) if both else (1, 2, 4)
        h, c = d.normal(*states), d.normal(*states)
        x = d.normal(2, 2, 3)
        if d.pick(True, False):
            return Call(lambda x: layer(x)[0], (x,))
        if kind == "LSTM":
            return Call(lambda x, h, c: layer(x, (h, c))[0], (x, h, c))
        return Call(lambda x, h: layer(x, h)[0], (x, h))

    return draw


def _cross_entropy(d: Draw) -> Call:
    reduction, smoothing = d.pick("mean", "sum", "none"), d.pick(0.0, 0.0, 0.1)
    return Call(
        lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=smoothing),
        (d.normal(4, 5), d.ints(0, 5, 4)),
    )


def _gather(d: Draw) -> Call:
    x = d.numbers()
    axis = d.axis(x)
    return Call(lambda x, i: torch.gather(x, axis, i), (x, d.ints(0, x.shape[axis], *x.shape)))


def _index_select(d: Draw) -> Call:
    x = d.numbers()
    axis = d.axis(x)
    return Call(lambda x, i: torch.index_select(x, axis, i), (x, d.ints(0, x.shape[axis], 3)))


def _index(d: Draw) -> Call:
    x = d.normal(4, 5, 6)
    indices = [d.ints(-4, 4, 3), d.ints(-4, 4, 3), d.ints(-4, 4, 2, 1)]
    which = d.int(0, 5)

    def function(x: Any, i: Any, j: Any, k: Any) -> Any:
        return (x[i], x[:, i], x[i, j], x[i, k], x[:, i, j], x[i, :, k])[which]

    return Call(function, (x, *indices))


def _index_put(d: Draw) -> Call:
    accumulate, which = d.pick(True, False), d.int(0, 4)
    i, j = torch.tensor([0, 2, -1]), torch.tensor([1, 3, -3])
    shape = ((3, 5, 2), (3, 2), (4, 3, 2), (4, 5, 3), (3, 5))[which]

    def function(x: Any, v: Any, i: Any, j: Any) -> Any:
        indices = ([i], [i, j], [None, i], [None, None, j - j % 2], [i, None, j % 2])[which]
        return aten.index_put(x, indices, v, accumulate)

    # Where places coincide, only sums are defined.
    accumulate = accumulate or which == 3
    return Call(function, (d.normal(4, 5, 4 if which == 3 else 2), d.normal(*shape), i, j))


def _scatter(d: Draw) -> Call:
    x = d.normal(4, 5)
    axis = d.pick(0, 1, -1)
    i = torch.stack([torch.randperm(x.shape[axis], generator=d.generator)[:3] for _ in range(3)])
    i = i if axis else i.T
    if d.pick(True, False):
        return Call(lambda x, i, v: torch.scatter(x, axis, i, v), (x, i, d.normal(3, 3)))
    return Call(lambda x, i: torch.scatter(x, axis, i, 2.5), (x, i))


def _embedding(d: Draw) -> Call:
    padding = d.pick(None, 1)
    return Call(lambda i, w: F.embedding(i, w, padding_idx=padding), (d.ints(0, 5), d.normal(5, 3)))


def _slice(d: Draw) -> Call:
    x = d.numbers(6, 7)
    axis, start, end = d.axis(x), d.pick(None, d.int(-5, 2)), d.pick(None, d.int(3, 9), -1)
    step = d.pick(1, 2)
    return Call(lambda x: aten.slice(x, axis, start, end, step), (x,))


def _slice_scatter(d: Draw) -> Call:
    x = d.normal(6, 7)
    start, end = d.pick(0, 2, -5), d.pick(4, -1, 6)
    part = torch.ops.aten.slice(x, 0, start, end)
    return Call(lambda x, s: torch.slice_scatter(x, s, 0, start, end), (x, -part))


def _select(d: Draw) -> Call:
    x = d.numbers()
    axis = d.axis(x)
    index = d.int(-x.shape[axis], x.shape[axis] - 1)
    return Call(lambda x: x.select(axis, index), (x,))


def _narrow(d: Draw) -> Call:
    return Call(lambda x: x.narrow(1, 2, 3), (d.numbers(3, 6),))


def _sorted(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.normal()
        axis, down, which = d.axis(x), d.pick(True, False), d.int(0, 1)
        return Call(lambda x: function(x, axis, down)[which], (x,))

    return draw


def _topk(d: Draw) -> Call:
    x = d.normal()
    axis, largest, which = d.axis(x), d.pick(True, False), d.int(0, 1)
    return Call(lambda x: torch.topk(x, 2, axis, largest)[which], (x,))


def _pair(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    """A reduction that gives values and indices."""

    def draw(d: Draw) -> Call:
        x = d.normal()
        axis, keep, which = d.axis(x), d.pick(True, False), d.int(0, 1)
        return Call(lambda x: function(x, axis, keep)[which], (x,))

    return draw


def _arg(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.normal()
        axis = d.pick(None, d.axis(x))
        keep = d.pick(True, False) if axis is not None else False
        return Call(lambda x: function(x, axis, keep), (x,))

    return draw


def _split(d: Draw) -> Call:
    x = d.numbers(7, 5)
    size, axis = d.pick(2, 3, 4), d.pick(0, 1, -1)
    return Call(lambda x: torch.split(x, size, axis)[-1] * 2, (x,))


def _split_sizes(d: Draw) -> Call:
    axis, which = d.pick(0, -2), d.int(0, 2)
    return Call(lambda x: torch.split(x, [2, 1, 4], axis)[which] * 2, (d.numbers(7, 5),))


def _chunk(d: Draw) -> Call:
    chunks, axis = d.int(2, 5), d.pick(0, 1, -1)
    return Call(lambda x: torch.chunk(x, chunks, axis)[-1] * 2, (d.numbers(7, 6),))


def _grid_sample(d: Draw) -> Call:
    mode, border = d.pick("bilinear", "nearest", "bicubic"), d.pick("zeros", "border", "reflection")
    corners = d.pick(True, False)
    return Call(
        lambda x, g: F.grid_sample(x, g, mode, border, corners),
        (d.normal(1, 2, 5, 6), d.normal(1, 3, 4, 2) * 0.6),
    )


def _roll(d: Draw) -> Call:
    shifts = d.pick([1], [-2])
    dims = d.pick(None, [0], [-1])
    if dims is None:
        return Call(lambda x: torch.roll(x, shifts), (d.normal(),))
    return Call(lambda x: torch.roll(x, shifts * 2, dims * 2), (d.normal(),))


def _like(function: Callable[..., Any], *args: Any) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        dtype = d.pick(None, torch.int64, torch.float64, torch.bool)
        return Call(lambda x: function(x, *args, dtype=dtype), (d.numbers(),))

    return draw


def _made(function: Callable[..., Any], *args: Any) -> Callable[[Draw], Call]:
    """A tensor from nothing, added to an input that the exported program needs."""

    def draw(d: Draw) -> Call:
        dtype = d.pick(torch.int64, torch.float32, torch.float64)
        return Call(lambda x: function(*args, dtype=dtype) + x, (d.normal(1),))

    return draw


def _isin(d: Draw) -> Call:
    invert = d.pick(True, False)
    x = d.pick(d.ints(0, 9), d.ints(0, 9).float())
    tests = d.ints(0, 9, 3).to(x.dtype)
    return Call(lambda x, t: torch.isin(x, t, invert=invert), (x, tests))


def _bucketize(d: Draw) -> Call:
    right, small = d.pick(True, False), d.pick(True, False)
    return Call(
        lambda x, b: torch.bucketize(x, b, right=right, out_int32=small),
        (d.ints(-3, 4).float(), torch.arange(-2.0, 3.0)),
    )


def _where(d: Draw) -> Call:
    x = d.floats()
    return Call(torch.where, (d.truths(*x.shape), x, d.normal(x.shape[-1]).to(x.dtype)))


def _masked_fill(d: Draw) -> Call:
    x = d.numbers()
    value = d.pick(-2, 1)
    return Call(lambda x, m: x.masked_fill(m, value), (x, d.truths(*x.shape)))


def _cat(d: Draw) -> Call:
    x = d.numbers()
    axis = d.axis(x)
    return Call(lambda x: torch.cat([x, x * 2], axis), (x,))


def _round(d: Draw) -> Call:
    decimals = d.pick(0, 1, -1, 2)
    return Call(lambda x: torch.round(x, decimals=decimals), (d.normal() * 10,))


def _rounded(d: Draw) -> Call:
    mode = d.pick(None, "floor", "trunc")
    x = d.numbers()
    y = (d.normal(*x.shape).abs() + 1).to(x.dtype)
    return Call(lambda x, y: torch.div(x, y, rounding_mode=mode), (x, y))


def _prelu(d: Draw) -> Call:
    x = d.normal(2, 3, 4)
    return Call(F.prelu, (x, d.normal(d.pick(1, 3)).abs()))


def _simple(function: Callable[..., Any], *shape: int) -> Callable[[Draw], Call]:
    return lambda d: Call(function, (d.numbers(*shape),))


def _activation(name: str, *parameters: str) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        options = {p: d.real() for p in parameters}
        return Call(lambda x: getattr(aten, name)(x, **options), (d.floats(),))

    return draw


def _hardtanh(d: Draw) -> Call:
    low, high = d.real(-2, 0), d.real(0, 2)
    return Call(lambda x: F.hardtanh(x, low, high), (d.floats(),))


def _diagonal(d: Draw) -> Call:
    offset, axes = d.pick(0, 1, -2), d.pick((0, 1), (1, 2), (-1, 0))
    return Call(lambda x: torch.diagonal(x, offset, *axes), (d.normal(4, 4, 5),))


def _einsum(d: Draw) -> Call:
    text = d.pick("ij,jk->ik", "ij,jk->ki", "ij,jk->i")
    return Call(lambda x, y: torch.einsum(text, x, y), (d.normal(3, 4), d.normal(4, 5)))


def _meshgrid(d: Draw) -> Call:
    indexing, which = d.pick("ij", "xy"), d.int(0, 1)
    return Call(
        lambda x, y: torch.meshgrid(x, y, indexing=indexing)[which] * 2, (d.normal(3), d.normal(4))
    )


def _triangle(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        diagonal = d.int(-2, 2)
        return Call(lambda x: function(x, diagonal), (d.numbers(2, 4, 5),))

    return draw


def _dropped(d: Draw) -> Call:
    return Call(lambda x: F.dropout(x, 0.5, training=False) * 2, (d.normal(),))


def _gelu(d: Draw) -> Call:
    approximate = d.pick("none", "tanh")
    return Call(lambda x: F.gelu(x, approximate=approximate), (d.normal(),))


def _to(d: Draw) -> Call:
    dtype = d.pick(torch.float32, torch.int32, torch.float64, torch.float16)
    copy = d.pick(True, False)
    return Call(lambda x: x.to(dtype, copy=copy), (d.numbers(),))


def _softmax(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.floats()
        axis, dtype = d.axis(x), d.pick(None, torch.float32, torch.float64)
        return Call(lambda x: function(x, axis, dtype=dtype), (x,))

    return draw


def _bitwise(name: str, d: Draw) -> Call:
    return Call(getattr(torch, f"bitwise_{name}"), (d.ints(0, 99, 3, 4), d.ints(0, 99, 3, 4)))


DRAWS: dict[str, Callable[[Draw], Call]] = {
    **{
        name: _unary(getattr(torch, name))
        for name in (
            *("abs", "asinh", "atan", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor"),
            *("isfinite", "isinf", "isnan", "neg", "relu", "sigmoid", "sign", "sin", "sinh"),
            *("square", "tan", "tanh", "trunc"),
        )
    },
    **{
        name: _unary(getattr(torch, name), "positive")
        for name in ("log", "log2", "log10", "log1p", "reciprocal", "rsqrt", "sqrt")
    },
    **{name: _unary(getattr(torch, name), "unit") for name in ("acos", "asin", "atanh")},
    "acosh": lambda d: Call(torch.acosh, (d.positive() + 1,)),
    "bitwise_not": lambda d: Call(torch.bitwise_not, (d.ints(-9, 9),)),
    "sqrt of integers": lambda d: Call(torch.sqrt, (d.ints(0, 9),)),
    "exp of integers": lambda d: Call(torch.exp, (d.ints(-3, 3),)),
    "sigmoid of integers": lambda d: Call(torch.sigmoid, (d.ints(-3, 3),)),
    "reciprocal of integers": lambda d: Call(torch.reciprocal, (d.ints(1, 9),)),
    # activations
    "celu": _activation("celu", "alpha"),
    "elu": _activation("elu", "alpha", "scale", "input_scale"),
    "gelu": _gelu,
    "hardsigmoid": _unary(F.hardsigmoid, "floats"),
    "hardswish": _unary(F.hardswish, "floats"),
    "hardtanh": _hardtanh,
    "leaky_relu": _activation("leaky_relu", "negative_slope"),
    "log_softmax": _softmax(F.log_softmax),
    "prelu": _prelu,
    "relu6": _unary(F.relu6, "floats"),
    "selu": _unary(F.selu, "floats"),
    "silu": _unary(F.silu, "floats"),
    "softmax": _softmax(F.softmax),
    "softplus": lambda d: Call(
        (lambda beta, threshold: lambda x: F.softplus(x, beta, threshold))(d.real(), d.real()),
        (d.normal() * 2,),
    ),
    "softshrink": _activation("softshrink", "lambd"),
    "softsign": _unary(F.softsign, "floats"),
    "clamp": _clamp,
    "clamp, tensors": _clamp_by_tensors,
    "clamp_min": _with_number(torch.clamp_min),
    "clamp_max": _with_number(torch.clamp_max),
    "dropout": _dropped,
    # arithmetic
    "add, alpha": _scaled(torch.add),
    "sub, alpha": _scaled(torch.sub),
    "rsub, alpha": _scaled(torch.rsub),
    "add, number, alpha": _scaled_number(aten.add.Scalar),
    "sub, number, alpha": _scaled_number(aten.sub.Scalar),
    "rsub, number, alpha": _scaled_number(aten.rsub.Scalar),
    **{
        name: _binary(getattr(torch, name))
        for name in (
            *("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"),
            *("logical_and", "logical_or", "logical_xor", "fmod"),
            *("remainder", "max", "min"),
        )
    },
    **{
        f"{name}, number": _with_number(getattr(torch, name))
        for name in (
            *("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod"),
            *("floor_divide", "pow"),
        )
    },
    "number ** x": lambda d: Call((lambda base: lambda x: base**x)(d.pick(2, 1.5)), (d.normal(),)),
    "x ** y": lambda d: Call(torch.pow, (d.positive(3, 4), d.normal(3, 4))),
    "div, rounded": _rounded,
    "atan2": _binary(torch.atan2, "normal"),
    "logaddexp": _binary(torch.logaddexp, "normal"),
    "logical_not": _simple(torch.logical_not),
    **{f"bitwise_{name}": partial(_bitwise, name) for name in ("and", "or", "xor")},
    "round": _round,
    "isin": _isin,
    "bucketize": _bucketize,
    "where": _where,
    "masked_fill": _masked_fill,
    # products
    "mm": _matrices(torch.mm, 2, 2),
    "bmm": _matrices(torch.bmm, 3, 3),
    "matmul": _matrices(torch.matmul, 3, 2),
    "addmm": _added_product(torch.addmm, 2),
    "baddbmm": _added_product(torch.baddbmm, 3),
    "linear": _linear,
    "outer": lambda d: Call(torch.outer, (d.normal(3), d.normal(4))),
    "einsum": _einsum,
    "diagonal": _diagonal,
    "vector_norm": _norm,
    "attention": _attention,
    # layers
    **{f"avg_pool{r}d": _pool(getattr(F, f"avg_pool{r}d"), r, False) for r in (1, 2, 3)},
    **{f"max_pool{r}d": _pool(getattr(F, f"max_pool{r}d"), r, True) for r in (1, 2, 3)},
    "max_pool2d, indices": _indices,
    **{
        f"adaptive_avg_pool{r}d": _adaptive(getattr(F, f"adaptive_avg_pool{r}d"), r)
        for r in (1, 2, 3)
    },
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "native_layer_norm": lambda d: Call(
        (lambda i: lambda x: torch.native_layer_norm(x, [4], None, None, 0.1)[i])(d.int(0, 2)),
        (d.normal(3, 4),),
    ),
    "instance_norm": _instance_norm,
    "pixel_shuffle": lambda d: Call(lambda x: F.pixel_shuffle(x, 2), (d.numbers(1, 8, 3, 2),)),
    "bilinear": _resize("bilinear"),
    "bicubic": _resize("bicubic"),
    "nearest": _resize("nearest"),
    "bilinear, antialiased": _antialiased,
    "grid_sample": _grid_sample,
    "affine_grid": lambda d: Call(
        lambda t: F.affine_grid(t, [1, 2, 4, 5], align_corners=True), (d.normal(1, 2, 3),)
    ),
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "rnn": _recurrent("RNN"),
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    # reductions
    "sum": _reduced(torch.sum, "numbers"),
    "sum, dtype": _typed(torch.sum),
    "mean": _reduced(torch.mean),
    "mean, dtype": _typed(torch.mean),
    "any": _reduced(torch.any, "numbers"),
    "std": _spread(torch.std),
    "var": _spread(torch.var),
    "var_mean": _spread(lambda *a, **k: torch.add(*torch.var_mean(*a, **k))),
    "prod": lambda d: Call(torch.prod, (d.pick(d.normal(2, 3), d.ints(-3, 4, 2, 3).int()),)),
    "max, axis": _pair(torch.max),
    "median, axis": _pair(torch.median),
    "median": _unary(torch.median),
    "max of all": _simple(torch.max),
    "argmax": _arg(torch.argmax),
    "argmin": _arg(torch.argmin),
    "cumsum": _along(torch.cumsum),
    "cumprod": _along(torch.cumprod),
    "cumsum, dtype": _typed(torch.cumsum),
    "cumprod, dtype": _typed(torch.cumprod),
    # manipulation
    "argsort": lambda d: Call(
        (lambda a, down: lambda x: torch.argsort(x, a, down))(d.pick(0, -1), d.pick(True, False)),
        (d.normal(),),
    ),
    "sort": _sorted(torch.sort),
    "topk": _topk,
    "cat": _cat,
    "chunk": _chunk,
    "split": _split,
    "split_with_sizes": _split_sizes,
    "expand": lambda d: Call(lambda x: x.expand(2, -1, 4) * 2, (d.numbers(3, 1),)),
    "flatten": lambda d: Call(lambda x: torch.flatten(x, 1, -1) * 2, (d.numbers(2, 3, 4),)),
    "flip": lambda d: Call(lambda x: torch.flip(x, [0, -1]), (d.numbers(),)),
    "gather": _gather,
    "index": _index,
    "index_select": _index_select,
    "index_put": _index_put,
    "scatter": _scatter,
    "meshgrid": _meshgrid,
    "narrow": _narrow,
    "permute": lambda d: Call(lambda x: x.permute(2, 0, -2) * 2, (d.numbers(2, 3, 4),)),
    "repeat": lambda d: Call(lambda x: x.repeat(2, 1, 3), (d.numbers(2, 3),)),
    "roll": _roll,
    "select": _select,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "squeeze": lambda d: Call(
        (lambda axis: lambda x: x.squeeze(axis) * 2)(d.pick(1, -2)), (d.numbers(3, 1, 2),)
    ),
    "stack": lambda d: Call(lambda x: torch.stack([x, x * 2], 1), (d.numbers(),)),
    "take": lambda d: Call(torch.take, (d.normal(3, 4), d.ints(0, 12))),
    "tile": lambda d: Call(lambda x: torch.tile(x, (2, 2)), (d.numbers(2, 3),)),
    "transpose": lambda d: Call(lambda x: x.transpose(0, -1) * 2, (d.numbers(),)),
    "tril": _triangle(torch.tril),
    "triu": _triangle(torch.triu),
    "unbind": lambda d: Call(lambda x: torch.unbind(x, 1)[-1] * 2, (d.numbers(2, 3, 4),)),
    "unflatten": lambda d: Call(lambda x: x.unflatten(1, (2, 3)) * 2, (d.numbers(2, 6),)),
    "unsqueeze": lambda d: Call(lambda x: x.unsqueeze(-1) * 2, (d.numbers(),)),
    "pad": _pad,
    "pad, other modes": _pad_mode,
    # creation, dtypes
    "zeros_like": _like(torch.zeros_like),
    "ones_like": _like(torch.ones_like),
    "full_like": _like(torch.full_like, 1),
    "new_zeros": lambda d: Call(
        (lambda t: lambda x: x.new_zeros(3, dtype=t))(d.pick(None, torch.int64)), (d.numbers(),)
    ),
    "new_ones": lambda d: Call(
        (lambda t: lambda x: x.new_ones(3, dtype=t))(d.pick(None, torch.int64)), (d.numbers(),)
    ),
    "zeros": _made(torch.zeros, (2, 3)),
    "ones": _made(torch.ones, (2, 3)),
    "full": _made(torch.full, (2, 3), 2),
    "arange": _made(torch.arange, 1, 9, 2),
    "linspace": lambda d: Call(lambda x: torch.linspace(0, 1, 7) + x, (d.normal(1),)),
    "eye": lambda d: Call(lambda x: torch.eye(3, 4, dtype=torch.float32) * x, (d.normal(1),)),
    "one_hot": lambda d: Call(lambda x: F.one_hot(x, 7), (d.ints(0, 7),)),
    "hamming_window": lambda d: Call(
        (lambda periodic: lambda x: torch.hamming_window(9, periodic, 0.6, 0.4) * x)(
            d.pick(True, False)
        ),
        (d.normal(1),),
    ),
    "to": _to,
    "type_as": lambda d: Call(lambda x, y: x.type_as(y), (d.numbers(), d.numbers())),
}
