# SPDX-License-Identifier: Apache-2.0
"""1x1 convolutions before the resizes that enlarge their images, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from torch import Tensor, nn
from tvm import relax

from helpers.whole import TOLERANCE, check, compiled, ours
from topi_ext.compat import tensor_type, tir


def enlarged(x: Tensor, mode: str = "bilinear", scale: int = 2, **more: Any) -> Tensor:
    return F.interpolate(x, scale_factor=scale, mode=mode, **more)


class Head(nn.Module):
    """A convolution of what a function makes of images."""

    def __init__(
        self, merge: Callable[..., Tensor], ins: int, outs: int, kernel: int = 1, **more: Any
    ) -> None:
        super().__init__()
        self.merge = merge
        self.conv = nn.Conv2d(ins, outs, kernel, **more)

    def forward(self, *images: Tensor) -> Tensor:
        return self.conv(self.merge(*images)).relu()


def images(*sizes: int) -> list[Tensor]:
    return [torch.randn(2, channels, side, side) for channels, side in zip((6, 8, 9), sizes)]


ONE = ["conv2d", "resize2d_add_relu"]

MOVED = {
    "bilinear": (enlarged, images(5), 6, ONE),
    "nearest": (lambda x: enlarged(x, "nearest", 3), images(4), 6, ONE),
    "between corners": (lambda x: enlarged(x, align_corners=True), images(5), 6, ONE),
    "one axis": (lambda x: F.interpolate(x, (5, 12), mode="bilinear"), images(5), 6, ONE),
    "feature maps of three sizes": (
        lambda x, y, z: torch.cat([enlarged(z, scale=4), x, enlarged(y)], 1),
        images(8, 4, 2),
        23,
        ["conv2d", "conv2d1", "conv2d2", "resize2d", "resize2d_add_add_add_relu"],
    ),
    "a second reader": (
        lambda x, y: torch.cat([x * (up := enlarged(y)).mean(), up, enlarged(y + 1)], 1),
        images(8, 4),
        22,
        ["conv2d", "conv2d1", "conv2d_add_add_add_relu", "resize2d", "resize2d1"],
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_moved(name: str) -> None:
    """The convolution reads the image before its resize, and what follows is part of a resize."""
    merge, given, ins, kernels = MOVED[name]
    torch.manual_seed(0)
    assert check(Head(merge, ins, 5), *given) == kernels


STAYS = {
    "smaller": (lambda x: F.interpolate(x, (3, 9), mode="bilinear"), 6, 5, {}),
    "more channels": (enlarged, 6, 7, {}),
    "3x3": (enlarged, 6, 5, {"kernel": 3}),
    "padded": (enlarged, 6, 5, {"padding": 1}),
    "strided": (enlarged, 6, 5, {"stride": 2}),
    "groups": (enlarged, 6, 4, {"groups": 2}),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    """The resize comes first where there is nothing to gain, or the two do not commute."""
    merge, ins, outs, more = STAYS[name]
    assert check(Head(merge, ins, outs, **more), *images(5)) == ["conv2d_add_relu", "resize2d"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_symbolic_sizes_and_weights_that_are_arguments(dtype: str) -> None:
    """An image is known to be enlarged by factors; weights of the parts are sliced at run time.

    TVM computes the coordinates of symbolic resizes in float32.
    """
    height, width = (tir.Var(name, "int64") for name in "hw")
    x = relax.Var("x", tensor_type([1, 4, height, width], dtype, 4))
    y = relax.Var("y", tensor_type([1, 3, height * 2, width * 3], dtype, 4))
    w = relax.Var("w", tensor_type([2, 7, 1, 1], dtype, 4))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, y, w]):
        with bb.dataflow():
            size = relax.ShapeExpr([height * 2, width * 3])
            up = bb.emit(relax.op.image.resize2d(x, size, layout="NCHW", method="linear"))
            joined = bb.emit(relax.op.concat([up, y], 1))
            out = bb.emit_output(relax.op.nn.conv2d(joined, w))
        bb.emit_func_output(out)
    run, module = compiled(bb.get())
    assert sum(name.startswith("conv2d") for name in ours(module)) == 2
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape) for shape in ((1, 4, 5, 3), (1, 3, 10, 9), (2, 7, 1, 1))]
    arrays = [one.astype(dtype) for one in given]
    images = [torch.from_numpy(one).double() for one in arrays]
    up = F.interpolate(images[0], scale_factor=(2, 3), mode="bilinear")
    exact = F.conv2d(torch.cat([up, images[1]], 1), images[2]).numpy()
    result = run(*map(tvm.runtime.tensor, arrays)).numpy()
    assert abs(result - exact).max() <= TOLERANCE * abs(exact).max()
