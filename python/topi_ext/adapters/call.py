# SPDX-License-Identifier: Apache-2.0
"""Read a call of an operator, independently of the IR.

Adapters read calls into this; everything behind it speaks of the forward convolution's x, w and y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..compat import simplify
from ..spec.conv import OPERANDS, RESULT, Convolution
from ..spec.geometry import Geometry
from ..spec.layout import Layout, Layouts


@dataclass(frozen=True)
class Call:
    """One call, read.

    Attributes
    ----------
    op : str
        Name for errors.
    kind : str
        ``"conv"``, ``"conv_transpose"`` or ``"conv_weight_grad"``.
    layouts : dict
        Layout per role, perhaps blocked.
    dtypes : dict
        Dtype per role, ``""`` where not known.
    geometry : Geometry or None
        None where a shape is not known.
    n : int or symbolic
        Batch.
    """

    op: str
    kind: str
    layouts: dict[str, Layout]
    dtypes: dict[str, str]
    geometry: Geometry | None
    n: Any

    @property
    def result(self) -> str:
        """Role of the result."""
        return RESULT[self.kind]

    @property
    def plain(self) -> Layouts:
        """The permutations that are left when the blocks are taken off."""
        return Layouts(**{role: layout.order for role, layout in self.layouts.items()})

    @property
    def known_geometry(self) -> Geometry:
        """Geometry; raises ValueError where a shape is not known."""
        if self.geometry is None:
            raise ValueError(f"{self.op}: the shapes of its operands must be known")
        return self.geometry

    @property
    def problem(self) -> Convolution:
        """The convolution, whose shapes and dtypes must be known, without post-ops."""
        first, second, result = (self.dtypes[role] for role in OPERANDS[self.kind] + self.result)
        dtypes = (first, second, result)
        return Convolution.of(self.kind, self.known_geometry, self.plain, self.n, dtypes)

    def shape(self, role: str) -> tuple[Any, ...]:
        """Return the shape of the tensor `role` in the canonical order."""
        if self.geometry is None:
            raise ValueError(f"{self.op}: the shape of {role} must be known")
        shapes = {
            "x": self.geometry.x_shape(self.n),
            "w": self.geometry.w_shape,
            "y": self.geometry.y_shape(self.n),
        }
        return shapes[role]

    def stored_shape(self, role: str) -> tuple[Any, ...]:
        """Return the shape of the tensor `role` as it is stored."""
        return self.layouts[role].stored_shape(self.op, self.shape(role), simplify)
