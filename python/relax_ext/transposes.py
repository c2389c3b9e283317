# SPDX-License-Identifier: Apache-2.0
"""Transposes that are left between kernels: those whose last axis becomes another one."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from topi_ext import backend
from topi_ext.compat import call_attr, dtype_name, known_shape, relax, tensor_type, tensor_type_of
from topi_ext.epilogue import PostOp
from topi_ext.transposition import Transposition

from .anchor import PERMUTE, kernel_name
from .axes import Letters
from .matmul import reshaped
from .target import target_of
from .views import ViewedAnchor, in_letters

R = relax()

_ELEMENTS = 1 << 13
"""Fewer are left to TVM, which can put them into what reads them."""

_SIDE = 8
"""Of the matrices that are transposed, at least."""


class TransposeAnchor(ViewedAnchor):
    """A transpose.

    Parameters
    ----------
    call : relax.Call
    order : sequence of int
        Which axis of the operand each axis is.
    """

    name = "transpose"

    def __init__(self, call: Any, order: Sequence[int]) -> None:
        found = tensor_type_of(call)
        self.x, self.target, self.dtype = call.args[0], target_of(found), dtype_name(found.dtype)
        self.shape = known_shape(found.shape)
        given = tuple(ascii_lowercase[: len(order)])
        turned = tuple(given[axis] for axis in order)
        self.letters = Letters(dict(zip(turned, self.shape)), (given, turned))

    def made(self, steps: Sequence[PostOp]) -> Transposition:
        """What is built."""
        sizes, behind = tuple(self.letters.sizes.items()), in_letters(steps, self.letters)
        x, y = ("".join(axes) for axes in self.letters.tensors)
        return Transposition(sizes, x, y, self.dtype, behind).merged()

    def lowered(self, fuser: Any, steps: Sequence[PostOp], operands: Sequence[Any]) -> Any:
        """See :class:`~relax_ext.anchor.Anchor`."""
        emit, transposition = fuser.builder_.emit, self.made(steps)
        kernel = backend.build(transposition, self.target)
        shape, sizes = transposition.shape, transposition.shape(transposition.y)
        orders = [step.order for step in transposition.epilogue if step.order]
        made = R.call_tir(
            fuser.builder_.add_func(kernel, kernel_name(self.name, steps)),
            [
                reshaped(emit, fuser.visit_expr(self.x), shape(transposition.x)),
                *(reshaped(emit, one, shape(order)) for one, order in zip(operands, orders)),
            ],
            tensor_type(R.ShapeExpr(sizes), self.dtype, len(sizes)),
        )
        return reshaped(emit, emit(made), self.shape)


def read(call: Any) -> TransposeAnchor | None:
    """Read a transpose; None of other calls, of symbolic sizes, small ones, and where the last axis
    stays."""
    found = tensor_type_of(call)
    if call.op.name != PERMUTE or found is None:
        return None
    if not backend.supports("transpose", target_of(found)):
        return None
    shape, axes = known_shape(found.shape), call_attr(call, "axes")
    if not shape or not all(isinstance(size, int) for size in shape):
        return None
    if dtype_name(found.dtype) != "float32" or len(shape) > len(ascii_lowercase) // 2:
        return None
    count = len(shape)
    order = [int(a) % count for a in axes] if axes else list(reversed(range(count)))
    anchor = TransposeAnchor(call, order)
    made = anchor.made(())
    if made.elements < _ELEMENTS or made.x[-1:] == made.y[-1:]:
        return None
    return anchor if min(made.shape(made.x[-1] + made.y[-1])) >= _SIDE else None
