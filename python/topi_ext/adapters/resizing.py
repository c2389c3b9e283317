# SPDX-License-Identifier: Apache-2.0
"""Elements and weights of resizes along one axis, as ONNX and PyTorch define them.

Source: the operator Resize of ONNX, and ``core/providers/cpu/tensor/upsample`` of ONNX Runtime,
which computes positions in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np

from ..spec.geometry import fail

KEYS = -0.75
"""The parameter of Keys' spline in PyTorch."""

FIRST = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"simple"}
"""Attributes of the first Resize, and of Upsample before it."""

Taps = list[tuple[np.ndarray, np.ndarray]]
"""Terms of the elements of a result: pairs of indices and weights."""


@dataclass(frozen=True)
class Resize:
    """A node ``Resize`` of ONNX.

    Attributes
    ----------
    method : str
        ``nearest``, ``linear`` or ``cubic``.
    mode : str
        ``coordinate_transformation_mode``.
    rounding : str
        ``nearest_mode``.
    cubic : float
        The parameter of Keys' spline.
    inside : bool
        Whether a cubic resize leaves out elements beyond the ends.
    before, after : list of int or expression
        Sizes of all axes.
    scales : list of float or None
        The factors that the node states for all axes, None where it states sizes.
    """

    method: str
    mode: str
    rounding: str
    cubic: float
    inside: bool
    before: list[Any]
    after: list[Any]
    scales: list[float] | None

    @property
    def is_by_ratio(self) -> bool:
        """Return whether the ratio of the sizes is the factor of each axis behind the first two."""
        ends = zip(self.before[2:], self.after[2:])
        if self.rounding == "simple":
            return False
        if self.mode == "align_corners" and any(n != 1 and m == 1 for n, m in ends):
            return False  # a division by zero
        if {0, 1} & set(self.axes):
            return False
        factors = zip(self.before, self.scales or (), self.after)
        return all(
            scale == int(scale) or (isinstance(n, int) and np.float32(scale) * n == m)
            for n, scale, m in factors
        )

    @property
    def axes(self) -> list[int]:
        """Return the axes that change."""
        scales = self.scales or [1.0] * len(self.before)
        triples = enumerate(zip(self.before, self.after, scales))
        return [axis for axis, (n, m, scale) in triples if scale != 1 or (n is not m and n != m)]

    def taps(self, axis: int) -> Taps:
        """Return the terms of the elements along an axis."""
        size, target = self.before[axis], self.after[axis]
        scale = target / size if self.scales is None else self.scales[axis]
        at = positions(self.mode, size, target, scale)
        if self.method == "nearest":
            return nearest(at, size, self.rounding)
        return taps(self.method, at, size, self.cubic, self.inside)


def of_onnx(
    before: Sequence[Any],
    scales: Sequence[float] | None,
    sizes: Sequence[Any] | None,
    attributes: Mapping[str, Any],
) -> Resize:
    """Read a node.

    Parameters
    ----------
    before : sequence of int or expression
        Sizes of the data.
    scales, sizes : sequence or None
        Its operands, of which one is None.
    attributes : mapping
        As the importers of TVM have them.

    Raises
    ------
    ValueError
        One line for a node that this package does not compute.
    """

    def text(name: str, default: str) -> str:
        value = attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    axes = [axis % len(before) for axis in attributes.get("axes") or range(len(before))]
    policy = text("keep_aspect_ratio_policy", "stretch")
    after, factors = list(before), [1.0] * len(before)
    if policy != "stretch" and sizes is not None:
        ratios = [size / before[axis] for size, axis in zip(sizes, axes)]
        ratio = (min if policy == "not_larger" else max)(ratios)
        scales, sizes = [ratio] * len(axes), [floor(ratio * before[axis] + 0.5) for axis in axes]
    for number, axis in enumerate(axes):
        if scales is not None:
            factors[axis] = scales[number]
            after[axis] = _scaled(before[axis], scales[number])
        if sizes is not None:
            after[axis] = sizes[number]
    if attributes.get("antialias") and not all(
        isinstance(n, int) and isinstance(m, int) and m >= n for n, m in zip(before[2:], after[2:])
    ):
        raise fail("Resize", f"antialias=1 must come with larger sizes: {before} to {after}")
    rounding = text("nearest_mode", "round_prefer_floor")
    if rounding == "simple" and scales is not None and min(scales) >= 1:
        rounding = "floor"
    return Resize(
        text("mode", "nearest"),
        text("coordinate_transformation_mode", "half_pixel"),
        rounding,
        float(attributes.get("cubic_coeff_a", -0.75)),
        bool(attributes.get("exclude_outside", 0)),
        list(before),
        after,
        None if scales is None else factors,
    )


def _scaled(size: Any, scale: float) -> Any:
    """Return a size times a factor, rounded down."""
    if isinstance(size, int):
        return int(np.float32(scale) * np.float32(size))
    if scale != int(scale):
        raise fail("Resize", f"scales={scale:g} of a size that is not known must be whole")
    return size if scale == 1 else size * int(scale)


def reads_sizes(after: Sequence[Any]) -> bool:
    """Return whether PyTorch reads equal and double sizes of a nearest resize whatever the factor.

    Its kernel of two axes of at most 128 elements does, and so do all gradients.
    """
    return len(after) == 2 and all(isinstance(n, int) for n in after) and sum(after) <= 128


def of_torch(
    method: str,
    size: int,
    target: int,
    corners: bool,
    scale: float | None,
    by_sizes: bool = True,
) -> Taps:
    """Return the terms along an axis of ``interpolate``.

    Source: ``aten/src/ATen/native/UpSample.h`` of PyTorch.

    Parameters
    ----------
    method : str
        ``nearest_neighbor``, ``linear`` or ``cubic``.
    size, target : int
        Number of elements before and after.
    corners : bool
        Whether the first and last elements keep their positions.
    scale : float or None
        The factor that the call states.
    by_sizes : bool
        The result of :func:`reads_sizes`.
    """
    if method == "nearest_neighbor":
        at = np.arange(target)
        by_sizes = by_sizes or scale is None
        if target == 2 * size and by_sizes:
            at = at // 2
        elif target != size or not by_sizes:
            step = np.float32(size) / np.float32(target) if scale is None else np.float32(1 / scale)
            at = np.floor(at.astype("float32") * step).astype(int)
        return [(np.minimum(at, size - 1), np.ones(target))]
    if method == "linear" and size == target:
        return [(np.arange(size), np.ones(size))]
    at = np.arange(target, dtype="float64")
    if corners:
        return taps(method, at * ((size - 1) / (target - 1) if target > 1 else 0), size, KEYS)
    step = size / target if scale is None else 1 / scale
    return taps(method, step * (at + 0.5) - 0.5, size, KEYS)


def positions(mode: str, size: int, target: int, scale: float) -> np.ndarray:
    """Return where the elements of a result lie in an axis.

    Parameters
    ----------
    mode : str
        ``coordinate_transformation_mode`` of ONNX.
    size, target : int
        Number of elements before and after.
    scale : float
        The factor, from which ``target / size`` may differ.
    """
    at, factor = np.arange(target, dtype="float32"), np.float32(scale)
    if mode == "align_corners":
        return at * np.float32(size - 1) / np.float32(max(target - 1, 1))
    if mode == "asymmetric":
        return at / factor
    middle = (at + np.float32(0.5)) / factor
    if mode == "tf_half_pixel_for_nn":
        return middle
    if mode == "pytorch_half_pixel" and target == 1:
        return at
    if mode == "half_pixel_symmetric":
        missing = np.float32(1) - np.float32(target) / (factor * np.float32(size))
        middle = middle + np.float32(size) / np.float32(2) * missing
    return middle - np.float32(0.5)


def nearest(at: np.ndarray, size: int, rounding: str) -> Taps:
    """Return the nearest elements; `rounding` is ``nearest_mode`` of ONNX."""
    half = np.float32(0.5)
    if rounding == "simple":  # of the first Resize
        rounding = "ceil" if len(at) < size else "floor"
    index = {
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
        "round_prefer_floor": lambda: np.ceil(at - half),
        "round_prefer_ceil": lambda: np.floor(at + half),
    }[rounding]()
    return [(np.clip(index.astype(int), 0, size - 1), np.ones(len(at)))]


def taps(method: str, at: np.ndarray, size: int, cubic: float, inside: bool = False) -> Taps:
    """Return the terms of a linear or cubic resize.

    Parameters
    ----------
    method : str
    at : numpy.ndarray
        Positions of the results.
    size : int
        Number of elements.
    cubic : float
        The parameter of Keys' spline.
    inside : bool
        Whether a cubic resize leaves out elements beyond the ends, which repeat the last otherwise.
    """
    if method == "linear":
        at = np.clip(at, 0, size - 1)
        low = np.floor(at).astype(int)
        part = at - low
        return [(low, 1 - part), (np.minimum(low + 1, size - 1), part)]
    low = np.floor(at).astype(int)
    around = [low + offset for offset in (-1, 0, 1, 2)]
    weights = _spline(at - low, cubic)
    if inside:
        weights = [w * ((i >= 0) & (i < size)) for i, w in zip(around, weights)]
        total = np.sum(weights, axis=0)
        weights = [w / total for w in weights]
    return [(np.clip(i, 0, size - 1), w) for i, w in zip(around, weights)]


def matrix(terms: Taps, size: int) -> np.ndarray:
    """Return the weights (target, size) of the elements, for their terms."""
    weights = np.zeros((len(terms[0][0]), size))
    for indices, factors in terms:
        np.add.at(weights, (np.arange(len(indices)), indices), factors)
    return weights


def _spline(part: np.ndarray, cubic: float) -> list[np.ndarray]:
    """Return the weights of four neighbours by Keys' spline (1981)."""

    def near(t: np.ndarray) -> np.ndarray:
        return ((cubic + 2) * t - (cubic + 3)) * t * t + 1

    def far(t: np.ndarray) -> np.ndarray:
        return ((cubic * t - 5 * cubic) * t + 8 * cubic) * t - 4 * cubic

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]
