# SPDX-License-Identifier: Apache-2.0
"""Slices along an axis, whose bounds may be symbolic."""

from __future__ import annotations

from functools import partial
from typing import Any

from topi_ext.compat import relax, simplify

from .calls import Call, shape_of

R = relax()


def sliced(call: Call, x: Any, axis: int, begin: Any, length: Any, step: int = 1) -> Any:
    """Return `length` elements of an axis from `begin` on, every `step`; sizes may be symbolic."""
    end = simplify(begin + (length - 1) * step + 1)
    if all(isinstance(size, int) for size in (shape_of(x)[axis], begin, end)):
        return call.emit(R.op.strided_slice(x, [axis], [begin], [end], [step]))

    # TVM has no type for a slice with symbolic bounds.  Of a symbolic axis it states sizes like
    # min(n, 3) - min(n, 1), at which its passes end the process.
    define = partial(_cut, axis, step)
    return call.importer.block_builder.emit_te(define, x, begin, length, primfunc_name_hint="slice")


def _cut(axis: int, step: int, x: Any, begin: Any, length: Any) -> Any:
    from tvm import te

    def element(*index: Any) -> Any:
        return x(*index[:axis], index[axis] * step + begin, *index[axis + 1 :])

    return te.compute([*x.shape[:axis], length, *x.shape[axis + 1 :]], element, name="slice")
