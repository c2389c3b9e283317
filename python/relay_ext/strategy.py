# SPDX-License-Identifier: Apache-2.0
"""Strategies: a scheduled kernel where the target has one of ours, else the TE definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tvm
from tvm import te, topi

from topi_ext import backend
from topi_ext.compat import as_size, is_cpu, is_gpu, llvm_features, opaque, relay, tir
from topi_ext.cuda.backend import CudaBackend
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry, fail
from topi_ext.spec.layout import permuted
from topi_ext.spec.size_rules import Rule, belonging
from topi_ext.target import advise
from topi_ext.te.definitions import DEFINITIONS

from .attrs import KIND, Conv, read, short_name
from .relation import Operand
from .shape import asserted

R = relay()


def strategy(op_name: str, stock: Any, attrs: Any, inputs: Any, out_type: Any, target: Any) -> Any:
    """How `op_name` is computed and scheduled on `target`.

    Left to `stock`, TVM's own strategy: symbolic channels or kernel sizes, and ``conv`` where
    :func:`is_left_to_stock` says so.
    """
    conv = read(op_name, attrs, inputs)
    left = conv is not None and is_left_to_stock(conv, attrs, target)
    if conv is None or (left and not _needs_rewriting(conv, target)):
        if stock is None:
            raise fail(short_name(op_name), "channels and kernel sizes must be constant")
        return stock(attrs, inputs, out_type, target)
    advise("relay_ext", target)
    found = R.op.op.OpStrategy()
    found.add_implementation(
        lambda _, operands, __: [compute(conv, operands, target)],
        lambda _, outs, on: schedule(outs, on),
        name=f"{conv.op}.relay_ext",
        plevel=20,
    )
    return found


def is_left_to_stock(conv: Conv, attrs: Any, target: Any) -> bool:
    """Whether a call is computed as TVM computes it, its rewriting included.

    That is ``conv`` on targets that our kernels do not know, and on processors depthwise integers
    in NHWC, whose channels TVM makes lanes, and sums of bytes where VNNI adds four products at a
    time, of images so small that the time goes into weights: TVM packs constant ones when it
    compiles, and ours does at each call.  Without VNNI, be it with AVX2 or AVX-512, TVM adds pairs
    of products in 16 bits, which saturate: large values come out wrong.
    """
    if conv.kind != "conv" or not backend.supports(conv.kind, target):
        return conv.kind == "conv"
    sizes = (conv.n, *conv.geometry.x_size)
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    if not (known and is_cpu(target)) or attrs.kernel_size is None:
        return False
    return _is_depthwise_nhwc(conv) or _sums_bytes_by_vnni(conv, target)


def _is_depthwise_nhwc(conv: Conv) -> bool:
    geometry = conv.geometry
    return (
        [conv.layouts[role].text for role in "xwy"] == ["NHWC", "HWOI", "NHWC"]
        and {conv.dtypes["x"], conv.dtypes["w"]} <= {"int8", "uint8", "int16"}
        and conv.dtypes["y"] == "int32"
        and 1 < geometry.groups == geometry.c == geometry.k
    )


def _sums_bytes_by_vnni(conv: Conv, target: Any) -> bool:
    features, geometry = llvm_features(target), conv.geometry
    if not (
        features is not None
        and {"avx512f", "avx512vnni"} <= features[0]
        and [conv.layouts[role].text for role in "xwy"] == ["NCHW", "OIHW", "NCHW"]
        and conv.dtypes["x"] in ("int8", "uint8")
        and (conv.dtypes["w"], conv.dtypes["y"]) == ("int8", "int32")
        and geometry.groups == 1
    ):
        return False
    if conv.n * prod(geometry.y_size) >= _fewest_positions(conv):
        return False
    # TVM takes channels by fours and sixteens: it pads the others, but not with dilation, where it
    # does not take the sign off either.
    if geometry.dilation != (1, 1):
        return conv.dtypes["x"] == "uint8" and _is_by_vectors(geometry)
    # Ours are faster where padding is most of the work: few products, or few of them an output.
    return geometry.c * geometry.taps >= 27 and geometry.k >= 10


def _fewest_positions(conv: Conv) -> int:
    """From which on a kernel that packs its weights was faster, of 28 shapes on Zen 4: up to 2.6
    times; with fewer positions TVM's was, up to 2.8 times.  TVM takes the sign off int8 at each
    call where there are several taps."""
    if conv.geometry.taps == 1:
        return 400
    return 100 if conv.dtypes["x"] == "int8" else 700


def _is_by_vectors(geometry: Geometry) -> bool:
    return geometry.c % 4 == 0 and geometry.k % 16 == 0


def _needs_rewriting(conv: Conv, target: Any) -> bool:
    """Whether TVM has to take the sign off, or pad channels, before its own kernel is right."""
    by_vnni = backend.supports(conv.kind, target) and conv.geometry.groups == 1
    return by_vnni and not (conv.dtypes["x"] == "uint8" and _is_by_vectors(conv.geometry))


def compute(conv: Conv, operands: Sequence[Any], target: Any) -> Any:
    """The result of `conv` as a TE tensor; blocked layouts are undone and made around it."""
    plain = {role: conv.opened(role, t, topi) for role, t in zip(conv.roles, operands)}
    # Kernels take x before y.
    roles = sorted(conv.roles) if conv.kind == "conv_weight_grad" else conv.roles
    tensors = [plain[role] for role in roles]
    dtypes = tuple(conv.dtypes[role] for role in (*roles, conv.result))
    _check_bfloat16(conv, dtypes, target)
    letters, order = conv.layouts[conv.result].letters, getattr(conv.plain, conv.result)
    shape = permuted(order, letters, conv.shape(conv.result))
    if 0 in shape or conv.n == 0:
        result = topi.full(shape, dtypes[2], 0)
    else:
        problem = Convolution.of(conv.kind, conv.geometry, conv.plain, conv.n, dtypes)
        func = backend.build(problem, target)
        if func is None:
            result = DEFINITIONS[conv.kind](*tensors, conv.geometry, conv.plain, dtypes[2])
        else:
            rules = _rules(conv, plain) + _limits(conv, dtypes, target)
            restate = _restatement(dtypes, target)
            result = extern(conv.op, func, tensors, (tuple(shape), dtypes[2]), rules, restate)
    return conv.stored(conv.result, result, topi)


def _check_bfloat16(conv: Conv, dtypes: Sequence[str], target: Any) -> None:
    """TVM 0.17 writes bfloat16 for sm_80 and later, and elsewhere fails in a pass of its own."""
    found = backend.of_target(target)
    is_old = isinstance(found, CudaBackend) and not found.machine.has_bfloat16
    if is_old and "bfloat16" in dtypes:
        arch = target.attrs["arch"]
        raise fail(
            conv.op, f"bfloat16 on {arch} must be float16 or float32, or -arch sm_80 or later"
        )


def _rules(conv: Conv, tensors: dict[str, Any]) -> list[Rule]:
    """What sizes must be that only run time knows: types do not say it, and kernels rely on it."""
    op, geometry = conv.op, conv.geometry

    def size(role: str, letter: str) -> Any:
        return as_size(tensors[role].shape[getattr(conv.plain, role).index(letter)])

    if conv.kind != "conv_weight_grad":
        data, channels = conv.roles[0], geometry.c if conv.kind == "conv" else geometry.k
        text = f"{op}: data channels must equal {channels}, what the weight takes"
        return [(size(data, "C") == channels, text)]
    return [
        (size("y", "N") == size("x", "N"), f"{op}: batch of grad must equal that of data"),
        *((y >= 1, f"{op}: sizes of grad must be at least 1") for y in geometry.y_size),
        *belonging(op, "data", "grad", geometry),
    ]


def _limits(conv: Conv, dtypes: tuple[str, str, str], target: Any) -> list[Rule]:
    """What the target's kernels ask of sizes.  Relay counts with 32 bits, products need more."""

    def wide(size: Any) -> Any:
        return size if isinstance(size, int) else tir.Cast("int64", size)

    x_size, y_size = (tuple(map(wide, s)) for s in (conv.geometry.x_size, conv.geometry.y_size))
    geometry = replace(conv.geometry, x_size=x_size, y_size=y_size)
    problem = Convolution.of(conv.kind, geometry, conv.plain, wide(conv.n), dtypes)
    return backend.limits(problem, target)


def extern(
    name: str,
    func: Any,
    operands: Sequence[Any],
    result: tuple[tuple[Any, ...], str],
    rules: Sequence[Rule],
    restate: Callable[[Any], Any] | None = None,
) -> Any:
    """A scheduled PrimFunc ``(*operands, result)`` as one stage of TE.

    Its body is taken as it is, on the buffers of the stage; the variables in its parameters'
    shapes become the sizes of those buffers.  A call of the function would check these; here
    `rules` do.

    Parameters
    ----------
    result : tuple
        Its shape and its dtype.
    restate : callable, optional
        Says the body in another way.
    """
    parameters = [func.buffer_map[parameter] for parameter in func.params]

    def define(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        given = {}
        for parameter, buffer in zip(parameters, (*ins, *outs)):
            given[parameter.data] = buffer.data
            for variable, size in zip(parameter.shape, buffer.shape):
                if isinstance(variable, tir.Var):
                    given.setdefault(variable, tir.Cast(variable.dtype, size))
        body = tir.stmt_functor.substitute(func.body, given)
        return asserted(rules, restate(body) if restate else body)

    shape, dtype = result
    return te.extern([shape], list(operands), define, name=name, dtype=[dtype])


def _restatement(dtypes: Sequence[str], target: Any) -> Callable[[Any], Any] | None:
    """How a kernel's body has to be said for what compiles it behind TVM 0.17."""
    if is_cpu(target):
        return _for_old_llvm
    return _for_new_cuda if {"float16", "bfloat16"} & set(dtypes) else None


def _for_old_llvm(body: Any) -> Any:
    """`body`, said in a way that keeps sums in registers: LLVM 10 compiles for Relay.

    Where TVM knows that 32 bits hold an index, it narrows it, and each load computes its address
    anew. And of the factors of a fused multiply-add it is the first whose register takes the sum
    once nothing else needs it: a broadcast weight is done with soon, so sums would wander between
    registers and spill.
    """

    def restated(node: Any) -> Any:
        if isinstance(node, tir.LetStmt):
            wide = node.var.dtype == "int64"
            return tir.LetStmt(node.var, opaque(node.value), node.body) if wide else None
        weight_first = isinstance(node.a, tir.Broadcast) and node.dtype.startswith("float")
        return tir.Mul(node.b, node.a) if weight_first else None

    return tir.stmt_functor.ir_transform(body, None, restated, ["tir.LetStmt", "tir.Mul"])


_HALVES = """\
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 530)
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define htanh topi_htanh
#endif
"""


def _for_new_cuda(body: Any) -> Any:
    """`body`, said in a way that CUDA 13 takes where it has float16 or bfloat16.

    For these TVM 0.17 defines a function that its headers have by now: it gets another name.  The
    text comes before TVM's own, which below sm_53 has a float16 without those headers.
    """

    def restated(node: Any) -> Any:
        if node.attr_key != "thread_extent" or node.node.thread_tag != "threadIdx.x":
            return None
        text = tir.StringImm(_HALVES)
        inner = tir.AttrStmt(tir.IntImm("int32", 0), "pragma_import_c", text, node.body)
        return tir.AttrStmt(node.node, node.attr_key, node.value, inner)

    return tir.stmt_functor.ir_transform(body, None, restated, ["tir.AttrStmt"])


def schedule(outs: Sequence[Any], target: Any) -> Any:
    """Schedule `outs` and what leads to them: kernels are scheduled, element-wise stages are
    inlined where they can be, and every other stage is parallel (or, on a GPU, bound to threads).
    """
    outs = [outs] if isinstance(outs, te.Tensor) else list(outs)
    made = te.create_schedule([out.op for out in outs])
    for stage in made.stages:
        if not isinstance(stage.op, te.ComputeOp):
            continue
        tensor = stage.op.output(0)
        readers = [
            other.op
            for other in made.stages
            if any(operand.op.same_as(stage.op) for operand in other.op.input_tensors)
        ]
        inlinable = readers and all(isinstance(op, te.ComputeOp) for op in readers)
        if inlinable and not stage.op.reduce_axis and not stage.is_output:
            stage.compute_inline()
        elif is_cpu(target):
            _on_cpu(made[tensor], stage.op)
        elif is_gpu(target):
            topi.cuda.injective.schedule_injective_from_existing(made, tensor)
    return made


def _on_cpu(stage: Any, op: Any) -> None:
    if not op.axis:
        return
    if op.reduce_axis:
        stage.parallel(stage.fuse(*op.axis[:-1]) if len(op.axis) > 1 else op.axis[0])
        return
    *outer, inner = op.axis
    # Of one axis, blocks are shared; of several, rows.
    rows, lanes = stage.split(inner, 16)
    stage.parallel(stage.fuse(*outer) if outer else rows)
    stage.vectorize(lanes)


def unless_ours(op: str, before: Any) -> Any:
    """TVM's rewriting of a call, where its strategy is left to TVM: ours takes every layout."""
    if before is None or KIND[op] != "conv":
        return None

    def rewrite(attrs: Any, inputs: Any, types: Any, *out_type: Any) -> Any:
        conv = read(op, attrs, [Operand.of(types[0]), Operand.of(types[1])])
        target = tvm.target.Target.current(allow_none=True)
        is_stock = (
            is_left_to_stock(conv, attrs, target) if conv else not backend.supports("conv", target)
        )
        return before(attrs, inputs, types, *out_type) if is_stock else None

    return rewrite
