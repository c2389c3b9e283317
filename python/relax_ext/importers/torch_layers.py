# SPDX-License-Identifier: Apache-2.0
"""PyTorch: layers around convolutions with all of their arguments.

For exported programs.  Each converter takes the place of one of TVM's that drops an argument
(the epsilon of ``instance_norm``, the rounding of a nearest resize), or fails where an argument is
left out or negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from topi_ext.compat import known_shape, relax, type_of
from topi_ext.spec.geometry import fail

from .torch_arithmetic import Emit, as_dtype, dtype_of

R = relax()


def converters() -> dict[str, Callable[[Emit, Any], Any]]:
    """Return ``convert(emit, arguments)`` by the name of an operator."""
    return {
        "pixel_shuffle.default": _pixel_shuffle,
        "group_norm.default": lambda emit, a: _group_norm(emit, a, a.num_groups),
        "native_group_norm.default": lambda emit, a: _group_norm(emit, a, a.group),
        "layer_norm.default": _layer_norm,
        "native_layer_norm.default": _layer_norm,
        "instance_norm.default": _instance_norm,
        "grid_sampler_2d.default": _grid_sample,
        "upsample_nearest2d.vec": _nearest,
        "upsample_bilinear2d.vec": lambda emit, a: _resized(emit, a, "linear"),
        "upsample_bicubic2d.vec": lambda emit, a: _resized(emit, a, "cubic"),
        "_upsample_bilinear2d_aa.default": _antialiased,
    }


def with_strides(stock: Callable[[Any], Any], node: Any) -> Any:
    """Convert a pooling by TVM's converter, which takes the empty stride of PyTorch for one."""
    args = list(node.args)
    if len(args) > 2 and not args[2]:
        args[2] = args[1]
    same = ("kwargs", "meta", "name", "target", "users")
    return stock(SimpleNamespace(args=tuple(args), **{name: getattr(node, name) for name in same}))


def with_positive_widths(stock: Callable[[Any], Any], node: Any) -> Any:
    """Convert a padding by TVM's converter, which cuts off by negative widths in one mode only."""
    mode = node.args[2] if len(node.args) > 2 else "constant"
    if mode != "constant" and any(isinstance(width, int) and width < 0 for width in node.args[1]):
        raise fail("pad", f"pad={node.args[1]} must not be negative where mode={mode!r}")
    return stock(node)


def _shape(x: Any) -> tuple[Any, ...]:
    return known_shape(type_of(x).shape)


def _ones(shape: Sequence[int], like: Any) -> Any:
    return R.const(np.ones(tuple(shape)), dtype_of(like))


def _zeros(shape: Sequence[int], like: Any) -> Any:
    return R.const(np.zeros(tuple(shape)), dtype_of(like))


def _operands(emit: Emit, a: Any, shape: Sequence[int]) -> tuple[Any, Any, Any]:
    """Return data, weight and bias; ones and zeros where a layer has none.

    TVM's normalizations do not take bfloat16: these are computed in float32.
    """
    weight = _ones(shape, a.input) if a.weight is None else a.weight
    bias = _zeros(shape, a.input) if a.bias is None else a.bias
    if dtype_of(a.input) != "bfloat16":
        return a.input, weight, bias
    x, weight, bias = (as_dtype(emit, tensor, "float32") for tensor in (a.input, weight, bias))
    return x, weight, bias


def _pixel_shuffle(emit: Emit, a: Any) -> Any:
    *batch, c, h, w = _shape(a.self)
    r, n = a.upscale_factor, len(batch)
    apart = emit(R.op.reshape(a.self, (*batch, c // (r * r), r, r, h, w)))
    axes = [*range(n), *(n + axis for axis in (0, 3, 1, 4, 2))]
    return emit(
        R.op.reshape(emit(R.op.permute_dims(apart, axes)), (*batch, c // (r * r), h * r, w * r))
    )


def _group_norm(emit: Emit, a: Any, groups: int) -> Any:
    shape = _shape(a.input)
    axes = list(range(2, len(shape)))
    operands = _operands(emit, a, shape[1:2])
    return emit(R.op.nn.group_norm(*operands, groups, 1, axes, a.eps))


def _layer_norm(emit: Emit, a: Any) -> Any:
    axes = list(range(-len(a.normalized_shape), 0))
    operands = _operands(emit, a, a.normalized_shape)
    return emit(R.op.nn.layer_norm(*operands, axes, a.eps))


def _instance_norm(emit: Emit, a: Any) -> Any:
    """Normalize by the statistics of each image, or by running ones."""
    shape = _shape(a.input)
    operands = _operands(emit, a, shape[1:2])
    if a.use_input_stats:
        if a.running_mean is not None:
            rule = "use_input_stats=True would update running statistics, which are not imported"
            raise fail("instance_norm", f"{rule}: call eval() on the model before exporting it")
        axes = list(range(2, len(shape)))
        return emit(R.op.nn.instance_norm(*operands, 1, axes, a.eps))
    mean, var = (as_dtype(emit, t, dtype_of(operands[0])) for t in (a.running_mean, a.running_var))
    normed = R.op.nn.batch_norm(*operands, mean, var, axis=1, epsilon=a.eps, training=False)
    return emit(R.TupleGetItem(emit(normed), 0))


def _grid_sample(emit: Emit, a: Any) -> Any:
    """Sample images at the places of a grid, which TVM has with its coordinates as channels."""
    grid = emit(R.op.permute_dims(a.grid, [0, 3, 1, 2]))
    return emit(
        R.op.image.grid_sample(
            a.input,
            grid,
            method=("bilinear", "nearest", "bicubic")[a.interpolation_mode],
            layout="NCHW",
            padding_mode=("zeros", "border", "reflection")[a.padding_mode],
            align_corners=a.align_corners,
        )
    )


def _size(a: Any, corners: bool) -> tuple[Any, ...]:
    """Return the size of a resize, from numbers or from factors."""
    if a.output_size is not None:
        return tuple(a.output_size)
    before = _shape(a.input)[2:]
    if not all(isinstance(size, int) for size in before):
        raise fail("upsample", f"scale_factors={a.scale_factors} needs sizes known at import")
    exact = [size * factor for size, factor in zip(before, a.scale_factors)]
    if not corners and any(size % 1 for size in exact):
        rule = "must give whole sizes, or come with recompute_scale_factor=True"
        raise fail("upsample", f"scale_factors={a.scale_factors} of {before} {rule}")
    return tuple(int(size) for size in exact)


def _nearest(emit: Emit, a: Any) -> Any:
    return emit(
        R.op.image.resize2d(
            a.input,
            _size(a, corners=False),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    )


def _resized(emit: Emit, a: Any, method: str) -> Any:
    return emit(
        R.op.image.resize2d(
            a.input,
            _size(a, a.align_corners),
            layout="NCHW",
            method=method,
            coordinate_transformation_mode="align_corners" if a.align_corners else "half_pixel",
            cubic_alpha=-0.75,
        )
    )


def _antialiased(emit: Emit, call: Any) -> Any:
    """Resize to a larger size, where nothing is filtered.

    With `align_corners` PyTorch's filter is centred at other places than those of the corners.
    """
    if call.align_corners:
        raise fail("upsample", "antialias=True must come with align_corners=False")
    before, after = _shape(call.self)[2:], tuple(call.output_size)
    if not all(isinstance(b, int) and isinstance(a, int) and b <= a for a, b in zip(after, before)):
        raise fail("upsample", f"antialias=True must come with a larger size: {before} to {after}")
    call = SimpleNamespace(input=call.self, output_size=after, align_corners=call.align_corners)
    return _resized(emit, call, "linear")
