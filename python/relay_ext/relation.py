# SPDX-License-Identifier: Apache-2.0
"""Types of the operators' results, and of weights that only the attributes describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from topi_ext.compat import as_size, relay, simplify, size_var, tir
from topi_ext.spec.geometry import fail

from .attrs import KIND, Conv, read, short_name, weight_shape
from .structural_cache import StructuralCache

R = relay()


@dataclass(frozen=True)
class Operand:
    """Shape and dtype of an operand; a size that is unknown is a variable."""

    shape: tuple[Any, ...]
    dtype: str

    @classmethod
    def of(cls, found: Any) -> Operand:
        known = (size_var("size") if isinstance(s, tir.Any) else as_size(s) for s in found.shape)
        return cls(tuple(known), found.dtype)


def relate(
    op_name: str, stock: Any, types: Sequence[Any], _: int, attrs: Any, reporter: Any
) -> bool:
    """Return the type relation of `op_name`: solve for the result, and for a weight that has no
    type yet.

    Symbolic channels or kernel sizes are left to `stock`, TVM's own relation.
    """
    first, second, result = types
    if not _is_known(op_name, first):
        return False
    if isinstance(second, R.ty.IncompleteType):
        shape = weight_shape(op_name, attrs, first.shape)
        if shape is None:
            return False
        found = R.TensorType(shape, first.dtype)
        assign(second, found, reporter)
        second = found
    _is_known(op_name, second)
    found = _ANSWERS.get(op_name, (attrs, first, second))
    if found is None:
        conv = read(op_name, attrs, [Operand.of(first), Operand.of(second)])
        if conv is None:
            if stock is None:
                raise fail(short_name(op_name), "channels and kernel sizes must be constant")
            return stock(types, 2, attrs, reporter)
        found = _result_type(conv, first)
        _ANSWERS.put(op_name, (attrs, first, second), found)
    assign(result, found, reporter)
    return True


_ANSWERS = StructuralCache(4096)
"""Relay's type solver asks for each call again after every pass: a hundred times in a build."""


def _is_known(op_name: str, found: Any) -> bool:
    if isinstance(found, R.ty.IncompleteType):
        return False
    if not isinstance(found, R.TensorType):
        operand = "operands" if KIND[op_name] == "conv_weight_grad" else "data and weight"
        raise TypeError(f"{short_name(op_name)}: {operand} must be tensors, one is {found}")
    return True


def _result_type(conv: Conv, first: Any) -> Any:
    """Return the type of the result: a size that follows from an unknown one is unknown."""
    unknown = any(isinstance(size, tir.Any) for size in first.shape)

    def size(value: Any) -> Any:
        value = simplify(value)
        return tir.Any() if unknown and not isinstance(value, int) else value

    return R.TensorType([size(s) for s in conv.stored_shape(conv.result)], conv.dtypes[conv.result])


def assign(unsolved: Any, found: Any, reporter: Any) -> None:
    """Tell the type solver; Python sees no method of its reporter, but may call relations."""
    tvm.get_global_func("tvm.relay.type_relation.Identity")([found, unsolved], 1, None, reporter)
