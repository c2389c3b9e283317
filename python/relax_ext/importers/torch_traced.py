# SPDX-License-Identifier: Apache-2.0
"""PyTorch: functions and modules of traced graphs whose arguments TVM's converters drop.

For torch.fx, whose nodes state neither schemas nor types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from topi_ext.compat import relax
from topi_ext.spec.geometry import fail

from . import torch_arithmetic

R = relax()

_EXPORTED = torch_arithmetic.converters()

_FUNCTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "addmm": ("addmm.default", {"self": None, "mat1": None, "mat2": None, "beta": 1, "alpha": 1}),
    "baddbmm": (
        "baddbmm.default",
        {"self": None, "batch1": None, "batch2": None, "beta": 1, "alpha": 1},
    ),
    "bmm": ("bmm.default", {"self": None, "mat2": None}),
    "celu": ("celu.default", {"self": None, "alpha": 1.0}),
    "clamp": ("clamp.default", {"self": None, "min": None, "max": None}),
    "linear": ("linear.default", {"input": None, "weight": None, "bias": None}),
    "matmul": ("matmul.default", {"self": None, "other": None}),
}
"""Converters of exported operators, and the parameters of the function, in order."""

_SPELLINGS = {"input": "self"}
"""Keywords of functions that schemas spell otherwise."""


def converters(importer: Any, stock: Mapping[Any, Any]) -> dict[Any, Callable[[Any], Any]]:
    """Return converters of functions by name, and of modules by class."""
    from torch import nn

    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    return {
        **{name: partial(_function, importer, *row) for name, row in _FUNCTIONS.items()},
        **{name: partial(_sum, importer, stock[name]) for name in ("add", "sub", "rsub")},
        "dropout": partial(_dropout, importer),
        **{kind: partial(_dropout_module, importer) for kind in dropouts},
        nn.CELU: partial(_module, importer, "celu.default", lambda m: {"alpha": m.alpha}),
        nn.ELU: partial(
            _module,
            importer,
            "elu.default",
            lambda m: {"alpha": m.alpha, "scale": 1, "input_scale": 1},
        ),
        nn.Hardtanh: partial(
            _module, importer, "clamp.default", lambda m: {"min": m.min_val, "max": m.max_val}
        ),
        nn.GELU: partial(_gelu_module, importer),
        nn.Linear: partial(_linear_module, importer),
    }


def _convert(importer: Any, name: str, **arguments: Any) -> Any:
    return _EXPORTED[name](importer.block_builder.emit, SimpleNamespace(**arguments))


def _given(importer: Any, node: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of parameters."""
    stated = {
        name if name in parameters else _SPELLINGS.get(name, name): value
        for name, value in node.kwargs.items()
    }
    given = {**parameters, **dict(zip(parameters, node.args)), **stated}
    return {name: importer._retrieve_args(value) for name, value in given.items()}


def _function(importer: Any, name: str, parameters: Mapping[str, Any], node: Any) -> Any:
    return _convert(importer, name, **_given(importer, node, parameters))


def _module(importer: Any, name: str, attributes: Callable[[Any], Any], node: Any) -> Any:
    x = importer._retrieve_args(node.args[0])
    return _convert(importer, name, self=x, **attributes(importer.named_modules[node.target]))


def _gelu_module(importer: Any, node: Any) -> Any:
    x = importer._retrieve_args(node.args[0])
    is_exact = importer.named_modules[node.target].approximate == "none"
    return importer.block_builder.emit((R.op.nn.gelu if is_exact else R.op.nn.gelu_tanh)(x))


def _linear_module(importer: Any, node: Any) -> Any:
    module = importer.named_modules[node.target]
    bias = None if module.bias is None else importer.params[module.bias]
    x = importer._retrieve_args(node.args[0])
    return _convert(
        importer, "linear.default", input=x, weight=importer.params[module.weight], bias=bias
    )


def _sum(importer: Any, stock: Callable[[Any], Any], node: Any) -> Any:
    """Return a sum or difference with ``alpha``."""
    given = _given(importer, node, {"self": None, "other": None, "alpha": 1})
    if given["alpha"] == 1:
        return stock(node)
    name = node.target if isinstance(node.target, str) else node.target.__name__
    x, y = given["self"], given["other"]
    x, y = (y, x) if name == "rsub" else (x, y)
    dtype = torch_arithmetic.dtype_of(x if isinstance(x, R.Expr) else y)
    x, y = (one if isinstance(one, R.Expr) else R.const(one, dtype) for one in (x, y))
    emit = importer.block_builder.emit
    scaled = emit(R.op.multiply(y, R.const(given["alpha"], dtype)))
    return emit((R.op.add if name == "add" else R.op.subtract)(x, scaled))


def _dropout(importer: Any, node: Any) -> Any:
    given = _given(importer, node, {"self": None, "p": 0.5, "training": True})
    _refuse_training(given["training"] and given["p"])
    return given["self"]


def _dropout_module(importer: Any, node: Any) -> Any:
    module = importer.named_modules[node.target]
    _refuse_training(module.training and module.p)
    return importer._retrieve_args(node.args[0])


def _refuse_training(is_random: Any) -> None:
    if is_random:
        rule = "training=True must be False: call eval() on the model before tracing it"
        raise fail("dropout", rule)
