# SPDX-License-Identifier: Apache-2.0
"""Reshapes, transposes, resizes and neighbouring axes of symbolic sizes in the pipeline: the
structure of the functions, and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op

from helpers import build
from helpers.whole import compiled, ours
from topi_ext.compat import tir, with_replaced

Sizes = tuple[Any, ...]

EXACT = 0
"""Elements are moved, or added once: no error."""

LINEAR_TOLERANCE = 1e-6
"""Maximum error of linear resizes of normal numbers: two products and a sum along each axis."""

N, C, H, W = (tir.Var(name, "int64") for name in "nchw")


def pipelined(shape: Sizes, expression: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The compiled function of one tensor, and its module."""
    return compiled(build.module(expression, shape))


def called(function: Any, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = function(tvm.runtime.tensor(x)).numpy()
    return result


def loops(mod: Any) -> list[Any]:
    """Loops of functions that are no kernels."""
    found: list[Any] = []
    names = ours(mod)
    for name, func in mod.functions_items():
        if isinstance(func, tir.PrimFunc) and name.name_hint not in names:
            with_replaced(func.body, {"For": found.append})
    return found


def extents(mod: Any) -> list[str]:
    """Names of sizes over which a loop runs."""
    return [str(getattr(loop.extent, "name", "")) for loop in loops(mod)]


def divisions(mod: Any) -> list[Any]:
    """Quotients and remainders by symbolic sizes in functions that are no kernels."""
    found: list[Any] = []

    def note(node: Any) -> None:
        if not isinstance(node.b, tir.IntImm):
            found.append(node)

    for _, func in mod.functions_items():
        if isinstance(func, tir.PrimFunc):
            with_replaced(func.body, dict.fromkeys(("FloorDiv", "FloorMod"), note))
    return found


RESHAPES: dict[str, tuple[Sizes, Sizes]] = {
    "positions": ((N, C, H, W), (N, C, H * W)),
    "groups": ((N, 64, H, W), (N, 8, 8, H, W)),
    "groups and positions": ((N, 64, H, W), (N, 8, 8 * H * W)),
    "merged channels": ((N, 8, 8, H, W), (N, 64, H, W)),
    "units": ((N, 1, H), (N, 1, 1, H, 1)),
    "flat": ((N, C, H), (N * C * H,)),
    "across": ((N, 6, H), (N * 2, 3 * H)),
}
"""Shapes before and after."""


def filled(shape: Sizes, sizes: dict[Any, int]) -> tuple[int, ...]:
    return tuple(sizes.get(size, size) if isinstance(size, tir.Var) else size for size in shape)


@pytest.mark.smoke
@pytest.mark.parametrize("case", RESHAPES)
def test_reshapes_divide_by_no_symbolic_size(case: str) -> None:
    """Between two functions, and as a result, which shares no memory with the operand."""
    before, after = RESHAPES[case]
    wanted = relax.ShapeExpr(after)
    between, mod = pipelined(
        before, lambda x: op.add(op.reshape(op.multiply(x, x), wanted), relax.const(1.0))
    )
    alone, single = pipelined(before, lambda x: op.reshape(x, wanted))
    assert not divisions(mod) and not divisions(single)
    for sizes in ((2, 3, 5, 7), (1, 1, 1, 1), (3, 2, 1, 9), (0, 2, 3, 4), (2, 3, 0, 4)):
        shape = filled(before, dict(zip((N, C, H, W), sizes)))
        x = np.random.default_rng(1).integers(0, 99, shape).astype("float32")
        got = called(between, x)
        np.testing.assert_array_equal(got.ravel(), (x * x + np.float32(1)).ravel())
        given = tvm.runtime.tensor(x)
        result = alone(given)
        np.testing.assert_array_equal(result.numpy().ravel(), x.ravel())
        pointers = [np.from_dlpack(one).ctypes.data for one in (given, result)]
        assert x.size == 0 or pointers[0] != pointers[1]


@pytest.mark.smoke
def test_reshapes_between_functions_are_no_functions() -> None:
    """Positions are merged before the second of two products, which would need divisions."""
    _, mod = pipelined(
        (N, C, H, W),
        lambda x: op.add(
            op.reshape(op.multiply(x, x), relax.ShapeExpr((N, C, H * W))), relax.const(1.0)
        ),
    )
    names = [name.name_hint for name, func in mod.functions_items() if hasattr(func, "body")]
    assert not [name for name in names if name.startswith(("reshape", "copy"))]


@pytest.mark.smoke
@pytest.mark.parametrize("shape", [(N, C, H), (N, 16, H), (2, C, 37)], ids=str)
def test_transposes_of_symbolic_sizes_are_ours(shape: Sizes) -> None:
    """With and without post-ops, also of fewer columns than a vector has lanes."""
    plain, mod = pipelined(shape, lambda x: op.permute_dims(x, [0, 2, 1]))
    steps, _ = pipelined(shape, lambda x: op.nn.relu(op.permute_dims(x, [0, 2, 1])))
    assert ours(mod) == ["transpose"]
    for sizes in ((2, 16, 37), (1, 1, 1), (3, 300, 5), (2, 3, 70), (0, 4, 5), (2, 0, 5)):
        x = np.random.default_rng(2).standard_normal(
            filled(shape, dict(zip((N, C, H), sizes))), "float32"
        )
        want = x.transpose(0, 2, 1)
        np.testing.assert_array_equal(called(plain, x), want)
        np.testing.assert_array_equal(called(steps, x), np.maximum(want, 0))


RESIZES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "nearest": (
        {
            "method": "nearest_neighbor",
            "coordinate_transformation_mode": "asymmetric",
            "rounding_method": "floor",
        },
        {"mode": "nearest"},
    ),
    "linear": (
        {"method": "linear", "coordinate_transformation_mode": "half_pixel"},
        {"mode": "bilinear"},
    ),
    "corners": (
        {"method": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "bilinear", "align_corners": True},
    ),
}
"""A resize in Relax and in PyTorch."""


@pytest.mark.smoke
@pytest.mark.parametrize("case", RESIZES)
@pytest.mark.parametrize("shape", [(N, 3, H, W), (N, C, 6, 7)], ids=["image", "batch"])
def test_resizes_of_symbolic_sizes_are_ours(case: str, shape: Sizes) -> None:
    how, oracle = RESIZES[case]
    size = relax.ShapeExpr([2 * shape[2], 3 * shape[3]])
    function, mod = pipelined(shape, lambda x: op.image.resize2d(x, size, **how))
    assert ours(mod) == ["resize2d"]
    for sizes in ((2, 3, 6, 7), (1, 1, 1, 1), (3, 2, 5, 33), (1, 2, 40, 3), (0, 1, 2, 3)):
        x = np.random.default_rng(3).standard_normal(
            filled(shape, dict(zip((N, C, H, W), sizes))), "float32"
        )
        after = 2 * x.shape[2], 3 * x.shape[3]
        wide = torch.from_numpy(x).double()
        limit = EXACT if case == "nearest" else LINEAR_TOLERANCE
        want = (
            torch.nn.functional.interpolate(wide, after, **oracle).numpy()
            if x.size
            else np.zeros((*x.shape[:2], *after))
        )
        np.testing.assert_allclose(called(function, x), want, rtol=0, atol=limit)


@pytest.mark.smoke
def test_images_of_symbolic_sizes_are_one_loop() -> None:
    """Rows of an image may be short: three loops, whose last one is over all positions."""
    scale = relax.const(np.arange(16, dtype="float32").reshape(16, 1, 1))
    function, mod = pipelined((N, 16, H, W), lambda x: op.multiply(op.add(x, x), scale))
    assert len(loops(mod)) == 3
    for sizes in ((2, 5, 7), (1, 1, 1), (3, 1, 40), (0, 2, 3), (2, 3, 0)):
        x = np.ones(filled((N, 16, H, W), dict(zip((N, H, W), sizes))), "float32")
        want = x * 2 * np.arange(16, dtype="float32").reshape(16, 1, 1)
        np.testing.assert_array_equal(called(function, x), want)


@pytest.mark.parametrize("channels", [2, 16])
def test_operands_that_vary_along_one_axis_keep_the_loops(channels: int) -> None:
    """A weight of each column, and of positions of all images, which are one loop for all rows."""
    columns, mod = pipelined(
        (N, channels, H, W), lambda x: op.multiply(x, op.sum(x, [0, 1, 2], keepdims=True))
    )
    assert "w" in extents(mod)
    x = np.random.default_rng(4).integers(0, 9, (3, channels, 5, 7)).astype("float32")
    np.testing.assert_array_equal(called(columns, x), x * x.sum((0, 1, 2), keepdims=True))


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["sum", "max"])
def test_positions_of_symbolic_images_are_one_row(name: str) -> None:
    """No loop reduces a row of an image alone, and no length of a chunk is a quotient."""
    _, mod = pipelined((N, C, H, W), lambda x: getattr(op, name)(op.multiply(x, x), [2, 3]))
    assert not divisions(mod)
    assert not {"h", "w"} & set(extents(mod))
