# SPDX-License-Identifier: Apache-2.0
"""What a chain of fused operators begins with: a convolution, or a matrix product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    constant_value,
    dtype_name,
    known_shape,
    relax,
    same_size,
    tensor_type,
    tensor_type_of,
)
from topi_ext.dtypes import FLOATS
from topi_ext.epilogue import NO_ZERO_POINTS, Fused, PostOp
from topi_ext.problem import OPERANDS, Problem

from .attrs import Conv

R = relax()

RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
"""Operators whose result has the elements of their operand, in the same order."""

PERMUTE = "relax.permute_dims"


def is_view(call: Any) -> bool:
    """Whether a call reshapes or transposes, or broadcasts to the shape that is there."""
    if call.op.name == "relax.broadcast_to":
        before, after = (known_shape(tensor_type_of(one).shape) for one in (call.args[0], call))
        return (
            before is not None and len(before) == len(after) and all(map(same_size, before, after))
        )
    return call.op.name in (*RESHAPES, PERMUTE)


class Anchor(ABC):
    """A call that a kernel of ours computes together with steps behind it.

    Attributes
    ----------
    name : str
        Of the operator, for the kernel.
    dtype : str
        Of its result.
    axes : sequence of str
        The letters of each axis of the result, as it is stored: one, or more where it is a view.
    sizes : mapping
        Of letters.
    needs_axes : bool
        Whether the operand of a step must vary along some axis.
    sums_integers : bool
        Whether operands of steps may be of other dtypes than the result.
    """

    name: str
    dtype: str
    axes: Sequence[str]
    sizes: Mapping[str, Any]
    needs_axes = sums_integers = False

    def view(self, shape: Sequence[Any]) -> bool:
        """Have the result in another shape from here on; whether that can be."""
        del shape
        return False

    def permuted(self, order: Sequence[int]) -> bool:
        """Have the result transposed from here on; whether that costs nothing."""
        del order
        return False

    def seen_by(self, call: Any) -> bool:
        """Have the result as a reshape or a transpose gives it; whether that can be."""
        shape = known_shape(tensor_type_of(call).shape)
        if shape is None:
            return False
        if call.op.name != PERMUTE:
            return self.view(shape)
        axes, count = call_attr(call, "axes"), len(shape)
        order = [int(a) % count for a in axes] if axes else list(reversed(range(count)))
        return self.permuted(order)

    def convert(self, call: Any) -> bool:
        """Have the result in the dtype that `call` gives from here on; whether that can be."""
        del call
        return False

    def mark(self) -> Any:
        """What :meth:`reset` takes the result back to."""
        return None

    def reset(self, mark: Any) -> None:
        """Forget what was done to the result since."""
        del mark

    @abstractmethod
    def lowered(self, fuser: Any, steps: Sequence[PostOp], operands: Sequence[Any]) -> Any:
        """The call of the kernel.

        Parameters
        ----------
        fuser : relax.PyExprMutator
            That visits operands, and has a builder.
        steps : sequence of PostOp
        operands : sequence of relax.Expr
            Of those steps that have one, visited.
        """


class ConvAnchor(Anchor):
    """A convolution or transposed convolution.

    Parameters
    ----------
    call, conv
        The call, as it was, and as it was read.
    target : tvm.target.Target
    found : type
        Of the result.

    Attributes
    ----------
    operands : tuple of relax.Expr
        Data and weight.
    zero_points : tuple of int
        Of both, which are integers of 8 bits where these are not 0.
    """

    def __init__(self, call: Any, conv: Conv, target: Any, found: Any) -> None:
        self.conv, self.target, self.found = conv, target, found
        self.operands, self.zero_points = tuple(call.args[:2]), NO_ZERO_POINTS
        layout = conv.layouts[conv.result]
        self.name, self.dtype = conv.op, conv.dtypes[conv.result]
        self.sums_integers = conv.dtypes["w"] not in FLOATS
        self.axes = tuple(layout.order)
        self.sizes = dict(zip(layout.letters, conv.shape(conv.result)))

    def convert(self, call: Any) -> bool:
        """See :class:`Anchor`: of integers alone, since kernels of floats end in floats."""
        if not self.sums_integers:
            return False
        found, self.dtype = self.found, dtype_name(tensor_type_of(call).dtype)
        self.found = tensor_type(found.shape, self.dtype, found.ndim, found.vdevice)
        return True

    def mark(self) -> Any:
        """See :class:`Anchor`."""
        return self.dtype, self.found

    def reset(self, mark: Any) -> None:
        """See :class:`Anchor`."""
        self.dtype, self.found = mark

    def lowered(self, fuser: Any, steps: Sequence[PostOp], operands: Sequence[Any]) -> Any:
        """See :class:`Anchor`."""
        conv = self.conv
        dtypes = (*(conv.dtypes[role] for role in OPERANDS[conv.face]), self.dtype)
        fused = Fused(tuple(steps), self.zero_points)
        problem = Problem.of(conv.face, conv.geometry, conv.plain, conv.n, dtypes, fused)
        data, weight = (fuser.visit_expr(arg) for arg in self.operands)
        packing = None
        if constant_value(weight) is not None:
            packing, kernel = backend.prepack(problem, self.target)
        else:
            kernel = backend.build(problem, self.target)
        if packing is not None:
            weight = packed(fuser, packing, weight, self.name)
        name = kernel_name(self.name, steps)
        return R.call_tir(
            fuser.builder_.add_func(kernel, name), [data, weight, *operands], self.found
        )


def packed(fuser: Any, packing: Any, weight: Any, name: str) -> Any:
    """The packed weight, which ``FoldConstant`` computes at compile time."""
    kind = tensor_type([packing.elements], packing.dtype, 1)
    packer = fuser.builder_.add_func(packing.func, f"{name}_pack")
    return fuser.builder_.emit(R.call_tir(packer, [weight], kind))


def kernel_name(name: str, steps: Sequence[PostOp]) -> str:
    """Name of a kernel that does all of that."""
    return "_".join([name, *(step.op for step in steps)])
