# SPDX-License-Identifier: Apache-2.0
"""A face with its geometry, layouts and dtypes, as data: for tests below the adapters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts

from . import compare, oracle
from .cases import SPATIAL, numbers

OPERANDS = {"conv": "xw", "conv_transpose": "yw", "conv_weight_grad": "xy"}
RESULT = {"conv": "y", "conv_transpose": "x", "conv_weight_grad": "w"}


@dataclass(frozen=True)
class FaceCase:
    """One face to be built and run."""

    face: str
    geometry: Geometry
    n: int = 2
    layouts: Layouts | None = None
    dtypes: tuple[str, str, str] = ("float32",) * 3

    @property
    def roles(self) -> str:
        """Return the roles of both operands and of the result: x, w or y."""
        return OPERANDS[self.face] + RESULT[self.face]

    @property
    def orders(self) -> Layouts:
        return self.layouts or Layouts.canonical(self.geometry.rank)

    def shape(self, role: str) -> tuple[int, ...]:
        """Canonical."""
        g = self.geometry
        return {"x": g.x_shape(self.n), "w": g.w_shape, "y": g.y_shape(self.n)}[role]

    def stored_shape(self, role: str, n: object = None) -> tuple[Any, ...]:
        """Return the shape as stored, with another batch if given."""
        g, order = self.geometry, getattr(self.orders, role)
        n = self.n if n is None else n
        shape = {"x": g.x_shape(n), "w": g.w_shape, "y": g.y_shape(n)}[role]
        return tuple(shape[self._canonical(role).index(letter)] for letter in order)

    def _canonical(self, role: str) -> str:
        return ("OI" if role == "w" else "NC") + SPATIAL[self.geometry.rank]

    def stored(self, role: str, array: np.ndarray) -> np.ndarray:
        order = getattr(self.orders, role)
        return np.ascontiguousarray(oracle.permute(array, self._canonical(role), order))

    def opened(self, role: str, array: np.ndarray) -> np.ndarray:
        return oracle.permute(array, getattr(self.orders, role), self._canonical(role))

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Both operands, canonical."""
        return [numbers(rng, self.shape(r), d) for r, d in zip(self.roles[:2], self.dtypes)]

    @property
    def terms(self) -> int:
        """Products in one element of the result, at most."""
        g = self.geometry
        return {
            "y": g.c_per_group * g.taps,
            "x": g.k_per_group * g.taps,
            "w": self.n * math.prod(g.y_size),
        }[self.roles[2]]

    def want(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The float64 result of canonical operands, by PyTorch."""
        g, x, y = self.geometry, oracle.tensor(a), oracle.tensor(b)
        if self.face == "conv_transpose":
            extra = g.output_padding
            return oracle.conv_transpose(
                x, y, g.stride, g.padding, extra, g.dilation, g.groups
            ).numpy()
        # Fitted: PyTorch derives the size of y, which the geometry knows.
        attributes = (g.stride, g.fitted().padding, g.dilation, g.groups)
        if self.face == "conv":
            return oracle.conv(x, y, *attributes).numpy()
        return oracle.conv_weight_grad(x, y, g.kernel, *attributes).numpy()

    def check(self, got: np.ndarray, a: np.ndarray, b: np.ndarray, *, tiled: bool = False) -> None:
        """Compare a stored result with what canonical operands give.

        Where products may be saved (`tiled`), rounding errors are those of all taps of a tile, also
        of those that meet padding: as large as elsewhere in the same channel.
        """
        magnitude = self.want(*(np.abs(v.astype(np.float64)) for v in (a, b)))
        if tiled and magnitude.size:
            largest = magnitude.max(axis=tuple(range(2, magnitude.ndim)), keepdims=True)
            magnitude = np.broadcast_to(largest, magnitude.shape)
        compare.assert_close(
            self.opened(self.roles[2], got),
            self.want(a, b),
            magnitude,
            self.terms,
            dtypes=self.dtypes,
            what=self,
        )
