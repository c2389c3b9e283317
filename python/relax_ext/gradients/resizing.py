# SPDX-License-Identifier: Apache-2.0
"""Gradients of resizes and adaptive average pooling, which are linear along each axis.

``y = A x B^T`` with a known matrix for each axis, so ``dx = A^T dy B``.  Where a matrix repeats or
averages elements equally often, sums of blocks and repetitions take its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topi_ext.adapters import resizing
from topi_ext.compat import call_attr, relax, simplify
from topi_ext.spec.geometry import fail

from ..ir import dtype_of
from .parts import Rule, const, float_attr, in_float32, known_size, op_name, reshaped, shape_of

R = relax()
op = R.op

_SPATIAL = {"1d": "W", "2d": "HW", "3d": "DHW"}


def resize(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a resize of two or three axes.

    Raises
    ------
    ValueError
        One line, for symbolic spatial sizes, and for modes without a fixed matrix.
    """
    x = call.args[0]
    for axis in _axes(call):
        size = known_size(call, shape_of(x)[axis], axis)
        target = known_size(call, shape_of(y)[axis], axis)
        matrix = _resize_matrix(call, size, target)
        factor = target // size
        if target == factor * size and _repeats(matrix, factor):
            dy = block_sums(dy, axis, size, factor, bb)
        else:
            dy = bb.emit(multiplied(dy, matrix.T, axis, bb))
    return [dy, *[None] * (len(call.args) - 1)]


def adaptive_average_pool(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate averages of cells, of m from ``floor(j n / m)`` to ``ceil((j + 1) n / m)``.

    Raises
    ------
    ValueError
        One line, for symbolic spatial sizes.
    """
    x = call.args[0]
    share = 1.0
    for axis in _axes(call):
        size = known_size(call, shape_of(x)[axis], axis)
        cells = known_size(call, shape_of(y)[axis], axis)
        if size % cells == 0:
            dy = repeated(dy, axis, size // cells, bb)
            share *= cells / size
            continue
        matrix = np.zeros((cells, size))
        for cell in range(cells):
            low, high = cell * size // cells, -(-(cell + 1) * size // cells)
            matrix[cell, low:high] = 1 / (high - low)
        dy = bb.emit(multiplied(dy, matrix.T, axis, bb))
    return [dy if share == 1 else op.multiply(dy, const(share, x))]


def _axes(call: Any) -> list[int]:
    layout = str(call_attr(call, "layout"))
    letters = _SPATIAL[op_name(call)[-2:]]
    if sorted(layout) != sorted(f"NC{letters}"):
        raise fail(
            op_name(call), f"layout={layout} must be a permutation of NC{letters} for a gradient"
        )
    return [layout.index(letter) for letter in letters]


def _repeats(matrix: np.ndarray, factor: int) -> bool:
    return np.array_equal(matrix, np.repeat(np.eye(matrix.shape[1]), factor, axis=0))


def block_sums(dy: Any, axis: int, size: Any, factor: int, bb: Any) -> Any:
    """Return the sums of `factor` neighbours along an axis, `size` of them."""
    if factor == 1:
        return dy
    sizes = list(shape_of(dy))
    apart = [*sizes[:axis], size, factor, *sizes[axis + 1 :]]
    return bb.emit(op.sum(bb.emit(reshaped(dy, apart)), [axis + 1]))


def repeated(dy: Any, axis: int, factor: int, bb: Any) -> Any:
    """Return each element of an axis `factor` times."""
    if factor == 1:
        return dy
    sizes = list(shape_of(dy))
    before, after = sizes[: axis + 1], sizes[axis + 1 :]
    apart = bb.emit(reshaped(dy, [*before, 1, *after]))
    wide = bb.emit(op.broadcast_to(apart, R.ShapeExpr([*before, factor, *after])))
    return bb.emit(reshaped(wide, [*sizes[:axis], simplify(sizes[axis] * factor), *after]))


def multiplied(tensor: Any, matrix: np.ndarray, axis: int, bb: Any) -> Any:
    """Return `matrix` (n, m) times a tensor along an axis of size m, which then has size n."""
    rank = len(shape_of(tensor))
    dtype = dtype_of(tensor)
    if axis == rank - 2:
        return op.matmul(R.const(np.ascontiguousarray(matrix), dtype), tensor)
    transposed = R.const(np.ascontiguousarray(matrix.T), dtype)
    if axis == rank - 1:
        return op.matmul(tensor, transposed)
    order = [*(a for a in range(rank) if a != axis), axis]
    product = op.matmul(bb.emit(op.permute_dims(tensor, order)), transposed)
    return op.permute_dims(bb.emit(product), [order.index(a) for a in range(rank)])


def _resize_matrix(call: Any, size: int, target: int) -> np.ndarray:
    """Return the weights (target, size) with which an output takes inputs, as topi.image has them.

    An input beyond the border counts as the last one.
    """
    at = _coordinates(call, size, target)
    method = str(call_attr(call, "method"))
    if method == "nearest_neighbor":
        return resizing.matrix(_nearest(call, at, size), size)
    if method == "linear" or (method == "cubic" and not call_attr(call, "cubic_exclude")):
        alpha = float_attr(call, "cubic_alpha")
        return resizing.matrix(resizing.taps(method, at, size, alpha), size)
    raise fail(op_name(call), f"method={method} has no gradient with these attributes")


def _coordinates(call: Any, size: int, target: int) -> np.ndarray:
    """Return where each output lies among the inputs, in float32 as TVM computes it."""
    mode = str(call_attr(call, "coordinate_transformation_mode"))
    one, half = np.float32(1), np.float32(0.5)
    at = np.arange(target, dtype="float32")
    scale = np.float32(size) / np.float32(target)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and target > 1):
        return (at + half) * scale - half
    if mode == "asymmetric":
        return at * scale
    if mode == "tf_half_pixel_for_nn":
        return (at + half) * scale
    if mode == "align_corners" and target > 1:
        return at * (np.float32(size) - one) / (np.float32(target) - one)
    if mode == "pytorch_half_pixel" or mode == "align_corners":
        return np.zeros(1, "float32")
    raise fail(op_name(call), f"coordinate_transformation_mode={mode} has no gradient")


def _nearest(call: Any, at: np.ndarray, size: int) -> resizing.Taps:
    """Return the elements that a resize to the nearest one reads."""
    rounding = str(call_attr(call, "rounding_method"))
    if not rounding:
        corners = str(call_attr(call, "coordinate_transformation_mode")) == "align_corners"
        rounding = "round" if corners else "floor"
    if rounding == "round":
        at, rounding = np.rint(at), "round_prefer_floor"
    shift = {"floor": 1e-5, "ceil": -1e-5}.get(rounding, 0)
    return resizing.nearest(at + np.float32(shift), size, rounding)


RULES: dict[str, Rule] = {
    **{f"relax.image.resize{rank}d": in_float32(resize) for rank in (2, 3)},
    **{f"relax.nn.adaptive_avg_pool{n}d": in_float32(adaptive_average_pool) for n in (1, 2, 3)},
}
