# SPDX-License-Identifier: Apache-2.0
"""PyTorch: functions and modules of traced graphs whose arguments TVM's converters drop.

For torch.fx, whose nodes state neither schemas nor types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from topi_ext.compat import known_shape, relax, type_of
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

_ATTENTION = {
    **dict.fromkeys(("query", "key", "value", "attn_mask")),
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
_INTERPOLATE = {
    **dict.fromkeys(("input", "size", "scale_factor")),
    "mode": "nearest",
    "align_corners": None,
    "recompute_scale_factor": None,
    "antialias": False,
}
_NORM = {"self": None, "p": "fro", "dim": None, "keepdim": False, "dtype": None}

_SEVERAL = ("chunk", "max", "median", "meshgrid", "min", "sort", "split", "topk", "unbind")
"""Functions of several results."""

_SPELLINGS = {"input": "self"}
"""Keywords of functions that schemas spell otherwise."""


def converters(importer: Any, stock: Mapping[Any, Any]) -> dict[Any, Callable[[Any], Any]]:
    """Return converters of functions by name, and of modules by class."""
    from torch import nn

    from ..aten import traced

    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    return {
        **{name: partial(_function, importer, *row) for name, row in _FUNCTIONS.items()},
        **{name: partial(_sum, importer, stock[name]) for name in ("add", "sub", "rsub")},
        **{name: partial(_spread, importer) for name in ("std", "var")},
        "norm": partial(_norm, importer),
        "getitem": partial(_items, importer, stock["getitem"]),
        "scaled_dot_product_attention": partial(_whole, importer, traced.attended, _ATTENTION),
        "interpolate": partial(_whole, importer, traced.interpolated, _INTERPOLATE),
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


def _whole(
    importer: Any, convert: Callable[..., Any], parameters: Mapping[str, Any], node: Any
) -> Any:
    return convert(importer, _given(importer, node, parameters))


def _spread(importer: Any, node: Any) -> Any:
    """Return a variance or standard deviation: ``(x, unbiased)`` or ``(x, dim, unbiased)``."""
    name = node.target if isinstance(node.target, str) else node.target.__name__
    flags = node.args[1:]
    names = ["unbiased"] if flags and isinstance(flags[0], bool) else ["dim", "unbiased", "keepdim"]
    given = _given(importer, node, dict.fromkeys(["self", *names]))
    correction = given.get("correction", given.get("unbiased"))
    return _convert(
        importer,
        f"{name}.correction",
        self=given["self"],
        dim=given.get("dim"),
        correction=1 if correction is None else int(correction),
        keepdim=bool(given.get("keepdim")),
    )


def _norm(importer: Any, node: Any) -> Any:
    """Return a norm of vectors along axes, all of them if none is stated."""
    given = _given(importer, node, _NORM)
    order, dtype = given["p"], given["dtype"]
    order = 2 if order in (None, "fro") else order
    if not isinstance(order, (int, float)) or dtype is not None:
        raise fail("norm", f"p={given['p']!r} with dtype={dtype} is not known")
    emit, x = importer.block_builder.emit, given["self"]
    stated = torch_arithmetic.dtype_of(x)
    wide = "float32" if stated in ("float16", "bfloat16") else stated
    sizes = emit(R.op.abs(torch_arithmetic.as_dtype(emit, x, wide)))

    def reduced(reduce: Callable[..., Any], terms: Any) -> Any:
        return emit(reduce(terms, given["dim"], keepdims=given["keepdim"]))

    if abs(order) == math.inf:
        result = reduced(R.op.max if order > 0 else R.op.min, sizes)
    elif order == 0:
        is_set = emit(R.op.not_equal(sizes, R.const(0, wide)))
        result = reduced(R.op.sum, emit(R.op.astype(is_set, wide)))
    elif order == 1:
        result = reduced(R.op.sum, sizes)
    elif order == 2:
        result = emit(R.op.sqrt(reduced(R.op.sum, emit(R.op.multiply(sizes, sizes)))))
    else:
        total = reduced(R.op.sum, emit(R.op.power(sizes, R.const(order, wide))))
        result = emit(R.op.power(total, R.const(1 / order, wide)))
    return torch_arithmetic.as_dtype(emit, result, stated)


def _items(importer: Any, stock: Callable[[Any], Any], node: Any) -> Any:
    """Return elements of a tensor by numbers, which take their axes away, then by TVM's converter.

    TVM's own keeps those axes, and has no element for -1.
    """
    x, source = importer._retrieve_args(node.args[0]), node.args[0]
    items = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    sizes = known_shape(type_of(x).shape) if _is_tensor(x) else None
    if sizes is None or not any(type(item) is int for item in items) or _is_several(source):
        return stock(node)
    missing = len(sizes) - sum(item is not None and item is not Ellipsis for item in items)
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    rest: list[Any] = []
    for item in (*items[:at], *[slice(None)] * missing, *items[at + 1 :]):
        if type(item) is int:
            axis = sum(kept is not None for kept in rest)
            x = importer.block_builder.emit(R.op.take(x, R.const(item, "int64"), axis, mode="wrap"))
        else:
            rest.append(item)
    if all(item == slice(None) for item in rest):
        return x
    place = object()
    importer.env[place] = x
    return stock(SimpleNamespace(args=(place, tuple(rest))))


def _is_tensor(x: Any) -> bool:
    return isinstance(x, R.Expr) and hasattr(type_of(x), "dtype") and hasattr(type_of(x), "shape")


def _is_several(source: Any) -> bool:
    """Return whether a function gives several results, of which TVM's converter may give one."""
    name = source.target if isinstance(source.target, str) else source.target.__name__
    return source.op in ("call_function", "call_method") and name in _SEVERAL


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
