# SPDX-License-Identifier: Apache-2.0
"""The kinds as calls of Relay operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm

from topi_ext.compat import relay, simplify
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts, swap_kernel_letters

from .attrs import OWN, WEIGHT_GRAD

R = relay()


def conv_call(
    kind: str, operands: Sequence[Any], geometry: Geometry, layouts: Layouts, out_dtype: str
) -> Any:
    """Call the operator that is this kind with this geometry.

    Parameters
    ----------
    operands : sequence
        In the order of the kinds: x before w and y, and y before w.
    geometry : Geometry
        Its output padding must come out as integers.
    """
    extra = tuple(map(simplify, geometry.output_padding))
    stated = geometry
    if kind == "conv":
        # A remainder of the stride is stated as less padding after.
        after = tuple(a - e for a, e in zip(geometry.pad_after, extra))
        stated = replace(geometry, pad_after=after)
    attrs = {
        "strides": stated.stride,
        "padding": stated.padding,
        "dilation": stated.dilation,
        "groups": stated.groups,
        "kernel_size": stated.kernel,
        "out_dtype": out_dtype,
    }
    if kind == "conv_weight_grad":
        x, y = operands
        return _weight_grad(x, y, stated, layouts, attrs)
    attrs["kernel_layout"] = layouts.w
    if kind == "conv":
        attrs.update(channels=stated.k, data_layout=layouts.x, out_layout=layouts.y)
        return getattr(R.nn, f"conv{stated.rank}d")(*operands, **attrs)
    attrs.update(channels=stated.c, data_layout=layouts.y, out_layout=layouts.x)
    attrs["kernel_layout"] = swap_kernel_letters(layouts.w)
    attrs["output_padding"] = extra
    return getattr(R.nn, f"conv{stated.rank}d_transpose")(*operands, **attrs)


def _weight_grad(
    x: Any, y: Any, geometry: Geometry, layouts: Layouts, attrs: dict[str, Any]
) -> Any:
    attrs = {
        **{name: list(v) if isinstance(v, tuple) else v for name, v in attrs.items()},
        "channels": geometry.k,
        "data_layout": layouts.y,
        "kernel_layout": layouts.x,
        "out_layout": layouts.w,
    }
    node = tvm.ir.make_node(attrs_key(geometry.rank), **attrs)
    return R.Call(tvm.ir.Op.get(WEIGHT_GRAD[geometry.rank]), [y, x], node)


def attrs_key(rank: int) -> str:
    """Return the name of the class of a convolution's attributes."""
    return f"relay.attrs.Conv{rank}DAttrs"


def add_own() -> None:
    """Add the weight gradients of rank 1 and 3 to Relay, once per process."""
    for name, rank in OWN.items():
        if name in tvm.ir.Op.list_op_names():
            continue
        R.op.op.register(name, f"Like nn.conv2d_backward_weight, of rank {rank}.")
        op = tvm.ir.Op.get(name)
        op.set_num_inputs(2)
        op.add_argument("grad", "Tensor", "Gradient of the convolution's result.")
        op.add_argument("data", "Tensor", "Input of the convolution.")
        op.set_attrs_type_key(attrs_key(rank))
        op.set_support_level(2)
        R.op.op.register_pattern(name, R.op.op.OpPattern.OUT_ELEMWISE_FUSABLE)
        R.op.op.register_stateful(name, False)
