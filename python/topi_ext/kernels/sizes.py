# SPDX-License-Identifier: Apache-2.0
"""What a kernel asks of sizes that only run time knows, before it reads anything.

=================  ======================================  =====================================
what is shared     by                                      where it is checked
=================  ======================================  =====================================
batch              x and y                                 TVM, by the shapes of the arguments
channels, kernel   x, w and y                              when types are inferred: constants
spatial sizes      x and y: within one stride (dilation)   inferred where known, else here
=================  ======================================  =====================================
"""

from __future__ import annotations

from ..emit import Expr
from ..geometry import Geometry

_NAMES = {
    "conv": ("data", "output"),
    "conv_transpose": ("output", "data"),
    "conv_weight_grad": ("x", "y"),
}


def rules(face: str, geometry: Geometry) -> list[tuple[Expr, str]]:
    """Conditions on symbolic sizes, and for each the line that says what was broken.

    Of known sizes ``Geometry`` asks the same.
    """
    found: list[tuple[Expr, str]] = []
    x_name, y_name = _NAMES[face]

    def ask(condition: Expr, rule: str) -> None:
        if not isinstance(condition, bool):
            found.append((condition, f"{face}: {rule}"))

    belong = (
        f"sizes of {x_name} and {y_name} must belong to "
        f"kernel={geometry.kernel} stride={geometry.stride} "
        f"padding={geometry.padding} dilation={geometry.dilation}"
    )
    for x, y in zip(geometry.x_size, geometry.y_size):
        ask(x >= 1, f"{x_name} size must be at least 1 on every axis")
        ask(y >= 1, f"{y_name} size must be at least 1 on every axis")
    for axis, extra in enumerate(geometry.output_padding):
        ask(extra >= 0, belong)
        ask(extra < max(geometry.stride[axis], geometry.dilation[axis]), belong)
    return found
