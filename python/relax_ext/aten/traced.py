# SPDX-License-Identifier: Apache-2.0
"""The converters for nodes of traced graphs, which state neither schemas nor types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from types import SimpleNamespace
from typing import Any

from topi_ext.spec.geometry import fail

from . import attention, resizes
from .calls import Call, dtype_of, shape_of


class TracedCall(Call):
    """A call whose arguments are given by name, and whose result is not known.

    Attributes
    ----------
    name : str
        The function, for errors.
    """

    def __init__(self, importer: Any, name: str, given: Mapping[str, Any]) -> None:
        self.importer, self.name, self._given = importer, name, SimpleNamespace(**given)

    def refusal(self, why: str) -> ValueError:  # type: ignore[override]  # raised, as Unsupported
        """Return the exception that refuses this call."""
        return fail(self.name, why)

    def shape(self, name: str | None = None) -> list[Any]:
        """Return the shape of a tensor argument."""
        return list(shape_of(self[str(name)]))

    def dtype(self, name: str | None = None) -> str:
        """Return the dtype of a tensor argument."""
        return dtype_of(self[str(name)])


def attended(importer: Any, given: Mapping[str, Any]) -> Any:
    """Return ``scaled_dot_product_attention``."""
    return attention.attention(TracedCall(importer, "scaled_dot_product_attention", given))


def interpolated(importer: Any, given: Mapping[str, Any]) -> Any:
    """Return ``interpolate`` of images."""
    call = TracedCall(importer, "interpolate", given)
    x, mode = call["input"], call["mode"]
    method = {"nearest": "nearest_neighbor", "bicubic": "cubic"}.get(mode, "linear")
    if call["antialias"] or mode not in ("nearest", "bicubic", *resizes.LINEAR):
        raise call.refusal(f"mode={mode!r} with antialias={call['antialias']} is not known")
    before = shape_of(x)[2:]
    factors = _per_axis(call["scale_factor"], len(before))
    size = _per_axis(call["size"], len(before))
    if call["size"] is None:
        if not all(isinstance(n, int) or f == int(f) for n, f in zip(before, factors)):
            raise call.refusal(f"scale_factor={factors} needs sizes known at import")
        size = [n * int(f) if f == int(f) else floor(n * f) for n, f in zip(before, factors)]
    if call["recompute_scale_factor"]:
        factors = [None] * len(before)
    return resizes.resized(call, x, method, size, bool(call["align_corners"]), factors)


def _per_axis(values: Any, rank: int) -> list[Any]:
    return list(values) if isinstance(values, Sequence) else [values] * rank
