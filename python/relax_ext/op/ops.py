# SPDX-License-Identifier: Apache-2.0
"""The operators that this package adds to Relax, and the choice between them and TVM's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm

from topi_ext.compat import relax, simplify
from topi_ext.spec.geometry import Geometry, fail, integer, integers, is_several
from topi_ext.spec.layout import Layouts, swap_kernel_letters

from .attrs import CONV_TRANSPOSE, CONV_WEIGHT_GRAD, kernel_size_of, rank_of_layout

R = relax()

Ints = int | Sequence[int]


def conv_weight_grad(
    x: Any,
    y: Any,
    kernel_size: Sequence[int],
    strides: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    data_layout: str | None = None,
    kernel_layout: str | None = None,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Any:
    """Return the gradient of a convolution with respect to its weight.

    ``w[k,c,r] = sum over n, p of x[n,c,stride*p - pad + dilation*r] * y[n,k,p]``

    Parameters
    ----------
    x : relax.Expr
        Input of the convolution, ``(n, c, *x_size)`` in the order of `data_layout`.
    y : relax.Expr
        Gradient of its output, ``(n, k, *y_size)`` in the order of `out_layout`.
    kernel_size : sequence of int
        One value per spatial axis; their number is the rank, 1 to 3.
    strides, padding, dilation, groups
        As the convolution has them; `padding` may state both sides of every axis, all values
        before first.
    data_layout, kernel_layout, out_layout : str, optional
        Layouts of x, of the result and of y; NCHW, OIHW and NCHW or their like if left out.
    out_dtype : str, optional
        Dtype of the result; that of the operands if left out.

    Returns
    -------
    relax.Expr
        The weight gradient, ``(k, c // groups, *kernel_size)`` in the order of `kernel_layout`.

    Raises
    ------
    ValueError
        When the call is emitted: one line that names operator, value and rule.

    See Also
    --------
    torch.nn.grad.conv2d_weight
    """
    op = "conv_weight_grad"
    kernel = kernel_size_of(op, kernel_size)
    rank = len(kernel)
    canonical = Layouts.canonical(rank)
    attrs = {
        "kernel_size": list(kernel),
        **_window(op, rank, strides, padding, dilation, groups),
        "data_layout": data_layout or canonical.x,
        "kernel_layout": kernel_layout or canonical.w,
        "out_layout": out_layout or canonical.y,
        "out_dtype": out_dtype or "",
    }
    return _call(CONV_WEIGHT_GRAD, [x, y], attrs)


def conv_transpose(
    data: Any,
    weight: Any,
    size: Any,
    strides: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Any:
    """Return a transposed convolution with a given output size, which may be symbolic.

    It is the gradient of a strided convolution with respect to its input.  If the size of that
    input is symbolic, the output padding is not a constant, so no attribute can state it.

    Parameters
    ----------
    data : relax.Expr
        ``(n, k, *y_size)`` in the order of `data_layout`, which also states the rank, 1 to 3.
    weight : relax.Expr
        ``(k, c // groups, *kernel)`` in the order of `kernel_layout`.
    size : sequence, relax.ShapeExpr or relax.Expr
        Spatial size of the output, or a tensor that has the shape of the output.  TVM's Gradient
        supports a symbolic size only in the form of a tensor.
    strides, padding, dilation, groups
        As in ``relax.op.nn.conv2d_transpose``.
    data_layout, kernel_layout : str
        Layouts of `data` and `weight`, I and O as in ``relax.op.nn.conv2d_transpose``.
    out_layout : str, optional
        Layout of the output; `data_layout` if left out.
    out_dtype : str, optional
        Dtype of the output; that of the operands if left out.

    Returns
    -------
    relax.Expr
        ``(n, c, *x_size)`` in the order of `out_layout`.

    Raises
    ------
    ValueError
        When the call is emitted: one line that names operator, value and rule.
    """
    op = "conv_transpose"
    attrs = {
        **_window(op, rank_of_layout(op, data_layout), strides, padding, dilation, groups),
        "data_layout": data_layout,
        "kernel_layout": kernel_layout,
        "out_layout": out_layout or data_layout,
        "out_dtype": out_dtype or "",
    }
    return _call(CONV_TRANSPOSE, [data, weight, _size(op, size)], attrs)


def conv_call(
    kind: str,
    operands: Sequence[Any],
    geometry: Geometry,
    layouts: Layouts,
    out_dtype: str,
    size: Any = None,
) -> Any:
    """Call the operator that is this kind with this geometry: TVM's own wherever one can be.

    A transposed convolution's output padding is stated as less padding behind.  Where that is no
    integer, `size` is a tensor of the output's shape, or its spatial size.
    """
    fitted = geometry.fitted()
    fitted = replace(fitted, pad_after=tuple(map(simplify, fitted.pad_after)))
    constant = all(isinstance(value, int) for value in fitted.pad_after)
    stated = fitted if constant else geometry
    attrs: dict[str, Any] = {
        "strides": list(stated.stride),
        "padding": list(stated.padding),
        "dilation": list(stated.dilation),
        "groups": stated.groups,
        "data_layout": layouts.x,
        "kernel_layout": layouts.w,
        "out_layout": layouts.y,
        "out_dtype": out_dtype,
    }
    if kind == "conv_weight_grad":
        x, y = operands
        return conv_weight_grad(x, y, stated.kernel, **attrs)
    if kind == "conv":
        return getattr(R.op.nn, f"conv{stated.rank}d")(*operands, **attrs)
    attrs["data_layout"], attrs["out_layout"] = layouts.y, layouts.x
    attrs["kernel_layout"] = swap_kernel_letters(layouts.w)
    if constant:
        return getattr(R.op.nn, f"conv{stated.rank}d_transpose")(*operands, **attrs)
    data, weight = operands
    return conv_transpose(data, weight, size, **attrs)


def _window(
    op: str, rank: int, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> dict[str, Any]:
    """Return the attributes of the sliding window, single values repeated as TVM's own operators do
    it.
    """
    stated = {
        "strides": (rank, integers(op, "stride", strides, (1, rank))),
        "padding": (2 * rank, integers(op, "padding", padding, (1, rank, 2 * rank))),
        "dilation": (rank, integers(op, "dilation", dilation, (1, rank))),
    }
    attrs: dict[str, Any] = {
        name: list(values * count if len(values) == 1 else values)
        for name, (count, values) in stated.items()
    }
    return {**attrs, "groups": integer(op, "groups", groups)}


def _size(op: str, size: Any) -> Any:
    """Return the size of an output as an expression, symbolic sizes as they are."""
    if isinstance(size, R.Expr):
        return size
    if not is_several(size):
        raise fail(op, f"size={size!r} must be a tensor, a shape, or one value per spatial axis")

    def is_symbolic(one: Any) -> bool:
        return isinstance(one, tvm.runtime.Object) and not hasattr(one, "value")

    sizes = [one if is_symbolic(one) else integer(op, "size", one) for one in size]
    return R.ShapeExpr(sizes)


def _call(op_name: str, args: list[Any], attrs: dict[str, Any]) -> Any:
    return R.Call(tvm.ir.Op.get(op_name), args, tvm.ir.make_node("ir.DictAttrs", **attrs))
