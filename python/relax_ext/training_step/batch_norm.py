# SPDX-License-Identifier: Apache-2.0
"""PyTorch: batch normalization as expressions that have gradients, and its running statistics.

TVM 0.27 gives zeros as the new running variance, and would update it by the biased variance of the
batch where PyTorch takes the unbiased one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from topi_ext.compat import dtype_name, known_shape, relax, type_of

R = relax()

_BATCH = ("x", "weight", "bias", "mean", "var", "training", "momentum", "eps")
_NO_STATISTICS = ("x", "weight", "bias", "training", "momentum", "eps")
_EVALUATED = ("x", "weight", "bias", "mean", "var", "momentum", "eps")


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converters of batch norms in decomposed programs, for ``custom_convert_map``."""

    def reading(names: Sequence[str], convert: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        def called(node: Any, importer: Any) -> Any:
            call = dict(zip(names, map(importer._retrieve_args, node.args)))
            return _in_float32(importer.block_builder.emit, call, convert)

        return called

    return {
        "_native_batch_norm_legit_functional.default": reading(_BATCH, _by_batch),
        "_native_batch_norm_legit.no_stats": reading(_NO_STATISTICS, _without_statistics),
        "_native_batch_norm_legit_no_training.default": reading(_EVALUATED, _by_statistics),
    }


def _in_float32(emit: Callable[[Any], Any], call: dict[str, Any], convert: Any) -> list[Any]:
    """Convert a batch norm; one of half precision, as autocast has it, is computed in float32."""
    dtype = dtype_name(type_of(call["x"]).dtype)
    if dtype not in ("float16", "bfloat16"):
        return convert(emit, **call)
    call["x"] = emit(R.op.astype(call["x"], "float32"))
    y, *statistics = convert(emit, **call)
    return [emit(R.op.astype(y, dtype)), *statistics]


def _without_statistics(emit: Callable[[Any], Any], **call: Any) -> list[Any]:
    return _by_batch(emit, mean=None, var=None, **call)


def _by_batch(emit: Callable[[Any], Any], **call: Any) -> list[Any]:
    """Return y, the statistics of the batch (twice) and new running statistics.

    A list: for a ``relax.Tuple``, ``Gradient`` sends zeros of full size through the statistics.
    """
    if not call["training"]:
        return _by_statistics(emit, **call)
    x = call["x"]
    shape, dtype = known_shape(type_of(x).shape), dtype_name(type_of(x).dtype)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    count = prod(shape[axis] for axis in axes)
    share = R.const(1.0 / count, dtype)
    mean = emit(R.op.multiply(_total(emit, x, axes), share))
    centered = emit(R.op.subtract(x, mean))
    squares = _total(emit, emit(R.op.multiply(centered, centered)), axes)
    var = emit(R.op.multiply(squares, share))
    y = _normalized(emit, centered, var, call)
    flat_mean = emit(R.op.reshape(mean, [shape[1]]))
    if call["mean"] is None:
        return [y, flat_mean, flat_mean]
    momentum = call["momentum"]
    keep, take = R.const(1 - momentum, dtype), R.const(momentum, dtype)
    # As PyTorch: the running variance is of samples, unbiased; the normalization's is biased.
    unbiased = emit(R.op.multiply(R.op.reshape(var, [shape[1]]), _unbiasing(count, dtype)))
    new_mean = emit(R.op.add(R.op.multiply(call["mean"], keep), R.op.multiply(flat_mean, take)))
    new_var = emit(R.op.add(R.op.multiply(call["var"], keep), R.op.multiply(unbiased, take)))
    return [y, flat_mean, flat_mean, new_mean, new_var]


def _by_statistics(emit: Callable[[Any], Any], **call: Any) -> list[Any]:
    """Return y by the running statistics, which stay."""
    mean = _column(call["x"], call["mean"])
    centered = emit(R.op.subtract(call["x"], mean))
    y = _normalized(emit, centered, _column(call["x"], call["var"]), call)
    return [y, call["mean"], call["var"], call["mean"], call["var"]]


def _normalized(emit: Callable[[Any], Any], centered: Any, var: Any, call: dict[str, Any]) -> Any:
    """Return centered / sqrt(var + eps) * weight + bias."""
    dtype = dtype_name(type_of(centered).dtype)
    deviation = emit(R.op.sqrt(R.op.add(var, R.const(call["eps"], dtype))))
    scale = emit(R.op.divide(R.const(1.0, dtype), deviation))
    if call["weight"] is not None:
        scale = emit(R.op.multiply(scale, _column(centered, call["weight"])))
    y = emit(R.op.multiply(centered, scale))
    return y if call["bias"] is None else emit(R.op.add(y, _column(centered, call["bias"])))


def _total(emit: Callable[[Any], Any], x: Any, axes: Sequence[int]) -> Any:
    """Return the sum over `axes`, kept; rows first, so that the sum runs over vectors."""
    last = len(known_shape(type_of(x).shape)) - 1
    if last in axes and len(axes) > 1:
        x, axes = emit(R.op.sum(x, [a for a in axes if a != last], keepdims=True)), [last]
    return emit(R.op.sum(x, list(axes), keepdims=True))


def _column(x: Any, tensor: Any) -> Any:
    """Return a tensor of one value per channel in the rank of `x`."""
    rank = len(known_shape(type_of(x).shape))
    return R.op.reshape(tensor, [1, -1] + [1] * (rank - 2))


def _unbiasing(count: int, dtype: str) -> Any:
    return R.const(count / max(count - 1, 1), dtype)
