# SPDX-License-Identifier: Apache-2.0
"""TVM's converters of exported programs, for operators without a row.

They read some of the arguments of a schema and ignore the others, silently; take a number as one of
the tensor's dtype; and may give the first of several results alone.  So a call is compared with
what its converter reads, its operand is widened first, and its result is compared with the shape
and dtype that the program states.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from topi_ext.compat import dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

from .calls import torch_dtype_name

R = relax()

RANDOM = frozenset(
    (
        *("bernoulli", "exponential", "geometric", "log_normal", "multinomial", "normal"),
        *("poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
        *("randperm", "uniform"),
    )
)

_WITHOUT_EFFECT = frozenset(
    (
        # Where and how a tensor is stored.
        *("copy", "device", "layout", "memory_format", "non_blocking", "pin_memory"),
        # How fast a result is computed, and its gradient.
        *("assume_unique", "cudnn_enable", "cudnn_enabled", "implicit", "path", "padding_idx"),
        *("scale_grad_by_freq", "sparse", "sparse_grad", "sorted"),
        # The promotion of operands and the check of results see to it.
        "dtype",
    )
)

_WRONG = frozenset(
    (
        *("add", "sub", "mul", "div", "pow", "remainder", "eq", "ne", "lt", "le", "gt", "ge"),
        *("addmm", "any", "bmm", "clamp", "convolution", "cumsum", "elu", "mm", "select", "var"),
        *("var_mean", "native_group_norm", "native_layer_norm", "upsample_nearest2d"),
        *("upsample_bilinear2d", "upsample_bicubic2d", "_native_batch_norm_legit_functional"),
        *("_native_batch_norm_legit_no_training",),
    )
)
"""Operators that TVM computes otherwise than PyTorch, silently: they have rows alone."""

_POOL = "stride padding ceil_mode"
_SLICE = "dim start end step"

_READ = {
    "arange": "step",
    "argmax": "dim keepdim",
    "argmin": "dim keepdim",
    "argsort": "dim descending",
    "as_strided": "storage_offset",
    **{f"avg_pool{rank}d": f"{_POOL} count_include_pad" for rank in (2, 3)},
    "bucketize": "out_int32 right",
    "cat": "dim",
    "concat": "dim",
    "diagonal": "offset dim1 dim2",
    "flatten": "start_dim end_dim",
    "gelu": "approximate",
    "hardtanh": "min_val max_val",
    "leaky_relu": "negative_slope",
    "linalg_vector_norm": "ord dim keepdim",
    "max": "keepdim",
    **{f"max_pool{rank}d_with_indices": f"{_POOL} dilation" for rank in (2, 3)},
    "mean": "dim keepdim",
    "median": "keepdim",
    "one_hot": "num_classes",
    "roll": "dims",
    "round": "decimals",
    "slice": _SLICE,
    "slice_scatter": _SLICE,
    "_sparse_addmm": "alpha beta",
    "softplus": "beta threshold",
    "softshrink": "lambd",
    "sort": "dim descending",
    "split": "dim",
    "split_with_sizes": "dim",
    "stack": "dim",
    "sum": "dim keepdim",
    "topk": "dim largest",
    "tril": "diagonal",
    "triu": "diagonal",
    "unbind": "dim",
}
"""Arguments with defaults that TVM's converters read, by operator; of others, none."""

_ALL_RESULTS = frozenset(("max", "median", "rnn_tanh", "sort", "topk"))
"""Operators whose converters give more than the first of several results."""


_FILLED = re.compile(r"(zeros|ones|full|empty|new|to|fill|copy|lift|type)(_|$)")
"""Operators whose results are copies or constants: TVM's converters ignore their dtype."""

_OPERANDS = ("self", "input")
"""Names that schemas give to what an operator computes from, if that is their first argument."""


def converters(
    importer: Any, stock: Mapping[Any, Callable[[Any], Any]], replaced: Collection[str]
) -> dict[Any, Callable[[Any], Any]]:
    """Return TVM's converters by the name of an operator, without those that are replaced."""
    return {
        name: partial(_guarded, importer, convert)
        for name, convert in stock.items()
        if name not in replaced and not ("." in str(name) and _stem(str(name)) in _WRONG)
    }


def _guarded(importer: Any, convert: Callable[[Any], Any], node: Any) -> Any:
    """Convert a call of which nothing is lost, to a result of the stated type."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return _as_stated(importer, node, convert(node))
    name = operator_name(node)
    if schema.returns:
        _refuse_random(node, name, schema)
        _refuse_lost(node, name, schema)
    result = _widened(importer, convert, node, schema)
    if name not in _ALL_RESULTS:
        for index in filter(None, used_results(node)):
            rule = "must not be used: the importer gives result 0 only"
            raise fail(name, f"result {index} {rule}")
    return _as_stated(importer, node, result)


def used_results(node: Any) -> list[int]:
    """Return the indices of the results of a call that others read."""
    if len(node.target._schema.returns) < 2:
        return []
    taken = (user for user in node.users if user.target is operator.getitem and user.users)
    return sorted({user.args[1] for user in taken})


def operator_name(node: Any) -> str:
    """Return the name of an operator without its overload and the mark of an in-place form."""
    return _stem(str(node.target.__name__))


def _stem(name: str) -> str:
    name = name.partition(".")[0]
    return name if name.startswith("__") else name.removesuffix("_")


def _refuse_random(node: Any, name: str, schema: Any) -> None:
    if name in RANDOM:
        rule = "random numbers are not imported: call eval() on the model before exporting it"
        raise fail(name, rule)
    given = dict(zip((argument.name for argument in schema.arguments), node.args))
    if name in ("dropout", "native_dropout") and given.get("train", True) and given["p"]:
        rule = "train=True must be False: call eval() on the model before exporting it"
        raise fail(name, rule)


def _refuse_lost(node: Any, name: str, schema: Any) -> None:
    """Raise for a call of which TVM's converter would ignore an argument."""
    for argument, value in _stated(node, schema):
        if not _is_default(argument, value) and argument.name not in _READ.get(name, "").split():
            rule = f"{argument.name}={value} must be left out: TVM's importer ignores it"
            raise fail(name, rule)


def _stated(node: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments with defaults that matter, each with the value that the call has."""
    given = dict(zip((argument.name for argument in schema.arguments), node.args)) | node.kwargs
    for argument in schema.arguments:
        matters = argument.has_default_value() and argument.name not in _WITHOUT_EFFECT
        if matters and argument.name in given:
            yield argument, given[argument.name]


def _is_default(argument: Any, value: Any) -> bool:
    default = argument.default_value
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    return type(value).__module__ == "builtins" and value == default


# ---------------------------------------------------------------- dtypes and shapes


def _widened(importer: Any, convert: Callable[[Any], Any], node: Any, schema: Any) -> Any:
    """Convert a call whose first operand is first widened to the dtype of the result.

    So PyTorch computes functions of integers, and what is asked for another dtype.
    """
    first = schema.arguments[:1] if schema.name.startswith("aten::") else []
    operand = node.args[0] if node.args and any(a.name in _OPERANDS for a in first) else None
    given, result = (getattr(one, "meta", {}).get("val") for one in (operand, node))
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
        return convert(node)
    wanted = result.dtype
    if given.dtype is wanted or torch.promote_types(given.dtype, wanted) is not wanted:
        return convert(node)
    before = importer.env[operand]
    wide = importer.block_builder.emit(R.op.astype(before, torch_dtype_name(wanted)))
    importer.env[operand] = wide
    try:
        return convert(node)
    finally:
        importer.env[operand] = before  # others read it as it is


def _as_stated(importer: Any, node: Any, result: Any) -> Any:
    """Return the result of a converter in the dtype that the program states.

    Raises
    ------
    ValueError
        Where the shape differs, or where a cast would not give PyTorch's values.
    """
    if isinstance(result, R.Call):
        result = importer.block_builder.emit(result)  # some of TVM's converters leave that out
    stated = node.meta.get("val") if node.users and isinstance(result, R.Expr) else None
    found: Any = type_of(result) if isinstance(result, R.Expr) else None
    if isinstance(stated, (list, tuple)) and not _is_tensor_type(found):
        _check_several(node, list(getattr(found, "fields", ())), stated)
        return result
    stated = stated[0] if isinstance(stated, (list, tuple)) else stated  # the first result alone
    if not isinstance(stated, torch.Tensor) or not _is_tensor_type(found):
        return result
    _check_shape(node, found, stated)
    if dtype_name(found.dtype) in (torch_dtype_name(stated.dtype), ""):
        return result
    if not _casts(node, found, stated):
        raise _other_dtype(node, found, stated)
    return importer.block_builder.emit(R.op.astype(result, torch_dtype_name(stated.dtype)))


def _check_several(node: Any, fields: list[Any], stated: Any) -> None:
    """Compare the results that are read."""
    is_list = hasattr(node.target, "_schema") and len(node.target._schema.returns) == 1
    if is_list and len(fields) != len(stated):
        rule = f"must be {len(stated)}, as PyTorch states"
        raise fail(operator_name(node), f"{len(fields)} results {rule}")
    used = range(len(stated)) if is_list else used_results(node)
    for index, (field, value) in enumerate(zip(fields, stated)):
        if index in used and isinstance(value, torch.Tensor) and _is_tensor_type(field):
            _check_shape(node, field, value)
            if dtype_name(field.dtype) != torch_dtype_name(value.dtype):
                raise _other_dtype(node, field, value)


def _casts(node: Any, found: Any, stated: Any) -> bool:
    """Return whether a cast of the result gives the values that PyTorch has."""
    if _FILLED.match(node.target.__name__.lstrip("_").partition(".")[0]):
        return True
    got, want = getattr(torch, dtype_name(found.dtype)), stated.dtype
    if got.is_floating_point and want.is_floating_point:
        return got.itemsize > want.itemsize  # one rounding more
    return not (got.is_floating_point or want.is_floating_point or want is torch.bool)


def _check_shape(node: Any, found: Any, stated: Any) -> None:
    if found.shape is None:
        return
    shape, wanted = known_shape(found.shape), tuple(stated.shape)
    pairs = [(a, b) for a, b in zip(shape, wanted) if isinstance(a, int) and type(b) is int]
    if len(shape) != len(wanted) or any(a != b for a, b in pairs):
        sizes = "must have the shape that PyTorch states"
        raise fail(operator_name(node), f"result of shape {tuple(shape)} {sizes}, {wanted}")


def _other_dtype(node: Any, found: Any, stated: Any) -> ValueError:
    rule = f"must have the dtype that PyTorch states, {torch_dtype_name(stated.dtype)}"
    return fail(operator_name(node), f"result of {dtype_name(found.dtype)} {rule}")


def _is_tensor_type(found: Any) -> bool:
    return hasattr(found, "dtype") and hasattr(found, "shape") and hasattr(found, "ndim")
