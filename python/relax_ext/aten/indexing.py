# SPDX-License-Identifier: Apache-2.0
"""Scatters that write one element of each row, computed by comparing indices.

An index out of range writes nothing.  Gathers and general scatters stay in PyTorch, which checks
their indices; TVM would access memory outside of the tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topi_ext.compat import relax, same_size

from .calls import Call, Converter, shape_of
from .shapes import broadcast

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {"scatter.value": _scatter, "scatter.src": _scatter}


def _scatter(call: Call) -> Any:
    """Return a tensor with one element of each row replaced: gradients of losses and maxima."""
    x, index = call["self"], call["index"]
    sizes, given = list(shape_of(x)), list(shape_of(index))
    if not sizes:
        raise call.refusal("no axes")
    axis = call["dim"] % len(sizes)
    rows = [*sizes[:axis], 1, *sizes[axis + 1 :]]
    if not all(map(same_size, given, rows)):
        raise call.refusal("must write one element of each row")
    (size,) = call.numbers([sizes[axis]])
    places = np.arange(size, dtype="int64").reshape([-1] + [1] * (len(sizes) - axis - 1))
    is_here = call.emit(R.op.equal(index, R.const(places, "int64")))
    if "value" in call:
        source = call.tensor(call["value"], call.dtype())
    else:
        if not all(map(same_size, shape_of(call["src"]), rows)):
            raise call.refusal("must read one element of each row")
        source = broadcast(call, call["src"], sizes)
    return call.emit(R.op.where(is_here, source, x))
