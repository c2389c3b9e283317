# SPDX-License-Identifier: Apache-2.0
"""Convolutions that read images before they are enlarged, against PyTorch in float64."""

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
from tvm.relax.frontend.torch import from_exported_program

from helpers import build
from helpers.whole import TARGET, TOLERANCE, check, compiled, ours
from relax_ext.pipeline import pipeline, with_packed_parameters
from topi_ext.compat import tir


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
        ["conv2d", "conv2d1", "resize2d", "resize2d_add_add_relu"],
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_moved(name: str) -> None:
    """The convolution reads the image before its resize, and what follows is part of a resize."""
    merge, given, ins, kernels = MOVED[name]
    torch.manual_seed(0)
    assert check(Head(merge, ins, 5), *given) == kernels


def repeated(x: Tensor, *factors: int) -> Tensor:
    return F.interpolate(x, scale_factor=factors, mode="nearest")


UP = ["conv2d_transpose_add_relu"]
REPEATED = {
    "twice": (lambda x: repeated(x, 2, 2), {"padding": 1}, UP),
    "without padding": (lambda x: repeated(x, 2, 2), {}, UP),
    "more padding": (lambda x: repeated(x, 2, 2), {"padding": 2}, UP),
    "two factors": (lambda x: repeated(x, 3, 2), {"kernel": (5, 4), "padding": (2, 1)}, UP),
    "columns": (lambda x: repeated(x, 1, 4), {"kernel": (1, 5), "padding": (0, 2)}, UP),
    "one of two concatenated": (
        lambda x, y: torch.cat([repeated(y, 2, 2), x], 1),
        {"padding": 1},
        ["conv2d", "conv2d_transpose_add_add_relu"],
    ),
    "two of four concatenated": (
        lambda x, y: torch.cat([x, repeated(y, 2, 2), x * 2, repeated(y + 1, 2, 2)], 1),
        {"padding": 1},
        ["conv2d", "conv2d_transpose", "conv2d_transpose_add_add_add_relu"],
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated(name: str) -> None:
    """The convolution of repeated elements is a transposed one, also where padding cuts it off."""
    merge, options, kernels = REPEATED[name]
    torch.manual_seed(0)
    given = images(16, 8)[-merge.__code__.co_argcount :]
    ins = merge(*given).shape[1]
    assert check(Head(merge, ins, 5, **{"kernel": 3, **options}), *given) == kernels


STAYS = {
    "smaller": (lambda x: F.interpolate(x, (3, 9), mode="bilinear"), 6, 5, {}),
    "more channels": (enlarged, 6, 7, {}),
    "3x3": (enlarged, 6, 5, {"kernel": 3}),
    "repeated, padded beyond the kernel": (
        lambda x: repeated(x, 2, 2),
        6,
        5,
        {"kernel": 3, "padding": 3},
    ),
    "repeated, dilated": (lambda x: repeated(x, 2, 2), 6, 5, {"kernel": 3, "dilation": 2}),
    "padded": (enlarged, 6, 5, {"padding": 1}),
    "strided": (enlarged, 6, 5, {"stride": 2}),
    "groups": (enlarged, 6, 4, {"groups": 2}),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    """The resize comes first where there is nothing to gain, or the two do not commute."""
    merge, ins, outs, more = STAYS[name]
    assert check(Head(merge, ins, outs, **more), *images(5)) == ["conv2d_add_relu", "resize2d"]


def test_the_estimate_of_the_processor_decides() -> None:
    """2x2 taps of elements repeated twice: 9 instead of 16 products, and phases to interleave."""
    head = Head(lambda x: repeated(x, 2, 2), 6, 5, kernel=2)
    assert check(head, *images(5)) in (["conv2d_add_relu", "resize2d"], UP)


def joined(method: str, kernel: int, dtype: str = "float32", weight: Any = None) -> tvm.IRModule:
    """A convolution of an image that is enlarged twice by three and one that is not, of any size.

    The weight is a parameter that is known when the model is loaded, if it is not given.
    """
    height, width = (tir.Var(name, "int64") for name in "hw")
    size = [height * 2, width * 3]

    def body(x: Any, y: Any, w: Any) -> Any:
        up = relax.op.image.resize2d(x, relax.ShapeExpr(size), layout="NCHW", **RESIZES[method])
        both = relax.op.concat([build.emit(up), y], 1)
        given = w if weight is None else relax.const(weight)
        return relax.op.nn.conv2d(both, given, padding=kernel // 2)

    shapes = [1, 4, height, width], [1, 3, *size], [2, 7, kernel, kernel]
    return build.module(body, *shapes, dtype=dtype, attrs={"num_input": 2})


RESIZES = {
    "linear": {"method": "linear"},
    "nearest": {
        "method": "nearest_neighbor",
        "coordinate_transformation_mode": "asymmetric",
        "rounding_method": "floor",
    },
}


def numbers(kernel: int, dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (1, 4, 5, 3), (1, 3, 10, 9), (2, 7, kernel, kernel)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def compare(found: Any, arrays: list[np.ndarray], mode: str) -> None:
    x, y, w = (torch.from_numpy(one).double() for one in arrays)
    up = F.interpolate(x, scale_factor=(2, 3), mode=mode)
    exact = F.conv2d(torch.cat([up, y], 1), w, padding=w.shape[2] // 2).numpy()
    assert abs(found.numpy() - exact).max() <= TOLERANCE * abs(exact).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_symbolic_sizes_and_weights_that_are_arguments(dtype: str) -> None:
    """An image is known to be enlarged by factors; weights of the parts are sliced at run time.

    TVM computes the coordinates of symbolic resizes in float32.
    """
    run, module = compiled(joined("linear", 1, dtype))
    assert sum(name.startswith("conv2d") for name in ours(module)) == 2
    arrays = numbers(1, dtype)
    compare(run(*map(tvm.runtime.tensor, arrays)), arrays, "bilinear")


def test_symbolic_sizes_of_repeated_elements() -> None:
    arrays = numbers(3)
    run, module = compiled(joined("nearest", 3, weight=arrays[2]))
    assert any(name.startswith("conv2d_transpose") for name in ours(module))
    compare(run(*map(tvm.runtime.tensor, arrays)), arrays, "nearest")


@pytest.mark.parametrize(("side", "is_moved"), [(24, True), (12, False)])
def test_weights_that_are_arguments(side: int, is_moved: bool) -> None:
    """Weights of the transposed convolution are computed at each call, for large images."""
    torch.manual_seed(0)
    x = torch.randn(1, 8, side, side)
    model = Head(lambda image: repeated(image, 2, 2), 8, 8, 3, padding=1)
    program = torch.export.export(model.eval(), (x,))
    module = from_exported_program(program, keep_params_as_input=True)
    module, parameters = relax.frontend.detach_params(module)
    run, built = compiled(module)
    assert any(name.startswith("conv2d_transpose") for name in ours(built)) == is_moved
    (found,) = run(tvm.runtime.tensor(x.numpy()), *parameters["main"])
    exact = model.double()(x.double()).detach().numpy()
    assert abs(found.numpy() - exact).max() <= TOLERANCE * abs(exact).max()


def test_weights_that_are_known_when_a_model_is_loaded() -> None:
    """Weights of the transposed convolution are computed and packed once."""
    split = with_packed_parameters(joined("nearest", 3), TARGET)
    main = split["main"].script()
    assert "conv2d_transpose" in main and not any(one in main for one in ("pack", "flip", "pad"))
    executable = tvm.compile(split, TARGET, relax_pipeline=pipeline(TARGET))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arrays = numbers(3)
    x, y, w = map(tvm.runtime.tensor, arrays)
    compare(machine["main"](x, y, *machine["main_transform_params"]([w])), arrays, "nearest")
