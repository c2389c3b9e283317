# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the operands, the baseline and the reference."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from topi_ext.spec.geometry import Geometry

from .cases import Case

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_WEIGHT_ONLY = (False, True, False)
_AFFORDABLE = 20_000_000_000  # products in float64: some seconds


def operands(case: Case, dtype: str) -> dict[str, Tensor]:
    """Normally distributed x, w and y, the same in every run."""
    source = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    return {
        role: torch.randn(case.shape(role), generator=source).to(getattr(torch, dtype))
        for role in "xwy"
    }


def states(case: Case, kind: str) -> bool:
    """Return whether one call of PyTorch computes this kind: its padding is symmetric and at least
    0.
    """
    g = case.geometry_of(kind)
    return g.pad_before == g.pad_after and min(g.padding) >= 0


def baseline(case: Case, kind: str, tensors: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """Return the call of PyTorch that a user of the case's operator would make."""
    x, w, y = (tensors[role] for role in "xwy")
    if kind != "conv_weight_grad":
        call, data = forward(case, kind), x if kind == "conv" else y
        return lambda: call(data, w)
    g = case.geometry
    transposed = case.op == "conv_transpose"
    dout, data = (x, y) if transposed else (y, x)
    extra = list(g.output_padding) if transposed else [0] * g.rank
    window = list(g.stride), list(g.pad_before), list(g.dilation)
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(
        dout, data, w, None, *window, transposed, extra, g.groups, _WEIGHT_ONLY
    )[1]


def forward(case: Case, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of PyTorch that computes a convolution of data and weight."""
    g = case.geometry
    stride, padding, dilation = list(g.stride), list(g.pad_before), list(g.dilation)
    if kind == "conv":
        conv = _CONV[g.rank]
        return lambda x, w: conv(x, w, None, stride, padding, dilation, g.groups)
    extra = list(g.output_padding)
    conv_transpose = _CONV_TRANSPOSE[g.rank]
    return lambda y, w: conv_transpose(y, w, None, stride, padding, extra, g.groups, dilation)


def reference(case: Case, kind: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the result by PyTorch, with all padding done around operators that are called without
    any.

    In float64 where that takes seconds at most, else in float32.
    """
    wide = torch.float64 if case.products <= _AFFORDABLE else torch.float32
    g = case.geometry.fitted()
    x, w, y = (tensors[role].to(wide) for role in "xwy")
    window = g.stride, [0] * g.rank, g.dilation
    if kind == "conv":
        return _CONV[g.rank](F.pad(x, _pads(g)), w, None, *window, g.groups)
    if kind == "conv_transpose":
        whole = _CONV_TRANSPOSE[g.rank](y, w, None, g.stride, 0, 0, g.groups, g.dilation)
        return F.pad(whole, [-pad for pad in _pads(g)])
    backward = torch.ops.aten.convolution_backward
    padded = F.pad(x, _pads(g))
    return backward(y, padded, w, None, *window, False, [0] * g.rank, g.groups, _WEIGHT_ONLY)[1]


def _pads(g: Geometry) -> list[int]:
    """Return the padding in the order of ``F.pad``: before and after, from the last axis on."""
    return [pad for pair in reversed(list(zip(g.pad_before, g.pad_after))) for pad in pair]
