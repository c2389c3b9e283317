# SPDX-License-Identifier: Apache-2.0
"""PyTorch: arguments and results of exported operators that TVM's converters leave out.

Each operator of an exported program has a schema: its arguments with their defaults, and its
results.  TVM's converters read some of the arguments and ignore the others, silently.
:func:`refuse_lost` compares a call with what the converter reads, and refuses what would be lost.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from topi_ext.spec.geometry import fail

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

_POOL = "stride padding ceil_mode"
_SLICE = "dim start end step"

_READ = {
    "add": "",
    "any": "dim keepdim",
    "arange": "step",
    "argmax": "dim keepdim",
    "argmin": "dim keepdim",
    "argsort": "dim descending",
    "as_strided": "storage_offset",
    **{f"avg_pool{rank}d": f"{_POOL} count_include_pad" for rank in (1, 2, 3)},
    "bucketize": "out_int32 right",
    "cat": "dim",
    "chunk": "dim",
    "concat": "dim",
    "cross_entropy_loss": "weight",
    "diagonal": "offset dim1 dim2",
    "flatten": "start_dim end_dim",
    "gelu": "approximate",
    "group_norm": "weight bias eps",
    "hardtanh": "min_val max_val",
    "index_put": "accumulate",
    "layer_norm": "weight bias eps",
    "leaky_relu": "negative_slope",
    "linalg_vector_norm": "ord dim keepdim",
    "max": "keepdim",
    **{f"max_pool{rank}d": f"{_POOL} dilation" for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": f"{_POOL} dilation" for rank in (2, 3)},
    "mean": "dim keepdim",
    "median": "keepdim",
    "one_hot": "num_classes",
    "pad": "mode value",
    "roll": "dims",
    "round": "decimals",
    "scaled_dot_product_attention": "attn_mask dropout_p is_causal",
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
    "var": "dim correction keepdim",
}
"""Arguments with defaults that TVM's converters read, by operator; of others, none."""

_ALL_RESULTS = frozenset(("max", "median", "rnn_tanh", "sort", "topk", "var_mean"))
"""Operators whose converters give more than the first of several results."""


def refuse_lost(node: Any, is_ours: bool) -> None:
    """Raise for a call of which an argument would be lost, or whose result is random.

    Parameters
    ----------
    node : torch.fx.Node
        The call.
    is_ours : bool
        Whether a converter of this package reads it, which reads all arguments.

    Raises
    ------
    ValueError
        One line with the operator and the argument.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns:
        return
    name = operator_name(node)
    _refuse_random(node, name, schema)
    if is_ours:
        return
    for argument, value in _stated(node, schema):
        if not _is_default(argument, value) and argument.name not in _READ.get(name, "").split():
            rule = f"{argument.name}={value} must be left out: TVM's importer ignores it"
            raise fail(name, rule)


def refuse_lost_results(node: Any) -> None:
    """Raise if another node reads a result that the converter does not compute."""
    if hasattr(node.target, "_schema") and operator_name(node) not in _ALL_RESULTS:
        for index in used_results(node):
            if index:
                rule = "must not be used: the importer gives result 0 only"
                raise fail(operator_name(node), f"result {index} {rule}")


def arguments(importer: Any, node: Any) -> SimpleNamespace:
    """Return the arguments of a call by their names, converted; defaults where it has none."""
    schema = node.target._schema
    given = dict(zip((argument.name for argument in schema.arguments), node.args)) | node.kwargs
    return SimpleNamespace(
        **{
            argument.name: importer._retrieve_args(given.get(argument.name, argument.default_value))
            for argument in schema.arguments
        }
    )


def used_results(node: Any) -> list[int]:
    """Return the indices of the results of a call that others read."""
    if len(node.target._schema.returns) < 2:
        return []
    taken = (user for user in node.users if user.target is operator.getitem and user.users)
    return sorted({user.args[1] for user in taken})


def torch_dtype_name(dtype: Any) -> str:
    """Return the name that TVM has for a dtype of PyTorch."""
    return str(dtype).removeprefix("torch.")


def operator_name(node: Any) -> str:
    """Return the name of an operator without its overload and the mark of an in-place form."""
    name = str(node.target.__name__).partition(".")[0]
    return name if name.startswith("__") else name.removesuffix("_")


def _refuse_random(node: Any, name: str, schema: Any) -> None:
    if name in RANDOM:
        rule = "random numbers are not imported: call eval() on the model before exporting it"
        raise fail(name, rule)
    given = dict(zip((argument.name for argument in schema.arguments), node.args))
    if name in ("dropout", "native_dropout") and given.get("train", True) and given["p"]:
        rule = "train=True must be False: call eval() on the model before exporting it"
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
