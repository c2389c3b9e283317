# SPDX-License-Identifier: Apache-2.0
"""A matched call that a kernel computes, and the common lowering of such calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from topi_ext import backend
from topi_ext.backend import Packing
from topi_ext.compat import constant_value, relax, size_at, tensor_type
from topi_ext.fusion.anchors import Anchor
from topi_ext.fusion.post_ops import Step
from topi_ext.spec.post_ops import PostOp

from ..target import target_of
from .views import reshaped

R = relax()


class Match(NamedTuple):
    """A call, read.

    Attributes
    ----------
    anchor : Anchor
    inputs : tuple of relax.Expr
        Operands of the kernel, in order: data, or data and weight.
    type : tensor type
        Type of the call's result.
    steps : sequence of (PostOp, operand)
        Post-ops that belong to the call itself.
    """

    anchor: Anchor
    inputs: tuple[Any, ...]
    type: Any
    steps: Sequence[Step] = ()

    @property
    def is_supported(self) -> bool:
        """Return whether the target has kernels for it."""
        problem = self.anchor.problem(())
        return bool(backend.supports(problem.kind, target_of(self.type), problem.zero_points))


def lowered(
    builder: Any,
    match: Match,
    anchor: Anchor,
    steps: Sequence[PostOp],
    operands: Sequence[Any],
    is_packed: bool = False,
    expected: Mapping[str, int] | None = None,
) -> Any:
    """Return the call of the kernel, whose function is added to the module.

    Parameters
    ----------
    builder : relax.BlockBuilder
    match : Match
        Its inputs are those of the function that is built.
    anchor : Anchor
        The anchor of `match`, with the views of the chain.
    steps : sequence of PostOp
    operands : sequence of relax.Expr or numpy.ndarray
        Operands of those steps that have one.
    is_packed : bool
        Whether a function of its own packs the weight, as of a weight that is a constant.
    expected : mapping of str to int, optional
        Values that symbolic sizes are expected to have.
    """
    problem = anchor.problem(steps).expecting(partial(size_at, symbols=expected or {}))
    target, arguments = target_of(match.type), list(match.inputs)
    is_constant = anchor.has_weight and constant_value(arguments[1]) is not None
    if is_constant or is_packed:
        packing, kernel = backend.prepack(problem, target)
    else:
        packing, kernel = None, backend.build(problem, target)
    arguments += [R.const(one) if isinstance(one, np.ndarray) else one for one in operands]
    result, ndim = match.type.shape, match.type.ndim
    if anchor.merges_axes:
        *shapes, sizes = (shape for _, _, shape, _ in problem.arguments())
        arguments = [reshaped(builder, *pair) for pair in zip(arguments, shapes)]
        result, ndim = R.ShapeExpr(sizes), len(sizes)
    if packing is not None:
        arguments[1] = _packed(builder, packing, arguments[1], anchor.name)
    done = [*(step.op for step in steps), *(["concat"] if problem.is_part else [])]
    name = builder.add_func(kernel, "_".join([anchor.name, *done]))
    kind = tensor_type(result, anchor.dtype, ndim, match.type.vdevice)
    call = R.call_tir(name, arguments, kind)
    return reshaped(builder, builder.emit(call), anchor.shape) if anchor.merges_axes else call


def _packed(builder: Any, packing: Packing, weight: Any, name: str) -> Any:
    """Emit the packed weight, which ``FoldConstant`` computes at compile time."""
    kind = tensor_type([packing.elements], packing.dtype, 1)
    packer = builder.add_func(packing.func, f"{name}_pack")
    return builder.emit(R.call_tir(packer, [weight], kind))
