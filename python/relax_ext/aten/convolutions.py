# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients, in one to three dimensions."""

from __future__ import annotations

from functools import partial
from typing import Any

from topi_ext.compat import relax
from topi_ext.padding import read

from ..ir import sizes_of
from ..op.gradient import gradient
from .calls import Call, Converter, Refused, per_axis, wide

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        "convolution.default": lambda call: _convolution(call, call["transposed"]),
        "convolution_backward.default": _backward,
        "_weight_norm_interface_backward.default": _weight_norm_backward,
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    transposed = ("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
    return {
        **{
            f"conv{rank}d.{form}": partial(_convolution, transposed=False)
            for rank in (1, 2, 3)
            for form in ("default", "padding")
        },
        **dict.fromkeys(transposed, partial(_convolution, transposed=True)),
    }


def _convolution(call: Call, transposed: bool) -> Any:
    """Return a convolution in the dtype of its operands, with or without a batch."""
    x, w, bias = (call[name] for name in ("input", "weight", "bias"))
    kernel = sizes_of(w)[2:]
    rank = len(kernel)
    name = f"conv{rank}d" + ("_transpose" if transposed else "")
    names = {"strides": "stride", "padding": "padding", "dilation": "dilation"}
    if transposed:
        names["output_padding"] = "output_padding"
    if isinstance(call["padding"], str):
        window = {key: tuple(per_axis(call[key], rank)) for key in ("stride", "dilation")}
        given = read("torch", "conv", kernel_size=kernel, padding=call["padding"], **window)
        padding = list(given.attributes["padding"])
    else:
        padding = per_axis(call["padding"], rank)
    attributes: dict[str, Any] = {"groups": call["groups"]}
    for attribute, own in names.items():
        values = padding if attribute == "padding" else per_axis(call[own], rank)
        if not all(isinstance(value, int) for value in values):
            raise Refused(name, f"{attribute}={values} must be known at import")
        attributes[attribute] = tuple(values)
    is_single = len(sizes_of(x)) == rank + 1
    if is_single:
        x = call.emit(R.op.expand_dims(x, 0))
    y = call.emit(getattr(R.op.nn, name)(x, w, **attributes))
    if bias is not None:
        y = call.emit(R.op.add(y, R.op.reshape(bias, (1, -1) + (1,) * rank)))
    return call.emit(R.op.squeeze(y, [0])) if is_single else y


def _backward(call: Call) -> Any:
    """Return the gradients of data, weight and bias that `output_mask` selects.

    Data and weight are differentiated by the rules of the package, for every stride, dilation,
    group and output padding.
    """
    dy, x, w = (call[name] for name in ("grad_output", "input", "weight"))
    rank = len(sizes_of(w)) - 2
    if rank not in (1, 2, 3) or len(sizes_of(x)) != rank + 2:
        raise call.refusal("needs one to three spatial axes and a batch")
    name = f"conv{rank}d"
    attributes: dict[str, Any] = {
        "strides": call.numbers(per_axis(call["stride"], rank)),
        "padding": call.numbers(per_axis(call["padding"], rank)),
        "dilation": call.numbers(per_axis(call["dilation"], rank)),
        "groups": call["groups"],
    }
    if call["transposed"]:
        name += "_transpose"
        attributes["output_padding"] = call.numbers(per_axis(call["output_padding"], rank))
    wants_data, wants_weight, wants_bias = call["output_mask"]
    of_data = of_weight = of_bias = None
    if wants_data or wants_weight:
        forward = call.builder.normalize(getattr(R.op.nn, name)(x, w, **attributes))
        of_data, of_weight = gradient(None, forward, dy, call.builder, None)[:2]
    if wants_bias:
        dtype = call.dtype("grad_output")
        axes = [0, *range(2, rank + 2)]
        of_bias = call.cast(call.emit(R.op.sum(call.cast(dy, wide(dtype)), axes)), dtype)
    return (
        call.emit(of_data) if wants_data else None,
        call.emit(of_weight) if wants_weight else None,
        of_bias,
    )


def _weight_norm_backward(call: Call) -> Any:
    """Return the gradients of v and g of ``w = v g / |v|``.

    ``dg = sum(dw v) / |v|`` and ``dv = g / |v| (dw - v sum(dw v) / |v|^2)``.
    """
    dtype = call.dtype("saved_v")
    names = ("grad_w", "saved_v", "saved_g", "saved_norms")
    dw, v, g, norms = (call.cast(call[name], wide(dtype)) for name in names)
    rank, axis = len(sizes_of(v)), call["dim"]
    axes = [other for other in range(rank) if other != axis % rank]
    if axis == -1:
        axes = list(range(rank))
    norms = call.reshape(norms, sizes_of(g))
    product = call.emit(R.op.sum(call.emit(R.op.multiply(dw, v)), axes, keepdims=True))
    inner = call.emit(R.op.divide(product, norms))
    scale = call.emit(R.op.divide(g, norms))
    along = call.emit(R.op.multiply(v, call.emit(R.op.divide(inner, norms))))
    dv = call.emit(R.op.multiply(scale, call.emit(R.op.subtract(dw, along))))
    return call.cast(dv, dtype), call.cast(call.reshape(inner, sizes_of(g)), dtype)
