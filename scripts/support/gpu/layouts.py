# SPDX-License-Identifier: Apache-2.0
"""Layouts of operands in memory: channels first or last."""

from __future__ import annotations

from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts, permuted

LAST = {1: ("NWC", "OWI", "NWC"), 2: ("NHWC", "OHWI", "NHWC"), 3: ("NDHWC", "ODHWI", "NDHWC")}


def layouts_of(rank: int, *, channels_last: bool) -> Layouts:
    """Return the layouts in which x, w and y are stored."""
    return Layouts(*LAST[rank]) if channels_last else Layouts.canonical(rank)


def stored_shape(geometry: Geometry, n: int, layouts: Layouts, role: str) -> tuple[int, ...]:
    """Return the shape of x, w or y as it is stored."""
    g = geometry
    shape = {"x": g.x_shape(n), "w": g.w_shape, "y": g.y_shape(n)}[role]
    return permuted(getattr(layouts, role), getattr(Layouts.canonical(g.rank), role), shape)
