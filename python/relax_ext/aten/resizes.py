# SPDX-License-Identifier: Apache-2.0
"""Resizes of one to three axes by nearest elements, linearly or cubically, and their gradients.

Resizes of float32 and half precision are the operators of Relax, for which there is a kernel.  They
compute in float32.  So float64 is computed axis by axis as sums of elements, and so are resizes for
which TVM would round to other elements than PyTorch.

Source: ``aten/src/ATen/native/UpSample.h`` of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from topi_ext.adapters.resizing import KEYS, Taps, matrix, of_torch, reads_sizes
from topi_ext.compat import relax, same_size, tensor_type

from ..gradients.resizing import block_sums, multiplied, repeated
from ..ir import are_same, dtype_of, sizes_of
from ..legalizations.reshapes import of_equal_sizes
from ..op.resizing import along
from .calls import Call, Converter, Refused, wide

R = relax()

_METHODS = {
    "upsample_nearest1d": "nearest_neighbor",
    "upsample_nearest2d": "nearest_neighbor",
    "upsample_nearest3d": "nearest_neighbor",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "linear",
    "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
}
"""The method in Relax of each operator."""

OPERATORS = tuple(_METHODS)
"""Names of the operators, without overload."""


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        **{f"{name}.default": partial(_forward, method) for name, method in _METHODS.items()},
        **{
            f"{name}_backward.default": partial(_backward, method)
            for name, method in _METHODS.items()
        },
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        **{f"{name}.vec": partial(_forward, method) for name, method in _METHODS.items()},
        "_upsample_bilinear2d_aa.default": _antialiased,
        **dict.fromkeys(("grid_sampler.default", "grid_sampler_2d.default"), _sampled),
    }


@dataclass(frozen=True)
class Axis:
    """A resize along one axis.

    Attributes
    ----------
    method : str
        ``nearest_neighbor``, ``linear`` or ``cubic``.
    size, target : int or expression
        Number of elements before and after.
    corners : bool
        Whether the first and last elements keep their positions.
    scale : float or None
        The factor that the call states.
    """

    method: str
    size: Any
    target: Any
    corners: bool
    scale: Any

    @property
    def is_known(self) -> bool:
        """Return whether both sizes are numbers."""
        return isinstance(self.size, int) and isinstance(self.target, int)

    @property
    def is_as_in_relax(self) -> bool:
        """Return whether the operator of Relax reads the same elements."""
        if self.scale is not None and not self.corners and not self._has_scale_of_sizes():
            return False
        if self.method != "nearest_neighbor":
            return True
        if not self.is_known:
            return any(same_size(self.size * factor, self.target) for factor in range(1, 17))
        scale = np.float32(self.size) / np.float32(self.target)
        at = np.floor(np.arange(self.target, dtype="float32") * scale + np.float32(1e-5))
        return np.array_equal(np.clip(at.astype(int), 0, self.size - 1), self.taps()[0][0])

    def _has_scale_of_sizes(self) -> bool:
        if self.is_known:
            return bool(self.size * self.scale == self.target)
        is_whole = isinstance(self.scale, (int, float)) and self.scale == int(self.scale)
        return is_whole and same_size(self.size * int(self.scale), self.target)

    @property
    def factor(self) -> int | None:
        """Return how often a nearest resize repeats each element, None if the numbers differ."""
        if self.method == "nearest_neighbor" and self.is_as_in_relax:
            factors = (n for n in range(1, 17) if same_size(self.size * n, self.target))
            return next(factors, None)
        return None

    def taps(self, by_sizes: bool = True) -> Taps:
        """Return the terms of each element."""
        return of_torch(self.method, self.size, self.target, self.corners, self.scale, by_sizes)


def _scales(call: Call, rank: int) -> list[Any]:
    """Return the factor that a call states for each axis, or None."""
    if "scale_factors" in call:
        return call["scale_factors"] or [None] * rank
    names = ("scales", "scales_d", "scales_h", "scales_w")
    return [call[name] for name in names if name in call]


def _axes(
    method: str, before: Sequence[Any], after: Sequence[Any], corners: bool, scales: Sequence[Any]
) -> list[Axis]:
    return [Axis(method, *axis[:2], corners, axis[2]) for axis in zip(before, after, scales)]


def _forward(method: str, call: Call) -> Any:
    x = call["self" if "self" in call else "input"]
    after = _targets(call, call.fake("self" if "self" in call else "input"), call.value)
    corners = bool(call.get("align_corners", False))
    return resized(call, x, method, after, corners, _scales(call, len(after)))


def resized(
    call: Call, x: Any, method: str, after: Sequence[Any], corners: bool, scales: Sequence[Any]
) -> Any:
    """Return images in another size.

    Parameters
    ----------
    call : Call
    x : relax.Expr
    method : str
        ``nearest_neighbor``, ``linear`` or ``cubic``.
    after : sequence of int or expression
        The size.
    corners : bool
        Whether the first and last elements keep their positions.
    scales : sequence of float or None
        The factors that the call states.
    """
    dtype, sizes = dtype_of(x), list(sizes_of(x))
    if ("float" not in dtype and method != "nearest_neighbor") or 0 in sizes:
        raise call.refusal(f"a resize of {dtype} or of no elements")
    x = call.cast(x, wide(dtype))
    axes = _axes(method, sizes[2:], after, corners, scales)
    is_plain = "float" in dtype and dtype != "float64"
    if is_plain and all(axis.is_as_in_relax or _is_rounded(call, axis) for axis in axes):
        y = call.emit(_resize(_images(call, x), axes))
        return call.cast(call.reshape(y, [*sizes[:2], *after]), dtype)
    for number, axis in enumerate(axes, 2):
        x = _along(call, x, number, axis, reads_sizes(after))
    return call.cast(x, dtype)


def _is_rounded(call: Call, axis: Axis) -> bool:
    """Return whether the operator of Relax is taken though rounding may choose other elements."""
    return call.is_imported and not axis.is_known and axis.scale is None


def _antialiased(call: Call) -> Any:
    """Resize to a larger size, where nothing is filtered.

    With `align_corners` PyTorch's filter is centred at other places than those of the corners.
    """
    before, after = tuple(call.shape("self")[2:]), tuple(call.shape()[2:])
    if call["align_corners"]:
        raise Refused("upsample", "antialias=True must come with align_corners=False")
    if not all(isinstance(b, int) and isinstance(a, int) and b <= a for a, b in zip(after, before)):
        raise Refused(
            "upsample", f"antialias=True must come with a larger size: {before} to {after}"
        )
    return resized(call, call["self"], "linear", after, False, [None, None])


def _sampled(call: Call) -> Any:
    """Sample images at the places of a grid, which TVM has with its coordinates as channels."""
    return call.emit(
        R.op.image.grid_sample(
            call["input"],
            call.permuted(call["grid"], (0, 3, 1, 2)),
            method=("bilinear", "nearest", "bicubic")[call["interpolation_mode"]],
            layout="NCHW",
            padding_mode=("zeros", "border", "reflection")[call["padding_mode"]],
            align_corners=call["align_corners"],
        )
    )


def _backward(method: str, call: Call) -> Any:
    dtype = call.dtype()
    dy = call.cast(call["grad_output"], wide(dtype))
    before = call.shape()
    after = [*before[:2], *_targets(call, call.value, call.fake("grad_output"))]
    if 0 in after:
        raise call.refusal("a resize of no elements")
    if not are_same(after, list(sizes_of(dy))):
        dy = of_equal_sizes(call.builder, dy, after)
    corners = bool(call.get("align_corners", False))
    axes = _axes(method, before[2:], after[2:], corners, _scales(call, len(before) - 2))
    if dtype != "float64" and all(axis.is_known and axis.is_as_in_relax for axis in axes):
        images = _images(call, dy)
        sizes = list(sizes_of(images)[:2]) + [1] * (len(axes) == 1) + before[2:]
        place = R.Var("resized", tensor_type(R.ShapeExpr(sizes), wide(dtype), len(sizes)))
        dx = call.emit(call.gradient(_resize(place, axes), images))
        return call.cast(call.reshape(dx, before), dtype)
    for number, axis in enumerate(axes, 2):
        dy = _gathered(call, dy, number, axis)
    return call.cast(dy, dtype)


def _targets(call: Call, small: torch.Tensor, large: torch.Tensor) -> list[Any]:
    """Return the sizes of `large` as multiples of those of `small`, where PyTorch states these.

    A size in the place of one that is equal may show no factor.
    """
    targets = []
    for before, after in zip(small.shape[2:], large.shape[2:]):
        (one, other), (size, target) = call.stated([before, after]), call.sizes([before, after])
        factors = (n for n in range(1, 17) if same_size(one * n, other))
        targets.append(next((size * n for n in factors), target))
    return targets


def _images(call: Call, x: Any) -> Any:
    """Return a tensor with at least two spatial axes."""
    sizes = list(sizes_of(x))
    return call.reshape(x, [*sizes[:2], 1, *sizes[2:]]) if len(sizes) == 3 else x


def _resize(images: Any, axes: Sequence[Axis]) -> Any:
    """Return the resize of images as an operator of Relax."""
    method, corners = axes[0].method, axes[0].corners
    transformation = "align_corners" if corners else "half_pixel"
    sizes = [1] * (len(axes) == 1) + [axis.target for axis in axes]
    is_volume = len(axes) == 3
    return (R.op.image.resize3d if is_volume else R.op.image.resize2d)(
        images,
        R.ShapeExpr(sizes),
        layout="NCDHW" if is_volume else "NCHW",
        method=method,
        coordinate_transformation_mode="asymmetric" if "nearest" in method else transformation,
        rounding_method="floor" if "nearest" in method else "",
        cubic_alpha=KEYS,
    )


def _along(call: Call, x: Any, number: int, axis: Axis, by_sizes: bool) -> Any:
    """Return a tensor resized along an axis by reading its elements."""
    if axis.factor is not None:
        return repeated(x, number, axis.factor, call.builder)
    _check_known(call, axis)
    return along(call.emit, x, number, axis.taps(by_sizes))


def _gathered(call: Call, dy: Any, number: int, axis: Axis) -> Any:
    """Return the gradient along an axis: sums of repetitions, or a product with a matrix."""
    if axis.factor is not None:
        return block_sums(dy, number, axis.size, axis.factor, call.builder)
    _check_known(call, axis)
    return call.emit(multiplied(dy, matrix(axis.taps(), axis.size).T, number, call.builder))


def _check_known(call: Call, axis: Axis) -> None:
    if not axis.is_known:
        raise call.refusal("a resize to symbolic sizes")
