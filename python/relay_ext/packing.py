# SPDX-License-Identifier: Apache-2.0
"""Constant weights packed at compile time, and the operator that reads them.

``nn.conv2d(data, weight)`` of a constant weight becomes ``relay_ext.conv_packed(data, packed)``.
Its attributes hold the original call, so that any later pass can type and lower it.  The post-ops
behind it are not known then: see :func:`topi_ext.backend.build_on_packed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tvm
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from topi_ext import backend
from topi_ext.backend import Packing
from topi_ext.compat import as_size, is_cpu, is_for_this_machine, missing_vectors, relay
from topi_ext.spec.conv import Convolution
from topi_ext.spec.post_ops import NO_ZERO_POINTS, ZeroPoints

from .attrs import Conv, read
from .build_time import PACK
from .placeholder import has_own_schedule
from .relation import Operand, assign

R = relay()

CONV_PACKED = "relay_ext.conv_packed"
_KEYS = ("FTVMAlterOpLayout", "FTVMLegalize")
_WITHOUT_LAYOUTS = ("nn.conv1d_transpose",)
"""Operators that AlterOpLayout skips, because they state no layouts."""


def conv_of(attrs: Any) -> Conv:
    """Return the original call, from the attributes of :data:`CONV_PACKED`."""
    operands = [Operand.of(attrs["data"]), Operand.of(attrs["weight"])]
    conv = read(str(attrs["op"]), attrs["attrs"], operands)
    if conv is None:
        raise ValueError(f"{attrs['op']}: channels and kernel sizes must be constant")
    return conv


def problem_of(conv: Conv, zero_points: ZeroPoints = NO_ZERO_POINTS) -> Convolution:
    """Return the problem of a call, without post-ops."""
    return replace(conv.problem, zero_points=zero_points)


def is_plain_and_known(conv: Conv, operands: Sequence[Any]) -> bool:
    """Return whether all sizes of operands are positive numbers, and no layout has blocks.

    Parameters
    ----------
    conv : Conv
        It states channels that the data does not state.
    operands : sequence
        Types or tensors.
    """
    shapes = [*(operand.shape for operand in operands), conv.shape(conv.result)]
    sizes = [as_size(size) for shape in shapes for size in shape]
    is_plain = all(layout.is_plain for layout in conv.layouts.values())
    return is_plain and all(isinstance(size, int) and size > 0 for size in sizes)


def acts_on(op: str, key: str) -> bool:
    """Return whether the attribute `key` of an operator is where weights are packed now.

    AlterOpLayout comes behind the pass that folds batch norms into weights, but runs from
    ``opt_level=3`` on only.
    """
    is_late = tvm.transform.PassContext.current().opt_level >= 3 and op not in _WITHOUT_LAYOUTS
    return key == _KEYS[0 if is_late else 1]


def packed_call(
    op: str, attrs: Any, inputs: Any, types: Any, zero_points: ZeroPoints = NO_ZERO_POINTS
) -> Any:
    """Return a call whose weight is packed, or None.

    None where the weight is no constant, the kernel reads weights as they are, or this machine
    cannot run the code that packs them.

    Parameters
    ----------
    op : str
    attrs : Attrs
    inputs, types : sequence
        Data and weight first.
    zero_points : tuple of int
        Numbers that are subtracted from elements of both.
    """
    target = tvm.target.Target.current(allow_none=True)
    if target is None or not (is_cpu(target) and has_own_schedule(target)):
        return None
    conv = read(op, attrs, [Operand.of(types[0]), Operand.of(types[1])])
    if conv is None or not is_plain_and_known(conv, types[:2]):
        return None
    if R.analysis.free_vars(inputs[1]):
        return None
    if not is_for_this_machine(target) or missing_vectors(target):
        return None
    packing = backend.packing_ahead(problem_of(conv, zero_points), target)
    weight = packing and R.transform.FoldConstantExpr(inputs[1], tvm.IRModule())
    if packing is None or not isinstance(weight, R.Constant):
        return None
    shapes = [R.TensorType([int(size) for size in one.shape], one.dtype) for one in types[:2]]
    result = R.TensorType(conv.stored_shape(conv.result), conv.dtypes[conv.result])
    named = {"op": op, "attrs": attrs, "data": shapes[0], "weight": shapes[1], "target": target}
    named.update(result=result, zero_points=list(zero_points))
    node = tvm.ir.make_node("DictAttrs", **named)
    packed = R.const(_packed(packing, weight, target))
    return R.Call(tvm.ir.Op.get(CONV_PACKED), [inputs[0], packed], node)


def _packed(packing: Packing, weight: Any, target: Any) -> Any:
    """Return the packed weight."""
    stored = packing.func.buffer_map[packing.func.params[0]]
    shape = tuple(int(size) for size in stored.shape)
    # A copy, since functions of TVM 0.17 take tensors that are aligned to 64 bytes only.
    array = tvm.nd.empty(shape, stored.dtype).copyfrom(weight.data._create_view(shape))
    result = tvm.nd.empty((packing.elements,), packing.dtype)
    _compiled(packing.func, target)(array, result)
    return result


@lru_cache(maxsize=64)
def _compiled(func: Any, target: Any) -> Any:
    return tvm.build(func.with_attr("global_symbol", PACK), target=target, name=PACK)[PACK]


def relate_packed(types: Any, _: int, attrs: Any, reporter: Any) -> bool:
    """Return the type relation of :data:`CONV_PACKED`."""
    assign(types[2], attrs["result"], reporter)
    return True


def layouts_of_packed(attrs: Any, *_: Any) -> Any:
    """Return the layouts of the operands of :data:`CONV_PACKED`: those of the original call."""
    call = attrs["attrs"]
    operands = [tvm.tir.layout(str(text)) for text in (call.data_layout, call.kernel_layout)]
    result = tvm.tir.layout(str(call.out_layout) or str(call.data_layout))
    return InferCorrectLayoutOutput(operands, [result], attrs)


def add_own() -> None:
    """Add :data:`CONV_PACKED` to Relay, once per process."""
    if CONV_PACKED in tvm.ir.Op.list_op_names():
        return
    R.op.op.register(CONV_PACKED, "A convolution whose weight was packed for its kernel.")
    op = tvm.ir.Op.get(CONV_PACKED)
    op.set_num_inputs(2)
    op.add_argument("data", "Tensor", "Input of the convolution.")
    op.add_argument("packed", "Tensor", "The packed weight, of one axis.")
    op.set_attrs_type_key("DictAttrs")
    op.set_support_level(10)
    R.op.op.register_pattern(CONV_PACKED, R.op.op.OpPattern.OUT_ELEMWISE_FUSABLE)
    R.op.op.register_stateful(CONV_PACKED, False)
