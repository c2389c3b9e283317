# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relay/op/_tensor_grad.py: gradients of convolutions."""

from tvm.relay.op import nn as _nn
from tvm.relay.op.op import register_gradient
from tvm.relay.op.transform import (
    cast_like,
    expand_dims,
    reshape,
    squeeze,
    strided_slice,
    transpose,
)
from tvm.topi.utils import get_const_tuple


def _conv_to_layout(expr, layout, wanted):
    if layout == wanted:
        return expr
    return transpose(expr, [layout.index(axis) for axis in wanted])


def _conv_shape(expr, layout, wanted):
    shape = get_const_tuple(expr.checked_type.shape)
    sizes = [shape[layout.index(axis)] for axis in wanted]
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(
            f"The gradient of a convolution needs constant sizes, but got {shape} in {layout}"
        )
    return sizes


def _conv_padding(attrs, rank):
    """Return the padding before all axes and then behind them, of one value or of one for each axis
    too
    """
    padding = get_const_tuple(attrs.padding)
    return padding * (2 * rank // len(padding))


def _conv_layouts(attrs, rank):
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if any(len(layout) != rank + 2 for layout in layouts):
        raise ValueError(
            f"The gradient of a convolution needs layouts without channel chunks, got {layouts}"
        )
    return layouts


def _conv_weight_grad(data, grad, shapes, attrs, out_dtype):
    """Gradient of a convolution in its weight, in the layouts NC* and OI*.

    `shapes` are those of data, of the output and of the weight.
    """
    (batch, in_channel, *in_size), (_, out_channel, *out_size), weight_shape = shapes
    rank = len(in_size)
    groups = attrs.groups
    strides, dilation = get_const_tuple(attrs.strides), get_const_tuple(attrs.dilation)
    padding = _conv_padding(attrs, rank)
    if rank < 3:
        flat = rank == 1
        window = dict(
            strides=(1,) * flat + strides,
            padding=(0, padding[0], 0, padding[1]) if flat else padding,
            dilation=(1,) * flat + dilation,
        )
        weight_grad = _nn.conv2d_backward_weight(
            expand_dims(grad, axis=2) if flat else grad,
            expand_dims(data, axis=2) if flat else data,
            groups=groups,
            channels=out_channel,
            kernel_size=(1,) * flat + tuple(weight_shape[2:]),
            grad_layout="NCHW",
            data_layout="NCHW",
            kernel_layout="OIHW",
            out_dtype=out_dtype,
            **window,
        )
        return squeeze(weight_grad, axis=[2]) if flat else weight_grad
    # Batch and channels exchanged it is a convolution by the gradient of the output.
    data = reshape(data, (batch, groups, in_channel // groups, *in_size))
    data = transpose(data, [2, 1, 0, 3, 4, 5])
    data = reshape(data, (in_channel // groups, groups * batch, *in_size))
    weight_grad = _nn.conv3d(
        data,
        transpose(grad, [1, 0, 2, 3, 4]),
        strides=dilation,
        padding=padding,
        dilation=strides,
        groups=groups,
        channels=out_channel,
        kernel_size=tuple(out_size),
        out_dtype=out_dtype,
    )
    weight_grad = transpose(weight_grad, [1, 0, 2, 3, 4])
    return strided_slice(weight_grad, begin=[0] * 5, end=list(weight_shape))


def _conv_grad(orig, grad, rank):
    attrs = orig.attrs
    data_layout, kernel_layout, out_layout = _conv_layouts(attrs, rank)
    spatial = "DHW"[3 - rank :]
    data, weight = orig.args
    data_shape = _conv_shape(data, data_layout, "NC" + spatial)
    weight_shape = _conv_shape(weight, kernel_layout, "OI" + spatial)
    out_shape = _conv_shape(orig, out_layout, "NC" + spatial)
    out_dtype = orig.checked_type.dtype
    strides, dilation = get_const_tuple(attrs.strides), get_const_tuple(attrs.dilation)
    padding = _conv_padding(attrs, rank)
    output_padding = [
        size - ((out - 1) * s + d * (k - 1) + 1 - left - right)
        for size, out, s, d, k, left, right in zip(
            data_shape[2:],
            out_shape[2:],
            strides,
            dilation,
            weight_shape[2:],
            padding[:rank],
            padding[rank:],
        )
    ]
    grad = _conv_to_layout(grad, out_layout, "NC" + spatial)
    # What is OI for the convolution is IO for its transpose.
    weight_oi = _conv_to_layout(weight, kernel_layout, "OI" + spatial)
    conv_transpose = [_nn.conv1d_transpose, _nn.conv2d_transpose, _nn.conv3d_transpose][rank - 1]
    data_grad = conv_transpose(
        grad,
        cast_like(weight_oi, orig) if weight.checked_type.dtype != out_dtype else weight_oi,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=attrs.groups,
        channels=data_shape[1],
        kernel_size=tuple(weight_shape[2:]),
        output_padding=output_padding,
        data_layout="NC" + spatial,
        kernel_layout="IO" + spatial,
        out_dtype=out_dtype,
    )
    wide = cast_like(data, orig) if data.checked_type.dtype != out_dtype else data
    weight_grad = _conv_weight_grad(
        _conv_to_layout(wide, data_layout, "NC" + spatial),
        grad,
        (data_shape, out_shape, weight_shape),
        attrs,
        out_dtype,
    )
    return _conv_grads_like(
        orig,
        _conv_to_layout(data_grad, "NC" + spatial, data_layout),
        _conv_to_layout(weight_grad, "OI" + spatial, kernel_layout),
    )


def _conv_transpose_grad(orig, grad, rank):
    attrs = orig.attrs
    data_layout, kernel_layout, out_layout = _conv_layouts(attrs, rank)
    spatial = "DHW"[3 - rank :]
    data, weight = orig.args
    data_shape = _conv_shape(data, data_layout, "NC" + spatial)
    weight_shape = _conv_shape(weight, kernel_layout, "IO" + spatial)
    out_shape = _conv_shape(orig, out_layout, "NC" + spatial)
    out_dtype = orig.checked_type.dtype
    grad = _conv_to_layout(grad, out_layout, "NC" + spatial)
    weight_io = _conv_to_layout(weight, kernel_layout, "IO" + spatial)
    conv = [_nn.conv1d, _nn.conv2d, _nn.conv3d][rank - 1]
    data_grad = conv(
        grad,
        cast_like(weight_io, orig) if weight.checked_type.dtype != out_dtype else weight_io,
        strides=get_const_tuple(attrs.strides),
        padding=get_const_tuple(attrs.padding),
        dilation=get_const_tuple(attrs.dilation),
        groups=attrs.groups,
        channels=data_shape[1],
        kernel_size=tuple(weight_shape[2:]),
        data_layout="NC" + spatial,
        kernel_layout="OI" + spatial,
        out_dtype=out_dtype,
    )
    # An output_padding of a whole stride, which a dilation allows, gives positions too many.
    if any(int(p) >= int(s) for p, s in zip(attrs.output_padding, attrs.strides)):
        data_grad = strided_slice(data_grad, begin=[0] * (rank + 2), end=data_shape)
    wide = cast_like(data, orig) if data.checked_type.dtype != out_dtype else data
    weight_grad = _conv_weight_grad(
        grad,
        _conv_to_layout(wide, data_layout, "NC" + spatial),
        (out_shape, data_shape, weight_shape),
        attrs,
        out_dtype,
    )
    return _conv_grads_like(
        orig,
        _conv_to_layout(data_grad, "NC" + spatial, data_layout),
        _conv_to_layout(weight_grad, "IO" + spatial, kernel_layout),
    )


def _conv_grads_like(orig, *grads):
    """Return the gradients in the dtypes of the operands, where the output has another."""
    return [
        grad if arg.checked_type.dtype == orig.checked_type.dtype else cast_like(grad, arg)
        for grad, arg in zip(grads, orig.args)
    ]


@register_gradient("nn.conv1d")
def conv1d_grad(orig, grad):
    """Gradient of conv1d"""
    return _conv_grad(orig, grad, 1)


@register_gradient("nn.conv2d")
def conv2d_grad(orig, grad):
    """Gradient of conv2d"""
    return _conv_grad(orig, grad, 2)


@register_gradient("nn.conv3d")
def conv3d_grad(orig, grad):
    """Gradient of conv3d"""
    return _conv_grad(orig, grad, 3)


@register_gradient("nn.conv1d_transpose")
def conv1d_transpose_grad(orig, grad):
    """Gradient of conv1d_transpose"""
    return _conv_transpose_grad(orig, grad, 1)


@register_gradient("nn.conv2d_transpose")
def conv2d_transpose_grad(orig, grad):
    """Gradient of conv2d_transpose"""
    return _conv_transpose_grad(orig, grad, 2)


@register_gradient("nn.conv3d_transpose")
def conv3d_transpose_grad(orig, grad):
    """Gradient of conv3d_transpose"""
    return _conv_transpose_grad(orig, grad, 3)
