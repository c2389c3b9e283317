# SPDX-License-Identifier: Apache-2.0
"""Losses of classes, in exported programs that are not decomposed."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from topi_ext.compat import relax

from ..ir import dtype_of, sizes_of
from .calls import Call, Converter, wide

R = relax()

_MEAN = 1
_SUM = 2
"""Numbers of reductions."""


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {"cross_entropy_loss.default": _cross_entropy}


def _cross_entropy(call: Call) -> Any:
    """Return the loss of scores; the targets are classes, or the probability of each class."""
    dtype, smoothing = call.dtype(), call["label_smoothing"]
    x, axis = call.cast(call["self"], wide(dtype)), min(1, len(call.shape("self")) - 1)
    logs = call.emit(R.op.nn.log_softmax(x, axis))
    (classes,) = call.numbers([call.shape("self")[axis]])
    if "float" in call.dtype("target"):
        target = call.cast(call["target"], wide(dtype))
        if smoothing:
            target = _times(call, target, 1 - smoothing)
            target = call.emit(R.op.add(target, R.const(smoothing / classes, wide(dtype))))
        losses = _weighted(call, call.emit(R.op.multiply(logs, target)), axis)
        losses = call.emit(R.op.negative(call.emit(R.op.sum(losses, [axis]))))
        count = call.tensor(prod(sizes_of(losses)), wide(dtype))
        return call.cast(_reduced(call, losses, count), dtype)
    loss, count, is_read = _of_classes(call, logs, axis)
    if smoothing:
        everywhere = call.emit(
            R.op.negative(call.emit(R.op.sum(_weighted(call, logs, axis), [axis])))
        )
        everywhere = call.emit(R.op.where(is_read, everywhere, R.const(0, wide(dtype))))
        other = _times(call, _reduced(call, everywhere, count), smoothing / classes)
        loss = call.emit(R.op.add(_times(call, loss, 1 - smoothing), other))
    return call.cast(loss, dtype)


def _of_classes(call: Call, logs: Any, axis: int) -> tuple[Any, Any, Any]:
    """Return the loss, the sum of the weights, and which targets are not ignored.

    A class is found by comparing, so that no element is read that does not exist.
    """
    (classes,) = call.numbers([sizes_of(logs)[axis]])
    target = call["target"]
    is_read = call.emit(R.op.not_equal(target, R.const(call["ignore_index"], call.dtype("target"))))
    shape = [-1] + [1] * (len(sizes_of(logs)) - axis - 1)
    numbers = R.const(np.arange(classes).reshape(shape), call.dtype("target"))
    is_class = call.emit(R.op.equal(call.emit(R.op.expand_dims(target, axis)), numbers))
    is_class = call.emit(R.op.logical_and(is_class, call.emit(R.op.expand_dims(is_read, axis))))
    zero = R.const(0, dtype_of(logs))

    def chosen(x: Any) -> Any:
        return call.emit(R.op.sum(call.emit(R.op.where(is_class, x, zero)), [axis]))

    ones = call.emit(R.op.ones_like(logs))
    count = call.emit(R.op.sum(chosen(_weighted(call, ones, axis))))
    losses = call.emit(R.op.negative(chosen(_weighted(call, logs, axis))))
    return _reduced(call, losses, count), count, is_read


def _weighted(call: Call, x: Any, axis: int) -> Any:
    """Return a tensor times the weight of each class."""
    if call["weight"] is None:
        return x
    weight = call.cast(call["weight"], dtype_of(x))
    shape = [-1] + [1] * (len(sizes_of(x)) - axis - 1)
    return call.emit(R.op.multiply(x, call.emit(R.op.reshape(weight, shape))))


def _reduced(call: Call, losses: Any, count: Any) -> Any:
    if call["reduction"] not in (_MEAN, _SUM):
        return losses
    total = call.emit(R.op.sum(losses))
    return call.emit(R.op.divide(total, count)) if call["reduction"] == _MEAN else total


def _times(call: Call, x: Any, factor: float) -> Any:
    return call.emit(R.op.multiply(x, R.const(factor, dtype_of(x))))
