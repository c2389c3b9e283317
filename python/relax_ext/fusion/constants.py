# SPDX-License-Identifier: Apache-2.0
"""Values that are known before a model runs.

Constants, and calls of nothing but constants, are known when it is compiled.  Parameters behind
those that the attribute ``num_input`` counts are known when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from topi_ext.compat import (
    call_attr,
    constant_value,
    dtype_name,
    known_shape,
    relax,
    tensor_type_of,
)

from ..ir import dtype_of
from .patterns import Lookup, is_operator
from .views import PERMUTE, RESHAPES

R = relax()

QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"

_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    f"relax.{name}": getattr(np, name) for name in ("add", "subtract", "multiply", "divide", "sqrt")
}


def call_of(expr: Any, lookup: Lookup) -> Any:
    """Return the call of an operator that gives `expr`, or None."""
    value = expr if is_operator(expr) else lookup(expr)
    return value if is_operator(value) else None


def value_of(expr: Any, lookup: Lookup) -> np.ndarray | None:
    """Return the constant value of `expr`, if known: scales, zero points and biases of
    importers.
    """
    constant = constant_value(expr)
    if constant is not None:
        return constant.numpy()
    call = call_of(expr, lookup)
    if call is None:
        return None
    name = str(call.op.name)
    if name == DEQUANTIZE:
        return _dequantized(call, lookup)
    if name in _ARITHMETIC:
        return _calculated(call, lookup)
    if name not in (*RESHAPES, PERMUTE, "relax.astype"):
        return None
    value = value_of(call.args[0], lookup)
    return None if value is None else viewed(value, call)


def parameters_of_load(func: Any) -> set[Any]:
    """Return the variables of a function that only parameters behind ``num_input`` decide.

    ``LiftTransformParams`` moves what computes them into a function of its own.

    Parameters
    ----------
    func : relax.Function

    Returns
    -------
    set of relax.Var
        Empty where the function has no attribute ``num_input``.
    """
    count = (func.attrs or {}).get("num_input")
    known = set() if count is None else set(func.params[int(count) :])
    for block in func.body.blocks if known else ():
        if not isinstance(block, R.DataflowBlock):
            continue
        for binding in block.bindings:
            read = R.analysis.free_vars(binding.value)
            if read and known.issuperset(read):
                known.add(binding.var)
    return known


def viewed(value: np.ndarray, call: Any) -> np.ndarray | None:
    """Apply a reshape, transpose or change of dtype to a value."""
    found = tensor_type_of(call)
    if call.op.name == "relax.astype":
        dtype = dtype_name(found.dtype)
        return None if dtype == "bfloat16" else value.astype(dtype)
    if call.op.name == PERMUTE:
        axes = call_attr(call, "axes")
        return value.transpose([int(axis) for axis in axes] if axes else None)
    shape = known_shape(found.shape)
    is_known = shape is not None and all(isinstance(size, int) for size in shape)
    return value.reshape(shape) if is_known else None


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """One value for all of a tensor, or one for each place of an axis, so that it broadcasts."""
    if values.size == 1:
        return values.reshape((1,) * rank)
    return values.reshape([-1 if a == axis % rank else 1 for a in range(rank)])


def _values(call: Any, lookup: Lookup) -> list[np.ndarray] | None:
    """Return the values of all operands of a call, or None where one is not known."""
    values = [value for one in call.args if (value := value_of(one, lookup)) is not None]
    return values if len(values) == len(call.args) else None


def _calculated(call: Any, lookup: Lookup) -> np.ndarray | None:
    values = _values(call, lookup)
    if values is None or any(value.dtype.kind not in "iuf" for value in values):
        return None
    if call.op.name in ("relax.divide", "relax.sqrt") and values[0].dtype.kind != "f":
        return None  # of integers TVM truncates
    with np.errstate(all="ignore"):
        return _ARITHMETIC[call.op.name](*values)


def _dequantized(call: Any, lookup: Lookup) -> np.ndarray | None:
    values = _values(call, lookup)
    if values is None or dtype_of(call) != "float32":
        return None
    data, scale, zero = values
    axis = int(call_attr(call, "axis"))
    scale, zero = (along(one, axis, data.ndim) for one in (scale, zero))
    return (data.astype("int64") - zero).astype("float32") * scale.astype("float32")
