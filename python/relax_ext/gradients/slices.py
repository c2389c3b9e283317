# SPDX-License-Identifier: Apache-2.0
"""Slices with a step along one axis, whose bounds may be symbolic, and their transposes."""

from __future__ import annotations

from functools import partial
from typing import Any

from topi_ext.compat import relax, simplify, tensor_type, tir

from ..ir import dtype_of
from .parts import reshaped, shape_of

R = relax()
op = R.op


def sliced(bb: Any, x: Any, axis: int, begin: Any, length: Any, step: int = 1) -> Any:
    """Return `length` elements of an axis from `begin` on, every `step`."""
    end = simplify(begin + (length - 1) * step + 1)
    if isinstance(begin, int) and isinstance(end, int):
        part = bb.emit(op.strided_slice(x, [axis], [begin], [end], [step]))
        sizes = list(shape_of(x))
        if isinstance(sizes[axis], int):
            return part
        # TVM states min(n, 3) - min(n, 1), at which its passes end the process.
        sizes[axis] = length
        return bb.match_cast(part, tensor_type(R.ShapeExpr(sizes), dtype_of(x), len(sizes)))

    # TVM has no type for a slice with symbolic bounds.
    define = partial(_cut, axis, step)
    return bb.emit_te(define, x, begin, length, primfunc_name_hint="slice")


def _cut(axis: int, step: int, x: Any, begin: Any, length: Any) -> Any:
    from tvm import te

    def element(*index: Any) -> Any:
        return x(*index[:axis], index[axis] * step + begin, *index[axis + 1 :])

    return te.compute([*x.shape[:axis], length, *x.shape[axis + 1 :]], element, name="slice")


def placed(bb: Any, part: Any, axis: int, begin: Any, step: int, size: Any) -> Any:
    """Return zeros of `size` along an axis, with `part` from `begin` on, every `step`."""
    sizes = list(shape_of(part))
    length = sizes[axis]
    around = [0, 0] * axis, [0, 0] * (len(sizes) - axis - 1)
    if step > 1:
        # Zeros between elements are a padded axis; those after the last element are removed.
        apart = bb.emit(reshaped(part, [*sizes[: axis + 1], 1, *sizes[axis + 1 :]]))
        wide = bb.emit(op.nn.pad(apart, [*around[0], 0, 0, 0, step - 1, *around[1]]))
        sizes[axis] = simplify(length * step)
        length = simplify((length - 1) * step + 1)
        part = sliced(bb, bb.emit(reshaped(wide, sizes)), axis, 0, length)
    behind = simplify(size - begin - length)
    if not (isinstance(begin, int) and isinstance(behind, int)):
        define = partial(_between_zeros, axis)
        return bb.emit_te(define, part, begin, size, primfunc_name_hint="pad")
    if not (begin or behind):
        return part
    return bb.emit(op.nn.pad(part, [*around[0], begin, behind, *around[1]]))


def _between_zeros(axis: int, x: Any, begin: Any, size: Any) -> Any:
    """Return zeros with `x` along an axis from `begin` on."""
    from tvm import te

    def element(*index: Any) -> Any:
        at = index[axis] - begin
        inside = tir.all(at >= 0, at < x.shape[axis])
        value = x(*index[:axis], at, *index[axis + 1 :])
        return tir.if_then_else(inside, value, tir.const(0, x.dtype))

    return te.compute([*x.shape[:axis], size, *x.shape[axis + 1 :]], element, name="pad")
