# SPDX-License-Identifier: Apache-2.0
"""Lower an operator to a scheduled kernel if there is one, otherwise to its TE definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from topi_ext import backend
from topi_ext.compat import (
    dtype_name,
    is_gpu,
    relax,
    same_size,
    shape_type,
    simplify,
    size_var,
    tensor_type_of,
    tir,
)
from topi_ext.spec.conv import OPERANDS
from topi_ext.spec.dtypes import accumulator
from topi_ext.spec.geometry import Geometry, fail
from topi_ext.target import advise
from topi_ext.te.conv_transpose import ConvTranspose
from topi_ext.te.definitions import DEFINITIONS, conv_transpose_of_zeros, transposed

from ..target import target_of
from . import blocks
from .attrs import Conv, read, tensors
from .ops import conv_call

R = relax()


def legalize(bb: Any, call: Any, stock: Any) -> Any:
    """Lower `call`; symbolic channels or kernel sizes are left to `stock`, TVM's own lowering."""
    found = tensor_type_of(call)
    conv = read(call, dtype_name(found.dtype))
    if conv is None:
        return _by_stock(bb, call, stock)
    if conv.is_blocked:
        return _unblocked(call, conv)
    if 0 in conv.shape(conv.result) or conv.n == 0:
        return R.op.zeros(found.shape, found.dtype)
    operands = list(call.args[:2])
    target = target_of(found)
    advise("relax_ext", target)
    problem = conv.problem
    accumulator(conv.op, *problem.dtypes)  # rejects unknown types
    func = backend.build(problem, target)
    if func is not None:
        return R.call_tir(bb.add_func(func, conv.op), operands, found)
    return _by_definition(bb, conv, operands, target)


def _by_definition(bb: Any, conv: Conv, operands: list[Any], target: Any) -> Any:
    kind, known = DEFINITIONS[conv.kind], conv.known_geometry
    if conv.kind == "conv_transpose" and max(known.stride) > 1:
        if target is None or not is_gpu(target) or not _has_odd_rows(known):
            return _by_phases(bb, conv, operands)
        kind = conv_transpose_of_zeros

    def define(first: Any, second: Any, x_size: Any, y_size: Any) -> Any:
        geometry = replace(known, x_size=tuple(x_size), y_size=tuple(y_size))
        return kind(first, second, geometry, conv.plain, conv.dtypes[conv.result])

    return bb.call_te(define, *operands, *_sizes(conv), primfunc_name_hint=conv.op)


def _has_odd_rows(geometry: Geometry) -> bool:
    """Return whether TVM's rules for GPUs can't share the loops of an interleaving among threads.

    They prove that blocks divide, and of sums such as ``2*h - 1`` rows they can't.  Where they see
    a matrix product they ask for no proof.
    """
    return geometry.groups == 1 and any(_is_sum(simplify(size)) for size in geometry.x_size)


def _is_sum(size: Any) -> bool:
    return not isinstance(size, (int, tir.Var, tir.Mul))


def _by_phases(bb: Any, conv: Conv, operands: list[Any]) -> Any:
    """Return the steps of a transposed convolution as functions: TVM's rule for matrix products
    fails where it can't take in what follows one, and it can't interleave.
    """
    out_dtype = conv.dtypes["x"]
    acc = accumulator(conv.op, conv.dtypes["y"], conv.dtypes["w"], out_dtype)
    known = conv.known_geometry

    def plan(x_size: Any, y_size: Any) -> ConvTranspose:
        geometry = replace(known, x_size=tuple(x_size), y_size=tuple(y_size))
        return transposed(geometry, conv.plain)

    def sums(y: Any, w: Any, x_size: Any, y_size: Any, extents: Any) -> Any:
        return plan(x_size, y_size).phases(y, w, acc, extents)

    def result(phases: Any, x_size: Any, y_size: Any) -> Any:
        return plan(x_size, y_size).interleave(phases, out_dtype)

    sizes = _sizes(conv)
    stated = plan(*sizes).extents(known.c_per_group)
    extents = _variables(bb, stated, known.x_size)
    hint = f"{conv.op}_phases"
    phases = bb.emit(bb.call_te(sums, *operands, *sizes, extents, primfunc_name_hint=hint))
    return bb.call_te(result, phases, *sizes, primfunc_name_hint=conv.op)


def _variables(bb: Any, sizes: Sequence[Any], x_size: Sequence[Any]) -> list[Any]:
    """Replace each size that is a sum by a variable, over which rules can divide loops.

    A size of x stays: then TVM may fuse the steps, and can't where it has another name for one.
    """
    sizes = [simplify(size) for size in sizes]
    names = [
        size_var("extent") if _is_sum(size) and not same_size(size, x) else size
        for size, x in zip(sizes, x_size)
    ]
    if any(name is not size for name, size in zip(names, sizes)):
        bb.match_cast(R.ShapeExpr(sizes), shape_type(names))
    return names


def _sizes(conv: Conv) -> list[list[Any]]:
    """Return the sizes of x and y as arguments; call_te renames their variables as in the
    tensors.
    """
    geometry = conv.known_geometry
    return [list(geometry.x_size), list(geometry.y_size)]


def _unblocked(call: Any, conv: Conv) -> Any:
    """Lower the operator on plain layouts between layout transforms, which are legalized next."""
    operands = [
        blocks.merged(arg, conv.layouts[role], conv.shape(role))
        for role, arg in zip(OPERANDS[conv.kind] + conv.result, tensors(call))
    ]
    role, geometry = conv.result, conv.known_geometry
    size = operands[2:] or [geometry.x_size]
    plain = conv_call(conv.kind, operands[:2], geometry, conv.plain, conv.dtypes[role], *size)
    return blocks.split(plain, conv.layouts[role], conv.shape(role))


def _by_stock(bb: Any, call: Any, stock: Any) -> Any:
    op = str(call.op.name).rpartition(".")[2]
    legalized = stock(bb, call) if stock is not None else call
    if legalized.same_as(call):
        raise fail(op, "channels and kernel sizes must be constant in these layouts")
    return legalized
