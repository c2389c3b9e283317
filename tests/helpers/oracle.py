# SPDX-License-Identifier: Apache-2.0
"""The first oracle: PyTorch in float64, with the padding that PyTorch's own functions lack.

PyTorch takes neither asymmetric nor negative padding, and no output padding that exceeds what its
own size check allows, so padding is done around ``conv*d`` and ``conv_transpose*d`` by
:func:`window`, and both are called without any. Nothing here uses the package under test.
All functions can be differentiated to any order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Ints = Sequence[int]

_AXIS = re.compile(r"([0-9]*)([A-Za-z])")
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def tensor(array: np.ndarray, requires_grad: bool = False) -> torch.Tensor:
    """Return a float64 copy; float16, bfloat16 and small integers are exact in it."""
    return torch.tensor(np.asarray(array).astype(np.float64), requires_grad=requires_grad)


def window(t: torch.Tensor, before: Ints, size: Ints) -> torch.Tensor:
    """Return ``t[..., j - before]`` for ``0 <= j < size``, zero outside of t, per spatial axis."""
    for axis, (b, length) in enumerate(zip(before, size), start=2):
        where = torch.arange(length) - b
        inside = (where >= 0) & (where < t.shape[axis])
        t = t.index_select(axis, where.clamp(0, t.shape[axis] - 1))
        shape = [1] * t.ndim
        shape[axis] = length
        t = t * inside.to(t.dtype).reshape(shape)
    return t


def conv(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
) -> torch.Tensor:
    """``conv{1,2,3}d`` with the padding before every axis, then after; may be negative."""
    rank = len(stride)
    size = [i + b + a for i, b, a in zip(x.shape[2:], padding[:rank], padding[rank:])]
    padded = window(x, padding[:rank], size)
    return _CONV[rank](padded, w, None, tuple(stride), 0, tuple(dilation), groups)


def conv_transpose(
    y: torch.Tensor,
    w: torch.Tensor,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int = 1,
) -> torch.Tensor:
    """``conv_transpose{1,2,3}d``; PyTorch's size formula, padding per side, may be negative."""
    rank = len(stride)
    everything = _CONV_TRANSPOSE[rank](y, w, None, tuple(stride), 0, 0, groups, tuple(dilation))
    size = [
        i - b - a + o
        for i, b, a, o in zip(everything.shape[2:], padding[:rank], padding[rank:], output_padding)
    ]
    return window(everything, [-b for b in padding[:rank]], size)


def conv_weight_grad(
    x: torch.Tensor,
    y: torch.Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
) -> torch.Tensor:
    """The gradient of :func:`conv` in w where y is the gradient of its result."""
    w = torch.zeros(y.shape[1], x.shape[1] // groups, *kernel, dtype=x.dtype, requires_grad=True)
    forward = conv(x, w, stride, padding, dilation, groups)
    keep = x.requires_grad or y.requires_grad
    return torch.autograd.grad(forward, w, y, create_graph=keep)[0]


def permute(array: np.ndarray, source: str, target: str) -> np.ndarray:
    """Store again an array whose axes are named by `source` in the order of `target`.

    Blocks are allowed on either side, as in ``permute(a, "NCHW", "NCHW4c")``; a block holds
    neighbours, and of two blocks of one axis the first is the coarser.
    """
    # Every axis as a coarse part and its blocks, in memory order of the source, then merged.
    axes = _axes(source)
    letters = [letter for letter, block in axes if not block]
    parts = [[i for i, (other, _) in enumerate(axes) if other == letter] for letter in letters]
    parts = [sorted(group, key=lambda i: axes[i][1] > 0) for group in parts]
    sizes = [math.prod(array.shape[i] for i in group) for group in parts]
    array = array.transpose([i for group in parts for i in group]).reshape(sizes)

    # The same backwards.
    axes = _axes(target)
    shape: list[int] = []
    position: dict[Any, int] = {}
    for letter, size in zip(letters, sizes):
        at = [i for i, (other, block) in enumerate(axes) if other == letter and block]
        coarse = [i for i, (other, block) in enumerate(axes) if other == letter and not block]
        shape.append(size // math.prod(axes[i][1] for i in at))
        shape += [axes[i][1] for i in at]
        for i in coarse + at:
            position[i] = len(position)
    return array.reshape(shape).transpose([position[i] for i in range(len(axes))])


def _axes(layout: str) -> list[tuple[str, int]]:
    return [(letter.upper(), int(block or 0)) for block, letter in _AXIS.findall(layout)]
