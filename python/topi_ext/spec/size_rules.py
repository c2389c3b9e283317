# SPDX-License-Identifier: Apache-2.0
"""Rules for sizes that are known only at run time, checked before a kernel reads anything.

=================  ======================================  =====================================
what is shared     by                                      where it is checked
=================  ======================================  =====================================
batch              x and y                                 TVM, by the shapes of the arguments
channels, kernel   x, w and y                              when types are inferred: constants
spatial sizes      x and y: within one stride (dilation)   inferred where known, else here
=================  ======================================  =====================================
"""

from __future__ import annotations

from collections.abc import Sequence

from .geometry import Geometry, Size

_NAMES = {
    "conv": ("data", "output"),
    "conv_transpose": ("output", "data"),
    "conv_weight_grad": ("x", "y"),
}


Rule = tuple[Size, str]
"""A condition on sizes, and the line that says what was broken."""


def rules(kind: str, geometry: Geometry) -> list[Rule]:
    """Return the rules for symbolic sizes. ``Geometry`` checks the same rules for known sizes."""
    x_name, y_name = _NAMES[kind]
    found = []
    for x, y in zip(geometry.x_size, geometry.y_size):
        found.append((x >= 1, f"{kind}: {x_name} size must be at least 1 on every axis"))
        found.append((y >= 1, f"{kind}: {y_name} size must be at least 1 on every axis"))
    return unknown(found + belonging(kind, x_name, y_name, geometry))


def belonging(op: str, x_name: str, y_name: str, geometry: Geometry) -> list[Rule]:
    """Return the rules that x is long enough for y, and less than a stride (or dilation) too
    long.
    """
    line = (
        f"{op}: sizes of {x_name} and {y_name} must belong to "
        f"kernel={geometry.kernel} stride={geometry.stride} "
        f"padding={geometry.padding} dilation={geometry.dilation}"
    )
    limits = map(max, geometry.stride, geometry.dilation)
    return [
        (condition, line)
        for extra, limit in zip(geometry.output_padding, limits)
        for condition in (extra >= 0, extra < limit)
    ]


def unknown(asked: Sequence[Rule]) -> list[Rule]:
    """Return the rules that have to be checked at run time; types decide the others."""
    return [(condition, line) for condition, line in asked if not isinstance(condition, bool)]
