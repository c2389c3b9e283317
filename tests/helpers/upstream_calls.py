# SPDX-License-Identifier: Apache-2.0
"""Convolutions to try a patched TVM with: the founding reports and random ones, with PyTorch as
their oracle.  Nothing of this package is imported, nor a TVM.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Call:
    """One call, of any rank; padding is the same on both sides."""

    transposed: bool
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    extra: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1
    layouts: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.strides)

    @property
    def letters(self) -> tuple[str, str, str]:
        data, kernel = "NC" + SPATIAL[self.rank], "IO" if self.transposed else "OI"
        return data, kernel + SPATIAL[self.rank], data


# Output rows that are computed from the data; the gradient of a stride that does not divide; the
# gradient of a depthwise convolution; long transposed convolutions of one axis.
FOUNDING_FORWARD = [
    Call(True, ((1, 1, 2, 3), (1, 1, 2, 2)), (2, 1), (1, 1), (1, 0)),
    Call(True, ((2, 258, 249), (258, 1, 256)), (128,), (64,), (3,)),
    Call(True, ((2, 1, 7), (1, 2, 3)), (3,), (5,), (2,)),
    Call(True, ((2, 258, 249), (258, 1, 7)), (6,), (9,), (4,)),
    Call(True, ((1, 2, 3, 4, 3), (2, 3, 7, 7, 7)), (2,) * 3, (3,) * 3, (1,) * 3),
]
FOUNDING_GRADIENTS = [
    Call(False, ((1, 2, 9, 11), (3, 2, 2, 2)), (2, 4), (1, 0)),
    Call(False, ((1, 32, 224, 224), (32, 1, 3, 3)), (1, 1), (1, 1), groups=32),
]


def random_call(rnd: random.Random) -> Call:
    """Any rank, layouts, groups, stride, dilation, padding and output padding below the stride."""
    rank, transposed = rnd.choice([1, 2, 2, 3]), rnd.random() < 0.6
    axes: list[tuple[int, ...]] = []
    while len(axes) < rank:
        size, kernel, stride, dilation = (rnd.randint(1, most) for most in (5, 4, 3, 3))
        pad, extra, reach = rnd.randint(0, 2), rnd.randint(0, stride - 1), dilation * kernel
        out = (size - 1) * stride + reach - dilation + 1 - 2 * pad + extra
        if not transposed:
            size, out = size + reach, size + 2 * pad + dilation
        if out >= 1:
            axes.append((size, kernel, stride, dilation, pad, extra))
    sizes, kernels, strides, dilations, padding, more = zip(*axes)
    groups = rnd.choice([1, 1, 2, 3])
    ins, outs = groups * rnd.randint(1, 3), groups * rnd.randint(1, 2)
    channels = (ins, outs // groups) if transposed else (outs, ins // groups)
    shapes = (rnd.randint(1, 2), ins, *sizes), (*channels, *kernels)
    call = Call(transposed, shapes, strides, padding, more, dilations, groups)
    layouts = [list(letters) for letters in call.letters]
    if rnd.random() < 0.7:
        for layout in layouts:
            rnd.shuffle(layout)
    return replace(call, layouts=tuple(map("".join, layouts)))


def by_torch(call: Call, x: Any, w: Any) -> Any:
    name = f"conv_transpose{call.rank}d" if call.transposed else f"conv{call.rank}d"
    extra, dilation = call.extra[: call.rank], call.dilation[: call.rank]
    rest = (extra, call.groups, dilation) if call.transposed else (dilation, call.groups)
    return getattr(torch.nn.functional, name)(x, w, None, call.strides, call.padding, *rest)


def stored(call: Call, which: int, array: np.ndarray) -> np.ndarray:
    """An operand, or (2) the result, in its layout."""
    letters, layout = call.letters[which], (call.layouts or call.letters)[which]
    return np.ascontiguousarray(array.transpose([letters.index(axis) for axis in layout]))


def operands(call: Call, rng: np.random.Generator) -> list[np.ndarray]:
    """Data and weight, not stored in their layouts yet."""
    return [rng.standard_normal(shape) for shape in call.shapes]


def stored_shapes(call: Call) -> list[tuple[int, ...]]:
    """Shapes of data and weight in their layouts."""
    return [stored(call, i, np.empty(shape)).shape for i, shape in enumerate(call.shapes)]


def check(
    calls: list[Call], gradients: bool, run: Callable[[int, list[np.ndarray]], list[np.ndarray]]
) -> list[str]:
    """Lines about calls that are wrong; the loss of gradients is the sum of squares.

    Parameters
    ----------
    run : callable
        The result, or both gradients, of a call by its number and its stored operands.
    """
    rng, wrong = np.random.default_rng(0), []
    for number, call in enumerate(calls):
        arrays = operands(call, rng)
        x, w = (torch.tensor(array, requires_grad=True) for array in arrays)
        y = by_torch(call, x, w)
        found = run(number, [stored(call, i, array) for i, array in enumerate(arrays)])
        wanted = [stored(call, 2, y.detach().numpy())]
        if gradients:
            (y * y).sum().backward()
            wanted = [
                stored(call, i, g.grad.numpy()) for i, g in enumerate((x, w)) if g.grad is not None
            ]
        for got, want in zip(found, wanted):
            # At most some ten thousand products in float64.
            limit = 1e-11 * max(1.0, np.abs(want).max())
            if got.shape != want.shape or not np.abs(got - want).max() <= limit:
                wrong.append(f"wrong: gradients={gradients} {call}")
    return wrong


def verdict(
    run: Callable[[list[Call], bool], list[str]], seed: str, count: str, count_gradients: str
) -> list[str]:
    """Lines about wrong calls of the founding reports and of so many random ones."""
    rnd, wrong = random.Random(int(seed)), []
    for gradients, founding, more in (
        (False, FOUNDING_FORWARD, count),
        (True, FOUNDING_GRADIENTS, count_gradients),
    ):
        wrong += run(founding + [random_call(rnd) for _ in range(int(more))], gradients)
    return wrong
