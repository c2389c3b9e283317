# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relax/transform/legalize_ops/nn.py: convolutions."""

import logging

from tvm import te, tirx, topi
from tvm.ir import Call
from tvm.relax.block_builder import BlockBuilder
from tvm.relax.expr import Expr
from tvm.relax.transform.legalize_ops.common import register_legalize


def _has_plain_conv_layouts(call: Call, rank: int) -> bool:
    """Return whether no layout of a convolution has channel chunks.

    A call with chunks, such as NCHW4c, is left as it is on purpose: backends with their own code
    generator match it, and a later pass or runtime may offload it.
    """
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if all(len(layout) == rank + 2 for layout in layouts):
        return True
    logging.info(
        "%s with channel chunks in its layouts %s cannot be legalized by TOPI at this moment.",
        call.op.name,
        layouts,
    )
    return False


def _to_layout(tensor: te.Tensor, layout: str, wanted: str) -> te.Tensor:
    """Return a tensor of `layout` with its axes in the order that is wanted."""
    if layout == wanted:
        return tensor
    return topi.transpose(tensor, [layout.index(axis) for axis in wanted])


def _in_spatial_order(layout: str, spatial: str) -> str:
    """Return the same layout where only its spatial axes are in order: TOPI takes no other."""
    axes = iter(spatial)
    return "".join(next(axes) if axis in spatial else axis for axis in layout)


def _legalize_conv(bb: BlockBuilder, call: Call, rank: int) -> Expr:
    if not _has_plain_conv_layouts(call, rank):
        return call
    attrs = call.attrs
    spatial = "DHW"[3 - rank :]
    data_layout = _in_spatial_order(attrs.data_layout, spatial)
    kernel_layout = _in_spatial_order(attrs.kernel_layout, spatial)

    def te_conv(data, kernel):
        out = topi.nn.conv(
            _to_layout(data, attrs.data_layout, data_layout),
            _to_layout(kernel, attrs.kernel_layout, kernel_layout),
            stride=[int(s) for s in attrs.strides],
            padding=[int(p) for p in attrs.padding],
            dilation=[int(d) for d in attrs.dilation],
            groups=int(attrs.groups),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype=attrs.out_dtype if attrs.out_dtype != "" else None,
        )
        return _to_layout(out, data_layout, attrs.out_layout)

    return bb.call_te(te_conv, call.args[0], call.args[1], primfunc_name_hint=f"conv{rank}d")


def _legalize_conv_transpose(bb: BlockBuilder, call: Call, rank: int) -> Expr:
    if not _has_plain_conv_layouts(call, rank):
        return call
    attrs = call.attrs
    data, weight = call.args
    sizes = [
        size
        for arg, layout in ((data, attrs.data_layout), (weight, attrs.kernel_layout))
        for size, axis in zip(arg.ty.shape, layout)
        if axis in "DHW"
    ]
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return _legalize_conv_transpose_of_symbolic_size(bb, call, rank)
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    window = (attrs.strides, attrs.padding, attrs.output_padding, attrs.dilation, attrs.groups)
    name, out_dtype = f"conv{rank}d_transpose", str(call.ty.dtype)
    if all(int(stride) == 1 for stride in attrs.strides):
        return bb.call_te(
            lambda x, w: topi.nn.conv_transpose(x, w, *window, *layouts, out_dtype),
            data,
            weight,
            primfunc_name_hint=name,
        )

    # Two functions: where rules of GPUs take the sums for a matrix product, they must be able to
    # inline what follows, and phases cannot be interleaved while a tile is written.
    plan = topi.nn.ConvTranspose.of(data.ty.shape, weight.ty.shape, *window, *layouts)
    acc_dtype = "float32" if out_dtype in ("float16", "bfloat16") else out_dtype
    phases = bb.emit_te(
        lambda x, w: plan.phases(x, w, acc_dtype),
        data,
        weight,
        primfunc_name_hint=f"{name}_phases",
    )
    return bb.call_te(
        lambda sums: plan.interleave(sums, out_dtype), phases, primfunc_name_hint=name
    )


def _legalize_conv_transpose_of_symbolic_size(bb: BlockBuilder, call: Call, rank: int) -> Expr:
    """By inserted zeros: one function, whose loops have the symbolic sizes of its tensors."""
    attrs = call.attrs
    spatial = "DHW"[3 - rank :]
    data_layout, kernel_layout = "NC" + spatial, "IO" + spatial
    compute = {
        1: topi.nn.group_conv1d_transpose_ncw,
        2: topi.nn.group_conv2d_transpose_nchw,
        3: topi.nn.group_conv3d_transpose_ncdhw,
    }[rank]
    strides = [int(s) for s in attrs.strides]
    padding = [int(p) for p in attrs.padding]
    output_padding = [int(o) for o in attrs.output_padding]
    dilation = [int(d) for d in attrs.dilation]
    out_dtype = call.ty.dtype

    def te_conv_transpose(data, kernel):
        data = _to_layout(data, attrs.data_layout, data_layout)
        kernel = _to_layout(kernel, attrs.kernel_layout, kernel_layout)
        # Dilated transposed conv == transposed conv with a spatially dilated (zero-filled) kernel.
        if any(d != 1 for d in dilation):
            kernel = topi.nn.dilate(kernel, [1, 1, *dilation], name="kernel_dilate")
        out = compute(data, kernel, strides, padding, out_dtype, output_padding, int(attrs.groups))
        return _to_layout(out, data_layout, attrs.out_layout)

    return bb.call_te(
        te_conv_transpose,
        call.args[0],
        call.args[1],
        primfunc_name_hint=f"conv{rank}d_transpose",
    )


@register_legalize("relax.nn.conv1d")
def _nn_conv1d(bb: BlockBuilder, call: Call) -> Expr:
    return _legalize_conv(bb, call, 1)


@register_legalize("relax.nn.conv2d")
def _nn_conv2d(bb: BlockBuilder, call: Call) -> Expr:
    return _legalize_conv(bb, call, 2)


@register_legalize("relax.nn.conv3d")
def _nn_conv3d(bb: BlockBuilder, call: Call) -> Expr:
    return _legalize_conv(bb, call, 3)


@register_legalize("relax.nn.conv1d_transpose")
def _nn_conv1d_transpose(bb: BlockBuilder, call: Call) -> Expr:
    return _legalize_conv_transpose(bb, call, 1)


@register_legalize("relax.nn.conv2d_transpose")
def _nn_conv2d_transpose(bb: BlockBuilder, call: Call) -> Expr:
    return _legalize_conv_transpose(bb, call, 2)


@register_legalize("relax.nn.conv3d_transpose")
def _nn_conv3d_transpose(bb: BlockBuilder, call: Call) -> Expr:
    return _legalize_conv_transpose(bb, call, 3)
