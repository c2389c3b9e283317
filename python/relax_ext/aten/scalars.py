# SPDX-License-Identifier: Apache-2.0
"""Numbers that are computed from sizes, as tensors without axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy

from topi_ext.compat import infer_key, relax

from .sizes import expr_of, size_in

R = relax()


def scalar(builder: Any, size: Any) -> Any:
    """Return a size, a number or an expression of TVM, as an int64 tensor."""
    if isinstance(size, int):
        return R.const(size, "int64")
    if infer_key() == "FInferStructInfo":  # TVM 0.25 ends the process at relax.shape_to_tensor
        raise ValueError("a number made of symbolic sizes needs TVM 0.26")
    vector = builder.emit(R.op.shape_to_tensor(R.ShapeExpr([size])))
    return builder.emit(R.op.reshape(vector, R.ShapeExpr([])))


def float_scalar(builder: Any, number: Any, symbols: Mapping[str, Any]) -> Any:
    """Return a float that is computed from sizes, as a float64 tensor.

    Parameters
    ----------
    builder : relax.BlockBuilder
    number : SymFloat, or expression of sympy
    symbols : dict of str to tirx.Var

    Raises
    ------
    ValueError
        For a function that has no counterpart.
    """
    expr = expr_of(number)
    if isinstance(expr, (int, float, sympy.Float, sympy.Rational)):
        return R.const(float(expr), "float64")
    convert = _FUNCTIONS.get(type(expr).__name__)
    if convert is None:
        return builder.emit(R.op.astype(scalar(builder, size_in(expr, symbols)), "float64"))
    first, *others = (float_scalar(builder, argument, symbols) for argument in expr.args)
    if not others:
        return builder.emit(convert(first))
    for operand in others:
        first = builder.emit(convert(first, operand))
    return first


def _as_float(number: Any) -> Any:
    return R.op.astype(number, "float64")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": R.op.add,
    "Mul": R.op.multiply,
    "IntTrueDiv": R.op.divide,
    "FloatTrueDiv": R.op.divide,
    "FloatPow": R.op.power,
    "Pow": R.op.power,
    "ToFloat": _as_float,
    "OpaqueUnaryFn_sqrt": R.op.sqrt,
}
"""Functions by the name of their class in sympy or in torch.utils._sympy.functions."""
