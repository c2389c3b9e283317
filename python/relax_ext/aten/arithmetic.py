# SPDX-License-Identifier: Apache-2.0
"""Operators of two elements, in the dtype to which PyTorch promotes its operands.

A Python number next to half precision is rounded to it in comparisons only: PyTorch computes
arithmetic operators in float32.  Divisions and remainders of integers are imported only if the
divisor is a known number other than 0, because compiled code would end the process where PyTorch
raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from topi_ext.compat import constant_value, relax

from ..ir import HALF
from .calls import Call, Converter, number, torch_dtype_name

R = relax()

_ARITHMETIC = {
    "mul": R.op.multiply,
    "div": R.op.divide,
}
_COMPARISONS = {
    "eq": R.op.equal,
    "ne": R.op.not_equal,
    "ge": R.op.greater_equal,
    "gt": R.op.greater,
    "le": R.op.less_equal,
    "lt": R.op.less,
}
_LOGICAL = {
    "logical_and": R.op.logical_and,
    "logical_or": R.op.logical_or,
    "logical_xor": R.op.logical_xor,
}
_BITS = {
    "bitwise_and": (R.op.bitwise_and, R.op.logical_and),
    "bitwise_or": (R.op.bitwise_or, R.op.logical_or),
    "bitwise_xor": (R.op.bitwise_xor, R.op.logical_xor),
}
"""Bitwise operators, for integers and for Booleans."""


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    both = ("Tensor", "Scalar")
    return {
        **{
            f"{name}.{form}": partial(_binary, op)
            for name, op in _ARITHMETIC.items()
            for form in both
        },
        "true_divide.Tensor": partial(_binary, R.op.divide),
        "maximum.default": partial(_binary, R.op.maximum),
        "minimum.default": partial(_binary, R.op.minimum),
        "atan2.default": partial(_binary, R.op.atan2),
        **{
            f"{name}.{form}": partial(_compared, op)
            for name, op in _COMPARISONS.items()
            for form in both
        },
        **{f"{name}.default": partial(_logical, op) for name, op in _LOGICAL.items()},
        **{f"{name}.{form}": partial(_bits, *ops) for name, ops in _BITS.items() for form in both},
        **{f"add.{form}": partial(_sum, R.op.add) for form in both},
        **{f"sub.{form}": partial(_sum, R.op.subtract) for form in both},
        "div.Tensor_mode": _rounded_quotient,
        "remainder.Scalar": partial(_remainder, R.op.floor_mod),
        "pow.Tensor_Scalar": _power_of_number,
        "pow.Tensor_Tensor": partial(_power, "self", "exponent"),
        "pow.Scalar": partial(_power, "self", "exponent"),
        "where.self": _where,
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    both = ("Tensor", "Scalar")
    return {
        **{f"rsub.{form}": partial(_sum, R.op.subtract, names=("other", "self")) for form in both},
        "remainder.Tensor": partial(_remainder, R.op.floor_mod),
        **{f"fmod.{form}": partial(_remainder, R.op.mod) for form in both},
        "floor_divide.default": _rounded_quotient,
        "max.other": partial(_binary, R.op.maximum),
        "min.other": partial(_binary, R.op.minimum),
    }


def operands(call: Call, dtype: str, *names: str) -> tuple[list[Any], str]:
    """Return operands in one dtype, and that dtype: `dtype`, or float32 for half precision.

    Parameters
    ----------
    call : Call
    dtype : str
        The dtype to which PyTorch promotes the operands.
    *names : str
        Names of the operands: tensors, numbers, symbolic numbers.
    """
    inexact = any(_is_inexact(call[name], dtype) for name in names)
    dtype = "float32" if inexact else dtype
    return [call.tensor(call[name], dtype) for name in names], dtype


def _is_inexact(operand: Any, dtype: str) -> bool:
    """Return whether half precision would round a number."""
    if dtype not in HALF or isinstance(operand, bool) or not isinstance(operand, (int, float)):
        return False
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return float(np.float16(operand)) != operand and operand == operand
    return float(torch.tensor(operand, dtype=torch.bfloat16)) != operand and operand == operand


def _binary(op: Callable[[Any, Any], Any], call: Call) -> Any:
    dtype = call.dtype()
    (x, y), _ = operands(call, dtype, "self", "other")
    if dtype == "bool":
        logical = {R.op.multiply: R.op.logical_and, R.op.maximum: R.op.logical_or}
        op = logical.get(op, R.op.logical_and if op is R.op.minimum else op)
    return call.cast(call.emit(op(x, y)), dtype)


def _sum(
    op: Callable[[Any, Any], Any], call: Call, names: tuple[str, ...] = ("self", "other")
) -> Any:
    """Return ``self + alpha * other`` or ``self - alpha * other``, or with these two exchanged."""
    dtype, alpha = call.dtype(), call["alpha"]
    if dtype == "bool":
        if op is not R.op.add or alpha not in (1, True):
            raise call.refusal("arithmetic of truth values")
        return call.emit(R.op.logical_or(*(call.tensor(call[name], dtype) for name in names)))
    names = (*names, "alpha") if alpha != 1 else names
    (x, y, *factor), _ = operands(call, dtype, *names)
    if factor:
        y = call.emit(R.op.multiply(y, factor[0]))
    return call.cast(call.emit(op(x, y)), dtype)


def _promoted(call: Call, *names: str) -> str:
    """Return the dtype in which PyTorch compares two operands."""
    values = []
    for name in names:
        value = call.raw(name)
        value = getattr(value, "meta", {}).get("val", value)
        if isinstance(value, torch.SymFloat):
            value = 1.0
        values.append(1 if isinstance(value, torch.SymInt) else value)
    return torch_dtype_name(torch.result_type(*values))


def _compared(op: Callable[[Any, Any], Any], call: Call) -> Any:
    dtype = _promoted(call, "self", "other")
    dtype = "int8" if dtype == "bool" else dtype
    return call.emit(op(*(call.tensor(call[name], dtype) for name in ("self", "other"))))


def as_truth(call: Call, x: Any, dtype: str) -> Any:
    """Return which elements of a tensor of `dtype` are not zero; NaN counts as not zero."""
    return x if dtype == "bool" else call.emit(R.op.not_equal(x, R.const(0, dtype)))


def _logical(op: Callable[[Any, Any], Any], call: Call) -> Any:
    x, y = (as_truth(call, call[name], call.dtype(name)) for name in ("self", "other"))
    return call.emit(op(x, y))


def _bits(of_integers: Any, of_truths: Any, call: Call) -> Any:
    (x, y), dtype = operands(call, call.dtype(), "self", "other")
    return call.emit((of_truths if dtype == "bool" else of_integers)(x, y))


def _where(call: Call) -> Any:
    condition = as_truth(call, call["condition"], call.dtype("condition"))
    x, y = (call.tensor(call[name], call.dtype()) for name in ("self", "other"))
    return call.emit(R.op.where(condition, x, y))


def _divisor(call: Call, dtype: str) -> Any:
    """Return the divisor of integers; PyTorch raises an error if it is 0."""
    divisor = call["other"]
    if isinstance(divisor, int) and not isinstance(divisor, bool):
        constant = number(divisor, dtype)
        if constant_value(constant).numpy():
            return constant
    call.leave("an integer divisor must be a known number other than 0")
    return call.tensor(divisor, dtype)


def _rounded_quotient(call: Call) -> Any:
    dtype, mode = call.dtype(), call.get("rounding_mode", "floor")
    if mode is None:
        return _binary(R.op.divide, call)
    if "float" in dtype:
        (x, y), _ = operands(call, dtype, "self", "other")
        if mode == "floor":
            call.leave("rounding down of floats")
            return call.cast(call.emit(R.op.floor_divide(x, y)), dtype)
        return call.cast(call.emit(R.op.trunc(call.emit(R.op.divide(x, y)))), dtype)
    x, y = call.tensor(call["self"], dtype), _divisor(call, dtype)
    # TVM's integer division rounds towards zero.
    return call.emit((R.op.floor_divide if mode == "floor" else R.op.divide)(x, y))


def _remainder(op: Callable[[Any, Any], Any], call: Call) -> Any:
    dtype = call.dtype()
    if "int" in dtype:
        x, y = call.tensor(call["self"], dtype), _divisor(call, dtype)
    else:
        call.leave("a remainder of floats")
        (x, y), _ = operands(call, dtype, "self", "other")
    return call.cast(call.emit(op(x, y)), dtype)


def _power(base: str, exponent: str, call: Call) -> Any:
    dtype = call.dtype()
    if "float" not in dtype:
        call.leave("a power of integers")
    wide = "float32" if dtype in HALF else dtype
    x, y = (call.tensor(call[name], wide) for name in (base, exponent))
    return call.cast(call.emit(R.op.power(x, y)), dtype)


def _power_of_number(call: Call) -> Any:
    """Return a power whose exponent is a number, by products and roots where PyTorch does."""
    dtype, exponent = call.dtype(), call["exponent"]
    wide = "float32" if dtype in HALF else dtype
    if not isinstance(exponent, (int, float)):
        return _power("self", "exponent", call)
    x = call.tensor(call["self"], wide)
    if exponent in (2, 3):
        y = call.emit(R.op.multiply(x, x))
        y = y if exponent == 2 else call.emit(R.op.multiply(y, x))
    elif exponent == 1:
        y = x
    elif exponent in (0.5, -0.5) and "float" in dtype:
        y = call.emit((R.op.sqrt if exponent > 0 else R.op.rsqrt)(x))
    elif exponent in (-1, -2) and "float" in dtype:
        square = x if exponent == -1 else call.emit(R.op.multiply(x, x))
        y = call.emit(R.op.divide(R.const(1, wide), square))
    else:
        return _power("self", "exponent", call)
    return call.cast(y, dtype)
