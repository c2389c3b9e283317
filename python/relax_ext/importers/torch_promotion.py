# SPDX-License-Identifier: Apache-2.0
"""PyTorch: arithmetic in the dtype that PyTorch promotes its operands to, for exported programs.

TVM takes a number as one of the tensor's dtype: ``image / 255.`` of bytes divides by 255 in bytes,
silently.  That stands before the first convolution of many models.

Source of the rule: PyTorch's *Tensor Attributes*, type promotion; a node of an exported program
states the dtype of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from topi_ext.compat import relax

from .torch_arguments import arguments, torch_dtype_name

R = relax()

_ARITHMETIC = frozenset(
    (
        "add",
        "add_",
        "sub",
        "rsub",
        "mul",
        "div",
        "floor_divide",
        "remainder",
        "fmod",
        "pow",
        "cumsum",
    )
)
_OPERANDS = ("self", "input")
"""Names that schemas give to what an operator computes from, if that is their first argument."""
_SUMS = frozenset(("add", "add_", "sub", "rsub"))
_OF_TRUTHS = {"add.Tensor": R.op.logical_or, "mul.Tensor": R.op.logical_and}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def promoted(importer: Any, stock: Mapping[Any, Callable[[Any], Any]]) -> dict[Any, Any]:
    """Converters of arithmetic and comparisons that promote operands, then call TVM's."""
    ours = {
        name: partial(_convert, importer, convert)
        for name, convert in stock.items()
        if isinstance(name, str) and name.partition(".")[0] in _ARITHMETIC | _COMPARISONS
    }
    sums = {
        name: partial(_scaled_sum, importer, convert)
        for name, convert in ours.items()
        if name.partition(".")[0] in _SUMS and "." in name
    }
    return {**ours, **sums, "div.Tensor_mode": partial(_rounded_division, importer)}


def widened(importer: Any, convert: Callable[[Any], Any], node: Any) -> Any:
    """Convert a call whose first operand is first widened to the dtype of the result.

    So PyTorch computes functions of integers, and what is asked for another dtype.
    """
    import torch

    schema = getattr(node.target, "_schema", None)
    first = schema.arguments[:1] if schema and schema.name.startswith("aten::") else []
    is_operand = any(argument.name in _OPERANDS for argument in first)
    operands = [operand for operand in node.args[: int(is_operand)] if _is_tensor(operand)]
    result = node.meta.get("val")
    wanted = result.dtype if isinstance(result, torch.Tensor) else None
    return _with_operands(
        importer,
        convert,
        node,
        [operand for operand in operands if wanted is not None and _widens(operand, wanted)],
        wanted,
    )


def _convert(importer: Any, stock: Callable[[Any], Any], node: Any) -> Any:
    truths = _of_truths(importer, node)
    if truths is not None:
        return truths
    wanted = _dtype(node)
    operands = [
        operand for operand in node.args[:2] if wanted is not None and _is_narrower(operand, wanted)
    ]
    return _with_operands(importer, stock, node, operands, wanted)


def _of_truths(importer: Any, node: Any) -> Any:
    """Return a sum or product of truth values, which TVM compiles for no target; None of others."""
    logical = _OF_TRUTHS.get(node.target.__name__)
    values = [getattr(operand, "meta", {}).get("val") for operand in node.args[:2]]
    if logical is None or not all(str(getattr(x, "dtype", "")) == "torch.bool" for x in values):
        return None
    return importer.block_builder.emit(logical(*importer._retrieve_args(node.args[:2])))


def _with_operands(
    importer: Any, convert: Callable[[Any], Any], node: Any, operands: Sequence[Any], wanted: Any
) -> Any:
    """Convert a call with some of its operands in another dtype."""
    before = {operand: importer.env[operand] for operand in operands}
    name = torch_dtype_name(wanted)
    for operand, value in before.items():
        importer.env[operand] = importer.block_builder.emit(R.op.astype(value, name))
    try:
        return convert(node)
    finally:
        importer.env.update(before)  # others read it as it is


def _scaled_sum(importer: Any, stock: Callable[[Any], Any], node: Any) -> Any:
    """``x + alpha * y``, ``x - alpha * y``, ``y - alpha * x``; TVM's own ignores alpha."""
    emit, given = importer.block_builder.emit, arguments(importer, node)
    x, y, alpha = given.self, given.other, given.alpha
    name = node.target.__name__.partition(".")[0]
    if alpha == 1 and not (name == "rsub" and isinstance(y, (int, float))):
        return stock(node)
    dtype = torch_dtype_name(_dtype(node))
    x, y = (
        emit(R.op.astype(one, dtype)) if isinstance(one, R.Expr) else R.const(one, dtype)
        for one in (x, y)
    )
    x, y = (y, x) if name == "rsub" else (x, y)
    if alpha != 1:
        y = emit(R.op.multiply(y, R.const(alpha, dtype)))
    return emit((R.op.add if name.startswith("add") else R.op.subtract)(x, y))


def _rounded_division(importer: Any, node: Any) -> Any:
    """``x // y``, and ``div`` with a rounding mode; TVM's own takes a number in a dtype of its."""
    emit = importer.block_builder.emit
    wanted = _dtype(node)
    name = torch_dtype_name(wanted)
    given = importer._retrieve_args(node.args)
    x, y = (
        emit(R.op.astype(one, name)) if isinstance(one, R.Expr) else R.const(one, name)
        for one in given[:2]
    )
    mode = given[2] if len(given) > 2 else node.kwargs.get("rounding_mode")
    if mode == "floor":
        return emit(R.op.floor_divide(x, y))
    quotient = emit(R.op.divide(x, y))  # of integers: towards zero
    return emit(R.op.trunc(quotient)) if mode and wanted.is_floating_point else quotient


def _dtype(node: Any) -> Any:
    """Return the dtype in which a node calculates, None where it is no node of tensors."""
    import torch

    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor):
        return None
    if result.dtype is not torch.bool:
        return result.dtype
    operands = [getattr(operand, "meta", {}).get("val", operand) for operand in node.args[:2]]
    return torch.result_type(*operands) if len(operands) == 2 else None


def _is_narrower(operand: Any, wanted: Any) -> bool:
    """Return whether an operand is a tensor of integers or truth values of another dtype than
    `wanted`.
    """
    import torch

    value = getattr(operand, "meta", {}).get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return not value.dtype.is_floating_point and value.dtype is not wanted


def _is_tensor(operand: Any) -> bool:
    import torch

    return isinstance(getattr(operand, "meta", {}).get("val"), torch.Tensor)


def _widens(operand: Any, wanted: Any) -> bool:
    """Return whether `wanted` is another dtype, which holds all values of a tensor."""
    import torch

    dtype = operand.meta["val"].dtype
    return dtype is not wanted and torch.promote_types(dtype, wanted) is wanted
