# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relax/op/_op_gradient.py: gradients of convolutions."""

from collections.abc import Sequence

from tvm.ir import Call
from tvm.relax.block_builder import BlockBuilder
from tvm.relax.expr import Expr, Var
from tvm.relax.op import astype, permute_dims, reshape, strided_slice
from tvm.relax.op._op_gradient import _get_shape
from tvm.relax.op.base import register_gradient
from tvm.relax.op.nn import (
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
)


def _conv_sizes(expr: Expr, layout: str, axes: str) -> list[int]:
    """Return the sizes of the given axes of a tensor stored in `layout`, which have to be
    constant.
    """
    shape = _get_shape(expr)
    try:
        return [int(shape[layout.index(axis)]) for axis in axes]
    except TypeError as error:
        raise ValueError(
            "The gradient of a convolution needs constant channels and spatial sizes, "
            f"but got shape {shape} in layout {layout}"
        ) from error


def _conv_to_layout(expr: Expr, layout: str, wanted: str) -> Expr:
    if layout == wanted:
        return expr
    return permute_dims(expr, [layout.index(axis) for axis in wanted])


def _conv_layouts(call: Call, rank: int) -> tuple[str, str, str]:
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if any(len(layout) != rank + 2 for layout in layouts):
        raise ValueError(
            f"The gradient of {call.op.name} needs layouts without channel chunks, "
            f"but got {layouts}"
        )
    return layouts


def _conv_weight_grad(
    data: Expr,
    output_grad: Expr,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    attrs,
    batch,
) -> Expr:
    """Gradient of a convolution in its weight, in the layouts NC* and OI*.

    It is a convolution itself: of `data` by `output_grad`, batch and channels exchanged, where
    stride and dilation have each other's place.

    Parameters
    ----------
    shapes : tuple
        `[in_channel, *in_size]` of data, `[out_channel, in_channel // groups, *kernel_size]`, and
        the spatial sizes of `output_grad`.
    """
    (in_channel, *in_size), weight_shape, out_size = shapes
    rank = len(in_size)
    spatial = "DHW"[3 - rank :]
    groups = int(attrs.groups)
    if groups != 1:
        order = [1, 0, *range(2, rank + 3)]
        data = reshape(data, (batch, groups, in_channel // groups, *in_size))
        data = permute_dims(data, order)
        data = reshape(data, (batch * groups, in_channel // groups, *in_size))
    weight_grad = {1: conv1d, 2: conv2d, 3: conv3d}[rank](
        data,
        output_grad,
        strides=attrs.dilation,
        padding=attrs.padding,
        dilation=attrs.strides,
        groups=groups,
        out_dtype=attrs.out_dtype,
        data_layout="CN" + spatial,
        kernel_layout="IO" + spatial,
        out_layout="CN" + spatial,
    )
    computed = [
        (size + int(left) + int(right) - (out - 1) * int(stride) - 1) // int(dilation) + 1
        for size, out, left, right, stride, dilation in zip(
            in_size,
            out_size,
            attrs.padding[:rank],
            attrs.padding[rank:],
            attrs.strides,
            attrs.dilation,
        )
    ]
    if computed == list(weight_shape[2:]):
        return weight_grad
    # Where the windows do not end with the data, there are more positions than taps.
    return strided_slice(
        weight_grad,
        axes=list(range(rank + 2)),
        begin=[0] * (rank + 2),
        end=list(weight_shape),
    )


def _widened(first: Expr, second: Expr, out_dtype: str) -> tuple[Expr, Expr]:
    """Operands of one dtype: that of the output where the gradient comes in another."""
    if str(first.ty.dtype) == str(second.ty.dtype):
        return first, second
    return astype(first, out_dtype), astype(second, out_dtype)


def _conv_grad(orig_var: Var, orig_call: Call, output_grad: Var, rank: int) -> list[Expr]:
    """Gradient of conv1d, conv2d and conv3d in any layout without channel chunks.

    Forward Form:
        `y = relax.nn.conv2d(x, weight, strides, padding, dilation, groups, data_layout, \
kernel_layout, out_layout, out_dtype)`

    Backward:
        Returns `[x_grad, weight_grad]`
    """
    attrs = orig_call.attrs
    data_layout, kernel_layout, out_layout = _conv_layouts(orig_call, rank)
    spatial = "DHW"[3 - rank :]
    data, weight = orig_call.args
    data_shape = _conv_sizes(data, data_layout, "C" + spatial)
    weight_shape = _conv_sizes(weight, kernel_layout, "OI" + spatial)
    out_size = _conv_sizes(orig_var, out_layout, spatial)
    batch = _get_shape(data)[data_layout.index("N")]
    out_dtype = str(orig_var.ty.dtype)

    # The sizes of y do not tell by how much x is longer than the shortest that gives them.
    output_padding = [
        size - ((out - 1) * int(stride) + int(dilation) * (kernel - 1) + 1 - int(left) - int(right))
        for size, out, stride, dilation, kernel, left, right in zip(
            data_shape[1:],
            out_size,
            attrs.strides,
            attrs.dilation,
            weight_shape[2:],
            attrs.padding[:rank],
            attrs.padding[rank:],
        )
    ]
    exchanged = kernel_layout.translate(str.maketrans("IO", "OI"))
    grad, wide_weight = _widened(output_grad, weight, out_dtype)
    data_grad = {1: conv1d_transpose, 2: conv2d_transpose, 3: conv3d_transpose}[rank](
        grad,
        wide_weight,
        attrs.strides,
        attrs.padding,
        output_padding,
        attrs.dilation,
        attrs.groups,
        out_layout,
        exchanged,
        data_layout,
        attrs.out_dtype,
    )
    grad, wide_data = _widened(output_grad, data, out_dtype)
    weight_grad = _conv_weight_grad(
        _conv_to_layout(wide_data, data_layout, "NC" + spatial),
        _conv_to_layout(grad, out_layout, "NC" + spatial),
        (data_shape, weight_shape, out_size),
        attrs,
        batch,
    )
    weight_grad = _conv_to_layout(weight_grad, "OI" + spatial, kernel_layout)
    return _conv_grads_like(orig_call, data_grad, weight_grad, out_dtype)


def _conv_transpose_grad(orig_var: Var, orig_call: Call, output_grad: Var, rank: int) -> list[Expr]:
    """Gradient of conv1d_transpose, conv2d_transpose and conv3d_transpose in any layout without
    channel chunks.

    Forward Form:
        `y = relax.nn.conv2d_transpose(x, weight, strides, padding, output_padding, dilation, \
groups, data_layout, kernel_layout, out_layout, out_dtype)`

    Backward:
        Returns `[x_grad, weight_grad]`: the gradient in x is the convolution whose gradient y is.
    """
    attrs = orig_call.attrs
    data_layout, kernel_layout, out_layout = _conv_layouts(orig_call, rank)
    spatial = "DHW"[3 - rank :]
    data, weight = orig_call.args
    data_shape = _conv_sizes(data, data_layout, "C" + spatial)
    weight_shape = _conv_sizes(weight, kernel_layout, "IO" + spatial)
    out_shape = _conv_sizes(orig_var, out_layout, "C" + spatial)
    batch = _get_shape(data)[data_layout.index("N")]
    out_dtype = str(orig_var.ty.dtype)

    exchanged = kernel_layout.translate(str.maketrans("IO", "OI"))
    grad, wide_weight = _widened(output_grad, weight, out_dtype)
    data_grad = {1: conv1d, 2: conv2d, 3: conv3d}[rank](
        grad,
        wide_weight,
        strides=attrs.strides,
        padding=attrs.padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        data_layout=out_layout,
        kernel_layout=exchanged,
        out_layout=data_layout,
        out_dtype=attrs.out_dtype,
    )
    # An output_padding of a whole stride, which a dilation allows, gives positions too many.
    if any(int(p) >= int(s) for p, s in zip(attrs.output_padding, attrs.strides)):
        data_grad = strided_slice(
            data_grad,
            axes=[data_layout.index(axis) for axis in spatial],
            begin=[0] * rank,
            end=data_shape[1:],
        )
    grad, wide_data = _widened(output_grad, data, out_dtype)
    weight_grad = _conv_weight_grad(
        _conv_to_layout(grad, out_layout, "NC" + spatial),
        _conv_to_layout(wide_data, data_layout, "NC" + spatial),
        (out_shape, weight_shape, data_shape[1:]),
        attrs,
        batch,
    )
    weight_grad = _conv_to_layout(weight_grad, "IO" + spatial, kernel_layout)
    return _conv_grads_like(orig_call, data_grad, weight_grad, out_dtype)


def _conv_grads_like(call: Call, data_grad: Expr, weight_grad: Expr, out_dtype: str) -> list[Expr]:
    """Return the gradients in the dtypes of the operands, where the output has another."""
    return [
        grad if out_dtype == str(arg.ty.dtype) else astype(grad, str(arg.ty.dtype))
        for grad, arg in zip((data_grad, weight_grad), call.args)
    ]


@register_gradient("relax.nn.conv1d")
def conv1d_grad(orig_var: Var, orig_call: Call, output_grad: Var, ctx: BlockBuilder) -> list[Expr]:
    """Gradient of conv1d."""
    return _conv_grad(orig_var, orig_call, output_grad, 1)


@register_gradient("relax.nn.conv2d")
def conv2d_grad(orig_var: Var, orig_call: Call, output_grad: Var, ctx: BlockBuilder) -> list[Expr]:
    """Gradient of conv2d."""
    return _conv_grad(orig_var, orig_call, output_grad, 2)


@register_gradient("relax.nn.conv3d")
def conv3d_grad(orig_var: Var, orig_call: Call, output_grad: Var, ctx: BlockBuilder) -> list[Expr]:
    """Gradient of conv3d."""
    return _conv_grad(orig_var, orig_call, output_grad, 3)


@register_gradient("relax.nn.conv1d_transpose")
def conv1d_transpose_grad(
    orig_var: Var, orig_call: Call, output_grad: Var, ctx: BlockBuilder
) -> list[Expr]:
    """Gradient of conv1d_transpose."""
    return _conv_transpose_grad(orig_var, orig_call, output_grad, 1)


@register_gradient("relax.nn.conv2d_transpose")
def conv2d_transpose_grad(
    orig_var: Var, orig_call: Call, output_grad: Var, ctx: BlockBuilder
) -> list[Expr]:
    """Gradient of conv2d_transpose."""
    return _conv_transpose_grad(orig_var, orig_call, output_grad, 2)


@register_gradient("relax.nn.conv3d_transpose")
def conv3d_transpose_grad(
    orig_var: Var, orig_call: Call, output_grad: Var, ctx: BlockBuilder
) -> list[Expr]:
    """Gradient of conv3d_transpose."""
    return _conv_transpose_grad(orig_var, orig_call, output_grad, 3)
