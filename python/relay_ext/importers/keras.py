# SPDX-License-Identifier: Apache-2.0
"""Keras's convolutions of one to three axes, and their transposes, as Relay operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from topi_ext.compat import relay
from topi_ext.padding import Call, read
from topi_ext.spec.geometry import fail
from topi_ext.spec.layout import SPATIAL

from .keras_layouts import FROM_KERAS
from .keras_layouts import corrections as layouts
from .keras_training import NEEDS as TRAINING
from .keras_training import corrections as training
from .tensorflow_operator import convolution, is_channels_first, simplest, weight_axes

R = relay()

KINDS = {
    **{f"Conv{rank}D": "conv" for rank in (1, 2, 3)},
    **{f"Conv{rank}DTranspose": "conv_transpose" for rank in (1, 2, 3)},
    **{f"DepthwiseConv{rank}D": "depthwise" for rank in (1, 2)},
    **{f"SeparableConv{rank}D": "separable" for rank in (1, 2)},
}

_ADDED = ("Conv1DTranspose", "DepthwiseConv1D", "SeparableConv1D")
"""Layers that TVM's importer does not know."""

_CONVERTED = ("Activation", *(name for name in KINDS if name not in _ADDED))
_CONVERTER = ("inexpr", "keras_layer", "etab", "data_layout", "input_shape")
NEEDS = {
    "from_keras": FROM_KERAS,
    **{f"_convert_map[{name}]": _CONVERTER for name in _CONVERTED},
    **TRAINING,
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters of our own, some of layers that TVM does not know."""
    activation = module._convert_map["Activation"]
    converters = {f"_convert_map[{name}]": _converter(name, activation) for name in KINDS}
    return {**converters, **training(module), **layouts(module)}


def _converter(name: str, activation: Callable[..., Any]) -> Callable[..., Any]:
    """Return a converter ``(expression, layer, table of expressions, layout, shape) ->
    expression``.
    """
    kind, rank = KINDS[name], int(name.partition("Conv")[2][0])

    def convert(
        inexpr: Any, keras_layer: Any, etab: Any, data_layout: str, input_shape: Any = None
    ) -> Any:
        layer, is_first = keras_layer, is_channels_first(data_layout)
        if layer.data_format != "channels_last":
            raise fail(name, f"data_format={layer.data_format!r} must be 'channels_last'")
        if is_first and rank != 2:
            known = f"N{SPATIAL[rank]}C or NC{SPATIAL[rank]}"
            raise fail(name, f"layout={data_layout!r} must be {known}")
        weights = layer.get_weights()
        sizes = _sizes(layer, input_shape, inexpr, is_first)
        call = _call(kind, layer, weights[0].shape[:rank], sizes)
        own = "depthwise" if kind == "separable" else kind
        groups = layer.groups if own == "conv" else 1
        result = _operator(call, inexpr, weights[0], own, groups, is_first, etab)
        if kind == "separable":
            point = read("keras", "conv", kernel_size=(1,) * rank)
            result = _operator(point, result, weights[1], "conv", 1, is_first, etab)
        if layer.use_bias:
            axis = 1 if is_first else -1
            result = R.nn.bias_add(result, etab.new_const(weights[-1]), axis=axis)
        if not hasattr(layer.activation, "__name__"):
            raise fail(name, f"activation={layer.activation!r} must be a function, not a layer")
        return activation(result, layer.activation.__name__, etab, data_layout)

    return convert


def _sizes(layer: Any, given: Any, expr: Any, channels_first: bool) -> tuple[int, ...] | None:
    """Spatial sizes of the operand, by Keras, channels last, or where Keras leaves them open or
    a shared layer has several, by Relay; None where neither knows."""
    shape = given or getattr(layer, "input_shape", None)
    sizes = tuple(shape)[1:-1] if shape else (None,)
    if None in sizes and layer.padding == "same" and max(layer.strides) > 1:
        shape = R.frontend.common.infer_shape(expr)
        sizes = tuple(shape)[2:] if channels_first else tuple(shape)[1:-1]
    return tuple(map(int, sizes)) if all(isinstance(size, int) for size in sizes) else None


def _call(kind: str, layer: Any, kernel: Sequence[int], sizes: Any) -> Call:
    """Read the call of a layer; the kernel size is that of its weights."""
    arguments = dict(
        kernel_size=kernel,
        strides=layer.strides,
        dilation_rate=layer.dilation_rate,
        padding=layer.padding,
    )
    if kind == "conv_transpose" and len(kernel) == 3:
        arguments["dilation_rate"] = 1  # Keras 2, which TVM imports, ignores it
    if kind != "conv_transpose":
        return read("keras", "conv", size=sizes, **arguments)
    extra = layer.output_padding
    return read("keras", "conv_transpose", size=sizes, output_padding=extra, **arguments)


def _operator(
    call: Call, data: Any, weight: Any, kind: str, groups: int, channels_first: bool, etab: Any
) -> Any:
    rank, shape, kind = call.window.rank, weight.shape, simplest(kind, weight.shape)
    if kind == "depthwise" and rank == 1:  # its weight has a form of its own for two axes only
        kind, groups = "conv", shape[1]
        weight = weight.reshape(shape[0], 1, -1)
    stored = etab.new_const(np.transpose(weight, weight_axes(kind, rank, channels_first)))
    return convolution(call, data, stored, weight.shape, kind, groups, channels_first)
