# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points, whose values compiled code contains.

They are buffers of a quantized model, and kernels of bytes need their values.  So these are read at
the first call of a graph and compared at later ones.  For other values a part is compiled again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from topi_ext.notices import warn_once

from .executables import Executables, Kept
from .setup import BACKEND


@dataclass(frozen=True, eq=False)
class Values:
    """Values of tensors at one time."""

    arrays: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Values:
        """Return the values of tensors now, which do not change with them."""
        with unset_fake_temporarily():
            return cls(tuple(tensor.detach().numpy().copy() for tensor in tensors))

    def are(self, other: Values) -> bool:
        """Return whether values are equal."""
        return all(map(np.array_equal, self.arrays, other.arrays))


MOST_VALUES = 8
"""Tuples of values for which a part is compiled; there are several where modules share a graph."""

_PARAMETERS = {"scale", "scales", "zero_point", "zero_points", "quant_min", "quant_max"}


def is_quantization(node: fx.Node, value: Any) -> bool:
    """Return whether an input is a parameter of quantization alone, and `value` is its value."""
    stated = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or not node.users:
        return False
    if not isinstance(stated, torch.Tensor) or value.shape != stated.shape:
        return False
    return value.dtype == stated.dtype and all(_reads(user, node) for user in node.users)


def _reads(user: fx.Node, node: fx.Node) -> bool:
    """Return whether a call reads a value as parameters of quantization alone."""
    if getattr(user.target, "namespace", "") != "quantized_decomposed":
        return False
    names = (argument.name for argument in user.target._schema.arguments)  # type: ignore[union-attr]
    given = {**dict(zip(names, user.args)), **user.kwargs}
    return {name for name, argument in given.items() if argument is node} <= _PARAMETERS


class ByValues:
    """The executables of a part by the values that they contain.

    Parameters
    ----------
    make : callable
        ``make(values)`` returns the executables for values.
    values : Values
        Those of the first call.
    """

    def __init__(self, make: Callable[[Values], Executables], values: Values) -> None:
        self._make = make
        self._found = [(values, make(values))]
        self._last = Kept()
        self._lock = threading.Lock()

    @property
    def first(self) -> Executables:
        """Return the executables for the values of the first call."""
        return self._found[0][1]

    def of(self, given: Sequence[torch.Tensor]) -> Executables | None:
        """Return the executables for values; None where too many others were seen."""
        if not given:
            return self.first
        found: Executables | None = self._last.of(given, lambda: self._matching(given))
        return found

    def _matching(self, given: Sequence[torch.Tensor]) -> Executables | None:
        with self._lock:
            now = Values.of(given)
            for values, executables in self._found:
                if values.are(now):
                    return executables
            if len(self._found) == MOST_VALUES:
                said = f"scales have had {MOST_VALUES} values: with others a part stays in PyTorch"
                warn_once(f"{BACKEND}: {said}")
                return None
            self._found.append((now, self._make(now)))
            return self._found[-1][1]
