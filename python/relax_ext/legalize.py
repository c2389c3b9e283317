# SPDX-License-Identifier: Apache-2.0
"""From an operator to a scheduled kernel where there is one, else to the TE definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topi_ext import backend
from topi_ext.compat import dtype_name, relax, tensor_type_of
from topi_ext.compute import FACES, transposed
from topi_ext.conv_transpose import ConvTranspose
from topi_ext.dtypes import accumulator
from topi_ext.geometry import fail
from topi_ext.problem import OPERANDS
from topi_ext.target import advise

from . import blocks
from .attrs import Conv, read, tensors
from .ops import face_call
from .target import target_of

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
    dtypes = tuple(conv.dtypes[role] for role in OPERANDS[conv.face] + conv.result)
    accumulator(conv.op, *dtypes)  # refuses what is unknown
    func = backend.prim_func(conv.face, conv.geometry, conv.plain, conv.n, dtypes, target)
    if func is not None:
        return R.call_tir(bb.add_func(func, conv.op), operands, found)
    return _by_definition(bb, conv, operands)


def _by_definition(bb: Any, conv: Conv, operands: list[Any]) -> Any:
    if conv.face == "conv_transpose" and max(conv.geometry.stride) > 1:
        return _by_phases(bb, conv, operands)

    def define(first: Any, second: Any, x_size: Any, y_size: Any) -> Any:
        geometry = replace(conv.geometry, x_size=tuple(x_size), y_size=tuple(y_size))
        out_dtype = conv.dtypes[conv.result]
        return FACES[conv.face](first, second, geometry, conv.plain, out_dtype)

    return bb.call_te(define, *operands, *_sizes(conv), primfunc_name_hint=conv.op)


def _by_phases(bb: Any, conv: Conv, operands: list[Any]) -> Any:
    """The steps of a transposed convolution as functions: TVM's rule for matrix products fails
    where it can't take in what follows one, and it can't interleave."""
    out_dtype = conv.dtypes["x"]
    acc = accumulator(conv.op, conv.dtypes["y"], conv.dtypes["w"], out_dtype)

    def plan(x_size: Any, y_size: Any) -> ConvTranspose:
        geometry = replace(conv.geometry, x_size=tuple(x_size), y_size=tuple(y_size))
        return transposed(geometry, conv.plain)

    def sums(y: Any, w: Any, x_size: Any, y_size: Any) -> Any:
        return plan(x_size, y_size).phases(y, w, acc)

    def result(phases: Any, x_size: Any, y_size: Any) -> Any:
        return plan(x_size, y_size).interleave(phases, out_dtype)

    hint = f"{conv.op}_phases"
    phases = bb.emit(bb.call_te(sums, *operands, *_sizes(conv), primfunc_name_hint=hint))
    return bb.call_te(result, phases, *_sizes(conv), primfunc_name_hint=conv.op)


def _sizes(conv: Conv) -> list[list[Any]]:
    """Of x and y, as arguments: call_te renames the variables in them as in the tensors."""
    return [list(conv.geometry.x_size), list(conv.geometry.y_size)]


def _unblocked(call: Any, conv: Conv) -> Any:
    """The same on plain layouts between layout transforms, all of which are legalized next."""
    operands = [
        blocks.merged(arg, conv.layouts[role], conv.shape(role))
        for role, arg in zip(OPERANDS[conv.face] + conv.result, tensors(call))
    ]
    role = conv.result
    size = operands[2:] or [conv.geometry.x_size]
    plain = face_call(conv.face, operands[:2], conv.geometry, conv.plain, conv.dtypes[role], *size)
    return blocks.split(plain, conv.layouts[role], conv.shape(role))


def _by_stock(bb: Any, call: Any, stock: Any) -> Any:
    op = str(call.op.name).rpartition(".")[2]
    legalized = stock(bb, call) if stock is not None else call
    if legalized.same_as(call):
        raise fail(op, "channels and kernel sizes must be constant in these layouts")
    return legalized
