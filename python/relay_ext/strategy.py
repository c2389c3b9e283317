# SPDX-License-Identifier: Apache-2.0
"""Strategies: a scheduled kernel where the target has one of ours, else the TE definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import topi

from topi_ext import backend
from topi_ext.compat import as_size, is_cpu, llvm_features, relay, tir
from topi_ext.cuda.backend import CudaBackend
from topi_ext.fusion.anchors import ConvAnchor
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry, fail
from topi_ext.spec.layout import permuted
from topi_ext.spec.size_rules import Rule, belonging
from topi_ext.target import advise
from topi_ext.te.definitions import DEFINITIONS

from .attrs import KIND, Conv, read, short_name
from .extern_kernel import extern, restatement
from .packing import acts_on, conv_of, is_plain_and_known, packed_call, problem_of
from .placeholder import Stage, has_own_schedule, placed
from .relation import Operand
from .schedule import schedule

R = relay()


def strategy(op_name: str, stock: Any, attrs: Any, inputs: Any, out_type: Any, target: Any) -> Any:
    """Return the strategy by which `op_name` is computed and scheduled on `target`.

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
    return _implemented(f"{conv.op}.relay_ext", partial(compute, conv, target=target))


def packed_strategy(attrs: Any, inputs: Any, out_type: Any, target: Any) -> Any:
    """Return the strategy of a convolution whose weight is packed."""
    del inputs, out_type
    advise("relay_ext", target)
    conv = conv_of(attrs)
    of_data, of_weight = map(int, attrs["zero_points"])
    problem = problem_of(conv, (of_data, of_weight))
    name = f"{conv.op}.relay_ext.packed"
    return _implemented(name, partial(compute_packed, conv, problem, attrs["target"]))


def _implemented(name: str, define: Callable[..., Any]) -> Any:
    """Return the strategy with one implementation: ``define(operands, stages)`` gives the result,
    and notes the stages that kernels replace."""
    stages: list[Stage] = []
    found = R.op.op.OpStrategy()
    found.add_implementation(
        lambda _, operands, __: [define(operands, stages)],
        lambda _, outs, on: schedule(outs, on, stages),
        name=name,
        plevel=20,
    )
    return found


def is_left_to_stock(conv: Conv, attrs: Any, target: Any) -> bool:
    """Return whether a call is computed as TVM computes it, its rewriting included.

    These are ``conv`` on targets without our kernels, and on CPUs depthwise integers
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
    """Return the number of positions from which a kernel that packs its weights is faster. Over 28
    shapes on Zen 4 it was up to 2.6 times as fast above and TVM's up to 2.8 times below. With
    several taps TVM converts int8 to uint8 at each call.
    """
    if conv.geometry.taps == 1:
        return 400
    return 100 if conv.dtypes["x"] == "int8" else 700


def _is_by_vectors(geometry: Geometry) -> bool:
    return geometry.c % 4 == 0 and geometry.k % 16 == 0


def _needs_rewriting(conv: Conv, target: Any) -> bool:
    """Return whether TVM has to convert to unsigned, or pad channels, before its own kernel is
    correct.
    """
    by_vnni = bool(backend.supports(conv.kind, target)) and conv.geometry.groups == 1
    return by_vnni and not (conv.dtypes["x"] == "uint8" and _is_by_vectors(conv.geometry))


def compute(conv: Conv, operands: Sequence[Any], stages: list[Stage], target: Any) -> Any:
    """Return the result of `conv` as a TE tensor; blocked layouts are undone and made around it."""
    plain = {role: conv.opened(role, t, topi) for role, t in zip(conv.roles, operands)}
    # Kernels take x before y.
    roles = sorted(conv.roles) if conv.kind == "conv_weight_grad" else conv.roles
    tensors = [plain[role] for role in roles]
    first, second, result_dtype = (conv.dtypes[role] for role in (*roles, conv.result))
    dtypes = (first, second, result_dtype)
    _check_bfloat16(conv, dtypes, target)
    shape = _shape(conv)
    if 0 in shape or conv.n == 0:
        return conv.stored(conv.result, topi.full(shape, dtypes[2], 0), topi)
    problem = conv.problem
    if not backend.supports(conv.kind, target):
        result = DEFINITIONS[conv.kind](*tensors, conv.geometry, conv.plain, dtypes[2])
    elif _can_be_replaced(conv, operands, target):
        return _staged(conv, problem, tensors, partial(_build, backend.build, target), stages)
    else:
        rules = _rules(conv, plain) + _limits(conv, dtypes, target)
        func, restate = backend.build(problem, target), restatement(dtypes, target)
        result = extern(conv.op, func, tensors, (shape, dtypes[2]), rules, restate)
    return conv.stored(conv.result, result, topi)


def compute_packed(
    conv: Conv, problem: Convolution, target: Any, operands: Sequence[Any], stages: list[Stage]
) -> Any:
    """Return the result of a convolution whose weight was packed, as a TE tensor."""
    build = partial(_build, backend.build_on_packed, target)
    if has_own_schedule(target):
        return _staged(conv, problem, operands, build, stages)
    result = _shape(conv), problem.dtypes[2]
    restate = restatement(problem.dtypes, target)
    return extern(conv.op, build(problem), operands, result, [], restate)


def _shape(conv: Conv) -> tuple[Any, ...]:
    """Return the shape of the result, in the order that kernels write."""
    letters, order = conv.layouts[conv.result].letters, getattr(conv.plain, conv.result)
    return permuted(order, letters, conv.shape(conv.result))


def _build(build: Callable[..., Any], target: Any, problem: Any) -> Any:
    return build(problem, target)


def _can_be_replaced(conv: Conv, operands: Sequence[Any], target: Any) -> bool:
    """Return whether a call is a stage that a kernel replaces together with what follows."""
    is_forward = conv.kind != "conv_weight_grad"
    return is_forward and has_own_schedule(target) and is_plain_and_known(conv, operands)


def _staged(
    conv: Conv,
    problem: Convolution,
    tensors: Sequence[Any],
    build: Callable[[Any], Any],
    stages: list[Stage],
) -> Any:
    result = placed(conv.op, _shape(conv), problem.dtypes[2], tensors)
    restate = restatement(problem.dtypes, tvm.target.Target("llvm"))
    stages.append(Stage(result.op, ConvAnchor(conv.op, problem), tensors, build, restate))
    return result


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
    """Return rules for sizes known only at run time: types do not state them, but kernels rely on
    them.
    """
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
    """Return the target's limits on sizes. Relay counts with 32 bits, products need more."""

    def wide(size: Any) -> Any:
        return size if isinstance(size, int) else tir.Cast("int64", size)

    x_size, y_size = (tuple(map(wide, s)) for s in (conv.geometry.x_size, conv.geometry.y_size))
    geometry = replace(conv.geometry, x_size=x_size, y_size=y_size)
    problem = Convolution.of(conv.kind, geometry, conv.plain, wide(conv.n), dtypes)
    return backend.limits(problem, target)


def rewriting(op: str, key: str, before: Any) -> Any:
    """Return the rewriting of a call: TVM's where its strategy is left to TVM, else packed weights.

    Parameters
    ----------
    op : str
    key : {"FTVMAlterOpLayout", "FTVMLegalize"}
    before : callable or None
        TVM's rewriting.
    """
    kind = KIND[op]
    if kind == "conv_weight_grad":
        return None

    def rewrite(attrs: Any, inputs: Any, types: Any, *out_type: Any) -> Any:
        conv = read(op, attrs, [Operand.of(types[0]), Operand.of(types[1])])
        target = tvm.target.Target.current(allow_none=True)
        is_stock = kind == "conv" and (
            is_left_to_stock(conv, attrs, target) if conv else not backend.supports("conv", target)
        )
        if is_stock:
            return before(attrs, inputs, types, *out_type) if before else None
        return packed_call(op, attrs, inputs, types) if acts_on(op, key) else None

    return rewrite
