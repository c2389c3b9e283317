# SPDX-License-Identifier: Apache-2.0
"""PyTorch: batch normalization by the statistics that its call states.

TVM imports ``aten.batch_norm``, which exported programs have before they are decomposed, and
traced BatchNorm2d as if every model trained: by the statistics of the batch, silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from topi_ext.compat import dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

R = relax()

_ATEN = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_NO_TRAINING = tuple(name for name in _ATEN if name != "training")
_FUNCTION = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "training",
    "momentum",
    "eps",
)
_DEFAULTS = {"training": False, "momentum": 0.1, "eps": 1e-5}


@dataclass(frozen=True)
class _Call:
    """One call; the tensors but the first may be None."""

    x: Any
    weight: Any
    bias: Any
    mean: Any
    var: Any
    training: bool
    momentum: float | None
    eps: float


def exported(importer: Any) -> dict[str, Callable[[Any], Any]]:
    """Converters of calls in exported programs."""
    return {
        "batch_norm.default": partial(_called, importer, _ATEN),
        # Of three results; TVM's importer knows this one by the first alone.
        "_native_batch_norm_legit_no_training.default": partial(_called, importer, _NO_TRAINING),
        "_native_batch_norm_legit_functional.default": partial(_called, importer, _ATEN),
    }


def traced(importer: Any) -> dict[Any, Callable[[Any], Any]]:
    """Converters of functions and modules in traced graphs."""
    from torch import nn

    modules = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return {
        "batch_norm": partial(_called, importer, _FUNCTION),
        **{kind: partial(_module, importer) for kind in modules},
    }


def _called(importer: Any, names: Sequence[str], node: Any) -> Any:
    given = {**_DEFAULTS, **dict(zip(names, node.args)), **node.kwargs}
    values: Iterator[Any] = (importer._retrieve_args(given.get(name)) for name in _ATEN)
    return _emit(importer, _Call(*values))


def _module(importer: Any, node: Any) -> Any:
    module = importer.named_modules[node.target]
    x = importer._retrieve_args(node.args[0] if node.args else node.kwargs["input"])
    weight, bias = (
        None if parameter is None else importer.params[parameter]
        for parameter in (module.weight, module.bias)
    )
    mean, var = (
        None if buffer is None else importer._convert_torch_tensor_to_relax(buffer)
        for buffer in (module.running_mean, module.running_var)
    )
    # Without statistics to go by, evaluation too takes those of the batch.
    training = module.training or module.running_mean is None
    return _emit(importer, _Call(x, weight, bias, mean, var, training, module.momentum, module.eps))


def _emit(importer: Any, call: _Call) -> Any:
    emit = importer.block_builder.emit
    if call.training and call.mean is not None:
        raise fail(
            "batch_norm",
            "training=True would update running statistics, which are not imported: "
            "call eval() on the model before exporting it",
        )
    channels = known_shape(type_of(call.x).shape)[1]
    if not isinstance(channels, int):
        raise fail("batch_norm", f"channels={channels} must be known at import")
    if not call.training and (call.mean is None or call.var is None):
        raise fail("batch_norm", "training=False needs running_mean and running_var")
    stated = dtype_name(type_of(call.x).dtype)
    others = [t for t in (call.weight, call.bias, call.mean, call.var) if t is not None]
    # Under autocast the data is narrower than what is learned.
    dtype = dtype_name(type_of(others[0]).dtype) if others else stated
    x = call.x if dtype == stated else emit(R.op.astype(call.x, dtype))

    def filled(tensor: Any, value: float) -> Any:
        return R.const(np.full(channels, value), dtype) if tensor is None else tensor

    normed = R.op.nn.batch_norm(
        x,
        filled(call.weight, 1),
        filled(call.bias, 0),
        filled(call.mean, 0),
        filled(call.var, 1),
        axis=1,
        epsilon=call.eps,
        momentum=0.1 if call.momentum is None else call.momentum,
        training=bool(call.training),
    )
    result = emit(R.TupleGetItem(emit(normed), 0))
    return result if dtype == stated else emit(R.op.astype(result, stated))
