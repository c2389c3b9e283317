# SPDX-License-Identifier: Apache-2.0
"""Elements and weights of resizes along one axis, as ONNX and PyTorch define them.

Source: the operator Resize of ONNX, and ``core/providers/cpu/tensor/upsample`` of ONNX Runtime,
which computes positions in float32.
"""

from __future__ import annotations

import numpy as np

Taps = list[tuple[np.ndarray, np.ndarray]]
"""Terms of the elements of a result: pairs of indices and weights."""


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


def _spline(part: np.ndarray, cubic: float) -> list[np.ndarray]:
    """Return the weights of four neighbours by Keys' spline (1981)."""

    def near(t: np.ndarray) -> np.ndarray:
        return ((cubic + 2) * t - (cubic + 3)) * t * t + 1

    def far(t: np.ndarray) -> np.ndarray:
        return ((cubic * t - 5 * cubic) * t + 8 * cubic) * t - 4 * cubic

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]
