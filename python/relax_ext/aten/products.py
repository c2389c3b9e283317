# SPDX-License-Identifier: Apache-2.0
"""Products of matrices; half precision is summed in float32 where they are lowered."""

from __future__ import annotations

from functools import partial
from typing import Any

from topi_ext.compat import relax

from ..ir import dtype_of
from .calls import Call, Converter

R = relax()


def converters() -> dict[str, Converter]:
    """Return the converter of each operator by name."""
    return {
        "mm.default": partial(_product, "self", "mat2"),
        "bmm.default": partial(_product, "self", "mat2"),
        "addmm.default": partial(_added_product, "mat1", "mat2"),
        "_int_mm.default": _product_of_bytes,
    }


def imported() -> dict[str, Converter]:
    """Return the converters of imported programs alone."""
    return {
        "matmul.default": partial(_product, "self", "other"),
        "baddbmm.default": partial(_added_product, "batch1", "batch2"),
        "linear.default": lambda call: call.emit(
            R.op.linear(call["input"], call["weight"], call["bias"])
        ),
    }


def _product(x: str, y: str, call: Call) -> Any:
    return call.emit(R.op.matmul(call[x], call[y]))


def _product_of_bytes(call: Call) -> Any:
    """Return sums of int32; the kernel reads bytes as they are stored."""
    x, y = (call.emit(R.op.astype(call[name], "int32")) for name in ("self", "mat2"))
    return call.emit(R.op.matmul(x, y))


def _added_product(x: str, y: str, call: Call) -> Any:
    """Return ``beta * self + alpha * x @ y``."""
    product, alpha, beta = _product(x, y, call), call["alpha"], call["beta"]
    dtype = dtype_of(product)
    if alpha != 1:
        product = call.emit(R.op.multiply(product, R.const(alpha, dtype)))
    if beta == 0:
        return product  # even where self is NaN
    summand = call.cast(call["self"], dtype)
    if beta != 1:
        summand = call.emit(R.op.multiply(summand, R.const(beta, dtype)))
    return call.emit(R.op.add(summand, product))
