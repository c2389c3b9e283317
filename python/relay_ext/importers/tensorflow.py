# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's convolutions: SAME, VALID and numbers, of the output shape that a node is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from topi_ext.compat import relay
from topi_ext.padding import Call, read
from topi_ext.spec.geometry import fail

from .tensorflow_operator import (
    convolution,
    data_layout,
    is_channels_first,
    simplest,
    weight_axes,
)

R = relay()

KINDS = {
    "Conv2D": "conv",
    "Conv3D": "conv",
    "DepthwiseConv2dNative": "depthwise",
    "Conv2DBackpropInput": "conv_transpose",
    "Conv3DBackpropInputV2": "conv_transpose",
}
"""TensorFlow's operators, which know two and three axes: ``tf.nn.conv1d`` adds one."""

NEEDS = {f"_convert_map[{name}]": ("inputs", "attr", "params", "mod") for name in KINDS}

Sizes = tuple[int | None, ...]


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters of our own."""
    del module
    return {f"_convert_map[{name}]": _converter(name) for name in KINDS}


def _converter(name: str) -> Callable[..., Any]:
    """Return a converter ``(inputs, attributes, parameters, module) -> expression``."""
    rank, is_transposed = 3 if "3D" in name else 2, KINDS[name] == "conv_transpose"

    def convert(inputs: Sequence[Any], attr: dict[str, Any], params: Any, mod: Any) -> Any:
        data, weight = inputs[2] if is_transposed else inputs[0], inputs[1]
        layout = (attr.get("data_format") or b"").decode() or data_layout(rank, False)
        is_first = is_channels_first(layout)
        stated = _shape(weight, mod)
        filters = _known(stated)
        if filters is None:
            raise fail(name, f"filter shape {stated} must be known at import")
        shape = _channels_last(_shape(data, mod), is_first)
        wanted: Sizes = ()
        if is_transposed:
            wanted = _output_shape(inputs[0], attr, params, mod)
            if len(wanted) == rank:  # the spatial part alone
                wanted = (None, *wanted, None)
            else:
                wanted = _channels_last(wanted, is_first)
            if None in wanted[1:-1]:
                raise fail(
                    name, f"output shape {wanted} must be known at import, but for the batch"
                )
        call = _call(attr, filters[:rank], shape[1:-1], wanted[1:-1], is_first)
        channels = (wanted or shape)[-1]
        groups = 1 if channels is None else channels // filters[rank]
        kind = simplest(KINDS[name], filters)
        inward, outward = _moves(rank, is_first, attr.get("_target_layout") or "")
        is_first = is_first or outward != tuple(range(rank + 2))
        return _transposed(
            convolution(
                call,
                _transposed(data, inward),
                _transposed(weight, weight_axes(kind, rank, is_first)),
                filters,
                kind,
                groups,
                is_first,
            ),
            outward,
        )

    return convert


def _call(attr: dict[str, Any], kernel: Sizes, sizes: Sizes, wanted: Sizes, is_first: bool) -> Call:
    """Read the call of a node; the output size is that of a transposed convolution."""
    ones = [1] * (len(kernel) + 2)
    strides = _channels_last(attr["strides"], is_first)[1:-1]
    arguments: dict[str, Any] = {
        "kernel_size": kernel,
        "strides": strides,
        "dilations": _channels_last(attr.get("dilations") or ones, is_first)[1:-1],
        "padding": _padding(attr, is_first),
    }
    if wanted:
        arguments["output_shape"] = wanted
    else:
        sizes = _without_free(sizes, strides)
    kind = "conv_transpose" if wanted else "conv"
    return read("tensorflow", kind, size=_known(sizes), **arguments)


def _shape(expr: Any, mod: Any) -> Sizes:
    """Return the shape, with None for sizes that are known only at run time."""
    found = R.frontend.common.infer_shape(expr, mod)
    return tuple(int(size) if isinstance(size, int) else None for size in found)


def _known(sizes: Sizes) -> tuple[int, ...] | None:
    """Return sizes that are known at import, or None if one is not."""
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None


def _channels_last(values: Sequence[Any], is_first: bool) -> tuple[Any, ...]:
    """Return the values of all axes in that order."""
    return (values[0], *values[2:], values[1]) if is_first else tuple(values)


def _padding(attr: dict[str, Any], is_first: bool) -> Any:
    """SAME, VALID, or pairs of all axes, channels last."""
    padding = attr["padding"].decode()
    if padding != "EXPLICIT":
        return padding
    values = attr["explicit_paddings"]
    return _channels_last(list(zip(values[::2], values[1::2])), is_first)


_LARGE = 1 << 20


def _without_free(sizes: Sizes, strides: Sequence[int]) -> Sizes:
    """Return the sizes without those that SAME does not depend on: with stride 1 it is the kernel's
    alone.
    """
    return tuple(_LARGE if n is None and s == 1 else n for n, s in zip(sizes, strides))


def _moves(rank: int, is_first: bool, target: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes that move channels first if the user requests it, and back."""
    if is_first or target != data_layout(rank, True):
        return (tuple(range(rank + 2)),) * 2
    return (0, rank + 1, *range(1, rank + 1)), (0, *range(2, rank + 2), 1)


def _transposed(expr: Any, axes: Sequence[int]) -> Any:
    return expr if list(axes) == sorted(axes) else R.transpose(expr, axes)


# ------------------------------------------------------------------- output shapes


def _output_shape(expr: Any, attr: dict[str, Any], params: Any, mod: Any) -> Sizes:
    """Return the output shape that a node is given, where the graph states or computes it; else
    what TensorFlow noted of it. It may also be the spatial part alone.
    """
    computed = _values(expr, params, mod)
    noted = (attr.get("_output_shapes") or [None])[0] or []
    if len(noted) != len(computed):
        return computed
    return tuple(
        value if value is not None else size if isinstance(size, int) and size >= 0 else None
        for value, size in zip(computed, noted)
    )


def _values(expr: Any, params: Any, mod: Any) -> Sizes:
    """Return the values of a vector, each None where it depends on more than constants."""
    if all(var.name_hint in params for var in R.analysis.free_vars(expr)):
        found = R.frontend.common.infer_value(expr, params, mod).numpy()
        return tuple(int(value) for value in found)
    if isinstance(expr, R.Call) and expr.op.name == "concatenate":  # tf.stack, tf.concat
        return tuple(value for part in expr.args[0] for value in _values(part, params, mod))
    (length,) = _shape(expr, mod)
    return (None,) * (length or 0)
