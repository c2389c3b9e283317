# SPDX-License-Identifier: Apache-2.0
"""Operators of TVM and their attributes, which belong to the process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from .versions import tvm


def op_attr(op_name: str, key: str) -> Any:
    """Return the attribute `key` of an operator, None where it is unset."""
    try:
        return tvm.ir.Op.get(op_name).get_attr(key)
    except RuntimeError:  # no operator has ever had this attribute
        return None


def has_op(op_name: str) -> bool:
    """Return whether this TVM has an operator."""
    return op_name in _op_names()


@cache
def _op_names() -> frozenset[str]:
    return frozenset(map(str, tvm.ir.Op.list_op_names()))


def set_op_attr(op_name: str, key: str, value: Any, level: int = 10) -> None:
    """Set the attribute `key` of an operator, or unset it where `value` is None."""
    op = tvm.ir.Op.get(op_name)
    op.reset_attr(key)
    if value is not None:
        op.set_attr(key, value, level)


def _same(first: Any, second: Any) -> bool:
    """Return whether two attributes are one object of TVM."""
    if first is None or second is None:
        return first is second
    if hasattr(first, "same_as"):
        return bool(first.same_as(second))
    return bool(first.handle.value == second.handle.value)  # a function of TVM 0.17


Replaced = dict[tuple[str, str], tuple[Any, Any]]
"""Earlier and current value of an attribute, by operator and key."""


def replace_op_attr(
    replaced: Replaced, op_name: str, key: str, value: Any, level: int = 10
) -> None:
    """Set an attribute as :func:`set_op_attr`, and note it in `replaced`."""
    before = op_attr(op_name, key)
    set_op_attr(op_name, key, value, level)
    replaced[op_name, key] = before, op_attr(op_name, key)


def is_replaced(replaced: Replaced, op_name: str, key: str) -> bool:
    """Return whether the attribute still has the value that this package set."""
    noted = replaced.get((op_name, key))
    return noted is not None and _same(op_attr(op_name, key), noted[1])


def restore_op_attrs(replaced: Replaced) -> None:
    """Set attributes to what they were.  What somebody has set since stays, and stays noted."""
    for (op_name, key), (before, _) in list(replaced.items()):
        if is_replaced(replaced, op_name, key):
            set_op_attr(op_name, key, before)
            del replaced[op_name, key]


def own_op(op_name: str, description: str, arguments: Sequence[str]) -> None:
    """Add a pure operator of tensors to TVM, once per process."""
    if op_name in tvm.ir.Op.list_op_names():
        return
    tvm.get_global_func("ir.RegisterOp")(op_name, description)
    op = tvm.ir.Op.get(op_name)
    op.set_num_inputs(len(arguments))
    for name in arguments:
        op.add_argument(name, "Tensor", "")
    op.set_attr("FPurity", True, 10)


def call_attr(call: Any, name: str) -> Any:
    """Return the attribute `name` of a call, whether its attributes are a class or a dictionary,
    which may lack it: None then.
    """
    attrs = call.attrs
    if isinstance(attrs, tvm.ir.DictAttrs):
        return dict(attrs.items()).get(name)
    return getattr(attrs, name)
