# SPDX-License-Identifier: Apache-2.0
"""Slices along an axis, whose bounds may be symbolic."""

from __future__ import annotations

from functools import partial
from typing import Any

from topi_ext.compat import relax, simplify, tensor_type

from .calls import Call, dtype_of, shape_of

R = relax()


def sliced(call: Call, x: Any, axis: int, begin: Any, length: Any, step: int = 1) -> Any:
    """Return `length` elements of an axis from `begin` on, every `step`; sizes may be symbolic."""
    end = simplify(begin + (length - 1) * step + 1)
    if isinstance(begin, int) and isinstance(end, int):
        part = call.emit(R.op.strided_slice(x, [axis], [begin], [end], [step]))
        sizes = list(shape_of(x))
        if isinstance(sizes[axis], int):
            return part
        # TVM states min(n, 3) - min(n, 1), at which its passes end the process.
        sizes[axis] = length
        kind = tensor_type(R.ShapeExpr(sizes), dtype_of(x), len(sizes))
        return call.importer.block_builder.match_cast(part, kind)

    # TVM has no type for a slice with symbolic bounds.
    define = partial(_cut, axis, step)
    return call.importer.block_builder.emit_te(define, x, begin, length, primfunc_name_hint="slice")


def _cut(axis: int, step: int, x: Any, begin: Any, length: Any) -> Any:
    from tvm import te

    def element(*index: Any) -> Any:
        return x(*index[:axis], index[axis] * step + begin, *index[axis + 1 :])

    return te.compute([*x.shape[:axis], length, *x.shape[axis + 1 :]], element, name="slice")
