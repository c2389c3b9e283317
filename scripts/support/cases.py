# SPDX-License-Identifier: Apache-2.0
"""Case files: a JSON list of convolutions, each stated by the attributes of one operator.

========================== =========================================================
key                        value
========================== =========================================================
name                       unique in its file
op                         "conv_transpose" (if absent) or "conv": whose attributes these are
x                          shape of that operator's input, ``[n, channels, *size]``, rank 1 to 3
cout                       channels of its output
kernel                     one value, or one per spatial axis
stride, dilation           one value, or one per axis; 1 if absent
padding                    one value, one per axis, or all before and then all after; 0 if absent
output_padding             of "conv_transpose" only; 0 if absent
groups                     1 if absent
source                     where the shape comes from; not used
========================== =========================================================

Whatever the operator, all three kinds of its geometry can be measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from topi_ext.spec.geometry import Geometry

CASES = Path(__file__).parents[1] / "cases"
KINDS = ("conv_transpose", "conv", "conv_weight_grad")

_REQUIRED = {"name", "x", "cout", "kernel"}
_OPTIONAL = {"op", "stride", "padding", "output_padding", "dilation", "groups", "source"}


@dataclass(frozen=True)
class Case:
    """One geometry with its batch, and the operator whose attributes the file states."""

    name: str
    op: str
    n: int
    geometry: Geometry

    def shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of x, w or y."""
        g = self.geometry
        shapes = {"x": g.x_shape(self.n), "w": g.w_shape, "y": g.y_shape(self.n)}
        return shapes[role]

    @property
    def products(self) -> int:
        """Multiply-adds of any kind, those at the borders counted in full."""
        g = self.geometry
        return self.n * g.k * g.c_per_group * g.taps * prod(g.y_size)

    def terms(self, kind: str) -> int:
        """Products that one element of the result adds up, at most."""
        g = self.geometry
        terms = {
            "conv": g.c_per_group * g.taps,
            "conv_transpose": g.k_per_group * g.taps,
            "conv_weight_grad": self.n * prod(g.y_size),
        }
        return terms[kind]

    def as_conv(self) -> Geometry:
        """Return a geometry with the same values whose attributes state ``conv`` without a
        remainder.

        They state the size of y only while x is less than one stride too long; a transposed
        convolution with a large output padding has more.
        """
        g = self.geometry
        fits = all(extra < stride for extra, stride in zip(g.output_padding, g.stride))
        return g if fits else g.fitted()

    def geometry_of(self, kind: str) -> Geometry:
        """Return the geometry of the problem of a kind."""
        return self.as_conv() if kind == "conv" else self.geometry

    def __str__(self) -> str:
        g = self.geometry
        data, out = ("y", "x") if self.op == "conv_transpose" else ("x", "y")
        text = f"{_by(self.shape(data))}→{self.shape(out)[1]} k{_by(g.kernel)} s{_by(g.stride)}"
        if any(g.padding):
            same = g.pad_before == g.pad_after
            text += f" p{_by(g.pad_before)}" if same else f" p{_by(g.padding)}"
        if any(g.output_padding) and self.op == "conv_transpose":
            text += f" op{_by(g.output_padding)}"
        if max(g.dilation) > 1:
            text += f" d{_by(g.dilation)}"
        return text + (f" g{g.groups}" if g.groups > 1 else "")


def _by(values: tuple[int, ...]) -> str:
    """``3`` for equal values, else ``3×5``; shapes and single values as they are."""
    return str(values[0]) if len(set(values)) == 1 else "×".join(map(str, values))


def read_cases(path: Path) -> list[Case]:
    """Read a case file.

    Raises
    ------
    ValueError
        One line that names the case, the value and the rule.
    """
    entries = json.loads(path.read_text())
    if not isinstance(entries, list) or not entries:
        raise ValueError("must be a list of at least one case")
    cases = [case_of(entry, number) for number, entry in enumerate(entries)]
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"name {', '.join(twice)} must be unique")
    return cases


def case_of(entry: Any, number: int) -> Case:
    """One entry of a case file."""
    if not isinstance(entry, dict) or not set(entry) >= _REQUIRED:
        raise ValueError(f"case {number} must be an object with {', '.join(sorted(_REQUIRED))}")
    name, op = str(entry["name"]), entry.get("op", "conv_transpose")
    unknown = sorted(set(entry) - _REQUIRED - _OPTIONAL)
    if unknown:
        raise ValueError(f"{name}: unknown key {', '.join(unknown)}")
    x, cout, kernel = tuple(entry["x"]), entry["cout"], entry["kernel"]
    kernel = (kernel,) * (len(x) - 2) if isinstance(kernel, int) else tuple(kernel)
    groups = entry.get("groups", 1)
    attributes = {key: entry[key] for key in ("stride", "padding", "dilation") if key in entry}
    attributes["groups"] = groups
    extra = entry.get("output_padding", 0)
    if op == "conv_transpose":
        if cout % groups:
            raise ValueError(f"{name}: groups={groups} must divide cout={cout}")
        w = (x[1], cout // groups, *kernel)
        g = Geometry.of_conv_transpose(name, x, w, output_padding=extra, **attributes)
    elif op == "conv":
        if extra and (isinstance(extra, int) or any(extra)):
            raise ValueError(f"{name}: output_padding={extra} must be 0 for op conv")
        g = Geometry.of_conv(name, x, (cout, x[1] // groups, *kernel), **attributes)
    else:
        raise ValueError(f"{name}: op={op!r} must be conv_transpose or conv")
    return Case(name, op, x[0], g)
