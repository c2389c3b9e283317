# SPDX-License-Identifier: Apache-2.0
"""Batch, group and layer normalization, with the statistics that their gradients read.

Statistics are computed in two passes, the mean first, and in float32 for half precision.  If the
statistics of a group or layer normalization are not used, its kernel for whole rows is used.
PyTorch decomposes the backward operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from topi_ext.compat import relax

from ..ir import dtype_of, sizes_of
from .calls import Call, Converter, Refused, torch_dtype_name
from .reductions import count

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        "_native_batch_norm_legit.no_stats": partial(_batch_norm, 3),
        "_native_batch_norm_legit_functional.default": partial(_batch_norm, 5),
        "_native_batch_norm_legit_no_training.default": _batch_norm_by_running_statistics,
        "native_group_norm.default": _group_norm,
        "native_layer_norm.default": _layer_norm,
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        "batch_norm.default": partial(_batch_norm, 1),
        "group_norm.default": lambda call: _whole_group_norm(call, call["num_groups"]),
        "layer_norm.default": _whole_layer_norm,
        "instance_norm.default": _instance_norm,
    }


def _wide(call: Call, name: str, dtype: str) -> Any:
    """Return an argument in the dtype of the arithmetic, None if the call omits it."""
    return None if call[name] is None else call.cast(call[name], dtype)


def _moments(call: Call, x: Any, axes: Sequence[int]) -> tuple[Any, Any, Any]:
    """Return mean and variance with all axes kept, and the deviations from the mean."""
    mean = call.emit(R.op.mean(x, axes, keepdims=True))
    deviation = call.emit(R.op.subtract(x, mean))
    square = call.emit(R.op.multiply(deviation, deviation))
    return mean, call.emit(R.op.mean(square, axes, keepdims=True)), deviation


def _inverse(call: Call, variance: Any) -> Any:
    epsilon = R.const(call["eps"], dtype_of(variance))
    return call.emit(R.op.rsqrt(call.emit(R.op.add(variance, epsilon))))


def _scaled(call: Call, y: Any, shape: Sequence[Any], dtype: str) -> Any:
    """Return ``y * weight + bias``, the parameters in a shape that is broadcast to that of y."""
    for name, op in (("weight", R.op.multiply), ("bias", R.op.add)):
        parameter = _wide(call, name, dtype)
        if parameter is not None:
            y = call.emit(op(y, call.reshape(parameter, shape)))
    return y


def _stated(call: Call, results: Sequence[Any]) -> tuple[Any, ...]:
    """Return results in the shapes and dtypes that PyTorch states."""
    return tuple(
        call.cast(call.reshape(result, call.sizes(value.shape)), torch_dtype_name(value.dtype))
        if result is not None
        else None
        for result, value in zip(results, call.value)
    )


def _arithmetic_dtype(call: Call, *names: str) -> str:
    """Return the widest dtype of the operands, float32 at least."""
    dtypes = {dtype_of(call[name]) for name in names if call[name] is not None}
    return "float64" if "float64" in dtypes else "float32"


def _channels(x: Any) -> list[Any]:
    return [1, sizes_of(x)[1], *[1] * (len(sizes_of(x)) - 2)]


# ---------------------------------------------------------------- operators of whole rows


def _operands(call: Call, sizes: Sequence[Any], *others: str) -> list[Any]:
    """Return data, weight, bias and other operands, in the one dtype that TVM's operators take.

    A layer without weight and bias has ones and zeros.  TVM's operators do not take bfloat16, but
    for that with running statistics.
    """
    given = {name: call[name] for name in ("input", "weight", "bias", *others)}
    dtypes = {dtype_of(x) for x in given.values() if x is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else _arithmetic_dtype(call, *given)
    dtype = "float32" if dtype == "bfloat16" and not others else dtype
    for name, value in (("weight", 1), ("bias", 0)):
        if given[name] is None:
            given[name] = R.const(np.full(tuple(call.numbers(sizes)), value), dtype)
    return [call.cast(x, dtype) for x in given.values()]


def _whole(call: Call, result: Any) -> Any:
    return call.cast(call.emit(result), dtype_of(call["input"]))


def _whole_group_norm(call: Call, groups: int) -> Any:
    sizes = sizes_of(call["input"])
    operands, axes = _operands(call, sizes[1:2]), list(range(2, len(sizes)))
    return _whole(call, R.op.nn.group_norm(*operands, groups, 1, axes, call["eps"]))


def _whole_layer_norm(call: Call) -> Any:
    sizes, rank = sizes_of(call["input"]), len(call["normalized_shape"])
    operands, axes = _operands(call, sizes[-rank:]), list(range(-rank, 0))
    return _whole(call, R.op.nn.layer_norm(*operands, axes, call["eps"]))


def _instance_norm(call: Call) -> Any:
    """Normalize by the statistics of each image, or by running ones."""
    sizes = sizes_of(call["input"])
    if not call["use_input_stats"]:
        return _whole_batch_norm(call)
    if call["running_mean"] is not None:
        rule = "use_input_stats=True would update running statistics, which are not imported"
        raise Refused("instance_norm", f"{rule}: call eval() on the model before exporting it")
    operands, axes = _operands(call, sizes[1:2]), list(range(2, len(sizes)))
    return _whole(call, R.op.nn.instance_norm(*operands, 1, axes, call["eps"]))


def _norm_of_batch(call: Call) -> Any:
    """Normalize by the statistics of the batch."""
    sizes = sizes_of(call["input"])
    operands, axes = _operands(call, sizes[1:2]), [0, *range(2, len(sizes))]
    return _whole(call, R.op.nn.instance_norm(*operands, 1, axes, call["eps"]))


def _whole_batch_norm(call: Call) -> Any:
    """Normalize by running statistics, so that the convolution before it can absorb it."""
    channels = sizes_of(call["input"])[1]
    if not isinstance(channels, int):
        raise Refused("batch_norm", f"channels={channels} must be known at import")
    operands = _operands(call, [channels], "running_mean", "running_var")
    normed = R.op.nn.batch_norm(*operands, axis=1, epsilon=call["eps"], training=False)
    return _whole(call, R.TupleGetItem(call.emit(normed), 0))


# ---------------------------------------------------------------- results and statistics


def _batch_norm(results: int, call: Call) -> Any:
    """Return result, mean, inverse deviation, and for five results the new running statistics.

    One result is that of a program that is not decomposed.
    """
    x = call["input"]
    has_running = "running_mean" in call and call["running_mean"] is not None
    if call.is_imported and call["training"] and has_running:
        raise Refused(
            "batch_norm",
            "training=True would update running statistics, which are not imported: "
            "call eval() on the model before exporting it",
        )
    if not call["training"]:
        if not has_running:
            raise call.refusal("neither training nor running statistics")
        return _whole_batch_norm(call) if results == 1 else _by_running_statistics(call, results)
    if results == 1:
        return _norm_of_batch(call)
    if results == 3 and has_running:
        raise call.refusal("updates running statistics in place")
    if 0 in sizes_of(x):
        raise call.refusal("no elements")
    dtype = _arithmetic_dtype(call, "input")
    is_plain = dtype_of(x) == "float32" and isinstance(sizes_of(x)[1], int)
    if results == 3 and call.used <= {0} and is_plain:
        return _norm_of_batch(call), None, None  # a kernel for whole rows, which has no float64
    x = call.cast(x, dtype)
    axes = [axis for axis in range(len(sizes_of(x))) if axis != 1]
    mean, variance, deviation = _moments(call, x, axes)
    inverse = _inverse(call, variance)
    y = _scaled(call, call.emit(R.op.multiply(deviation, inverse)), _channels(x), dtype)
    found = [y, mean, inverse]
    if results == 5 and has_running:
        n = count(call, x, axes, dtype)
        rest = call.emit(R.op.subtract(n, R.const(1, dtype)))
        unbiased = call.emit(R.op.multiply(variance, call.emit(R.op.divide(n, rest))))
        for name, statistic in (("running_mean", mean), ("running_var", unbiased)):
            found.append(_updated(call, name, statistic))
    elif results == 5:
        found += [None, None]
    return _stated(call, found)


def _updated(call: Call, name: str, statistic: Any) -> Any:
    """Return ``(1 - momentum) * running + momentum * statistic``."""
    dtype, momentum = dtype_of(statistic), call["momentum"]
    running = call.reshape(_wide(call, name, dtype), sizes_of(statistic))
    kept = call.emit(R.op.multiply(running, R.const(1 - momentum, dtype)))
    return call.emit(R.op.add(kept, call.emit(R.op.multiply(statistic, R.const(momentum, dtype)))))


def _by_running_statistics(call: Call, results: int) -> Any:
    """Normalize by running statistics, which stay unchanged; the saved ones are empty."""
    x = call["input"]
    dtype = _arithmetic_dtype(call, "input", "running_var")
    shape = _channels(x)
    mean, variance = (
        call.reshape(_wide(call, name, dtype), shape) for name in ("running_mean", "running_var")
    )
    deviation = call.emit(R.op.subtract(call.cast(x, dtype), mean))
    y = call.emit(R.op.multiply(deviation, _inverse(call, variance)))
    y = _scaled(call, y, shape, dtype)
    kept = [call["running_mean"], call["running_var"]] if results == 5 else []
    empty = [None, None]
    for index in (1, 2):
        if index in call.used:
            value = call.value[index]
            sizes = R.ShapeExpr(call.sizes(value.shape))
            if 0 not in value.shape:
                raise call.refusal("reads saved statistics")
            empty[index - 1] = call.emit(R.op.zeros(sizes, torch_dtype_name(value.dtype)))
    return _stated(call, [y, *empty, *kept])


def _batch_norm_by_running_statistics(call: Call) -> Any:
    """Return a normalization that the convolution before it can absorb."""
    if call.used <= {0}:
        return _whole_batch_norm(call), None, None
    return _by_running_statistics(call, 3)


def _group_norm(call: Call) -> Any:
    """Return result, mean and inverse deviation of each group of channels."""
    x, groups = call["input"], call["group"]
    sizes = list(sizes_of(x))
    if 0 in sizes:
        raise call.refusal("no elements")
    if call.used <= {0}:
        return _whole_group_norm(call, groups), None, None
    dtype = _arithmetic_dtype(call, "input")
    each = sizes[1] // groups
    apart = call.reshape(call.cast(x, dtype), [sizes[0], groups, each, *sizes[2:]])
    axes = list(range(2, len(sizes) + 1))
    mean, variance, deviation = _moments(call, apart, axes)
    inverse = _inverse(call, variance)
    y = call.emit(R.op.multiply(deviation, inverse))
    shape = [1, groups, each, *[1] * (len(sizes) - 2)]
    return _stated(call, (_scaled(call, y, shape, dtype), mean, inverse))


def _layer_norm(call: Call) -> Any:
    """Return result, mean and inverse deviation of each row."""
    x = call["input"]
    sizes, rank = list(sizes_of(x)), len(call["normalized_shape"])
    if 0 in sizes:
        raise call.refusal("no elements")
    if call.used <= {0} and all(isinstance(size, int) for size in sizes[-rank:]):
        return _whole_layer_norm(call), None, None
    dtype = _arithmetic_dtype(call, "input")
    axes = list(range(len(sizes) - rank, len(sizes)))
    mean, variance, deviation = _moments(call, call.cast(x, dtype), axes)
    inverse = _inverse(call, variance)
    y = call.emit(R.op.multiply(deviation, inverse))
    return _stated(call, (_scaled(call, y, sizes[-rank:], dtype), mean, inverse))
