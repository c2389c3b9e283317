# SPDX-License-Identifier: Apache-2.0
"""Sizes, dtypes and types of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from .versions import arith, relax, tir, tvm


def as_size(value: Any) -> Any:
    """Return the size `value` as an ``int`` where it is a constant, else unchanged."""
    return int(value) if isinstance(value, (int, tir.IntImm)) else value


def same_size(a: Any, b: Any) -> bool:
    """Return whether two sizes are known to be equal; ``==`` of symbolic ones is an expression."""
    difference = simplify(a - b)
    return isinstance(difference, int) and difference == 0


def at_most(a: Any, b: Any) -> bool:
    """Return whether size `a` is known to be at most `b`, whatever the symbolic sizes are."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    analyzer, difference = arith.Analyzer(), b - a
    for size in tir.analysis.undefined_vars(difference):
        analyzer.bind(size, tvm.ir.Range(0, 1 << 31))
    return bool(analyzer.can_prove(difference >= 0))


def lower_bounds(axes: Iterable[Any]) -> Callable[[Any], int]:
    """Return the function of the least value that an expression may have, for iteration variables
    with their ranges; far below -2^31 where that is not known.
    """
    analyzer = arith.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)
    return lambda number: int(analyzer.const_int_bound(number).min_value)


def simplify(value: Any) -> Any:
    """Return the size `value` simplified: an ``int`` where that makes it a constant."""
    return value if isinstance(value, int) else as_size(arith.Analyzer().simplify(value))


def buffer_of_region(region: Any) -> Any:
    """Return the buffer of a region that a block reads or writes."""
    return region.buffer if hasattr(region, "buffer") else region.source


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, ``""`` where it is not known or not given: None, ``""`` and
    void.
    """
    if dtype is None:
        return ""
    name = str(getattr(dtype, "dtype", dtype))
    return "" if name == "void" else name


@cache
def infer_key() -> str:
    """Return the name of the operator attribute that infers types."""
    return "FInferStructInfo" if hasattr(relax(), "TensorStructInfo") else "FInferType"


def _tensor_type_class() -> Any:
    # TensorType exists in 0.25 too, but is another class there.
    return getattr(relax(), "TensorStructInfo", None) or relax().TensorType


def tensor_type(shape: Any, dtype: str, ndim: int, vdevice: Any = None) -> Any:
    """Return the type of a tensor; `shape` may be None for unknown, `dtype` ``""`` for unknown."""
    unknown = "" if infer_key() == "FInferStructInfo" else None
    rank = {"ndim": ndim} if shape is None else {}
    return _tensor_type_class()(shape, dtype or unknown, vdevice, **rank)


def shape_type(sizes: Any) -> Any:
    """Return the type of a shape expression of these sizes."""
    return (getattr(relax(), "ShapeStructInfo", None) or relax().ShapeType)(sizes)


def tuple_type(fields: Sequence[Any]) -> Any:
    """Return the type of a tuple whose fields have these types."""
    return (getattr(relax(), "TupleStructInfo", None) or relax().TupleType)(list(fields))


def size_variables(type_: Any) -> list[Any]:
    """Return the variables in the sizes of a Relax type."""
    analysis = relax().analysis
    is_old = infer_key() == "FInferStructInfo"
    return list((analysis.tir_vars_in_struct_info if is_old else analysis.tir_vars_in_type)(type_))


def variable_name(variable: Any) -> str:
    """Return the name of a variable of Relax."""
    return str(getattr(variable, "name", None) or variable.name_hint)


def type_of(expr: Any) -> Any:
    """Return the type of a normalized Relax expression."""
    return expr.struct_info if infer_key() == "FInferStructInfo" else expr.ty


def tensor_type_of(expr: Any) -> Any:
    """Return the type of a normalized Relax expression, or None if that is no tensor."""
    found = type_of(expr)
    return found if isinstance(found, _tensor_type_class()) else None


def has_float(kind: Any) -> bool:
    """Return whether a Relax type is a tensor of floats, or a tuple that holds one."""
    if hasattr(kind, "fields"):
        return any(map(has_float, kind.fields))
    return "float" in dtype_name(getattr(kind, "dtype", None))


def constant_value(expr: Any) -> Any:
    """Return the array that a Relax constant holds, or None for another expression."""
    kind = getattr(relax(), "Constant", None) or tvm.ir.GenericConst
    if not isinstance(expr, kind):
        return None
    return expr.data if hasattr(expr, "data") else expr.value


def known_shape(shape: Any) -> Any:
    """Return the sizes of a shape expression, or None where they are not known."""
    if shape is None:
        return None
    stated = shape if isinstance(shape, relax().ShapeExpr) else type_of(shape)
    sizes = getattr(stated, "values", None)
    return None if sizes is None else tuple(as_size(size) for size in sizes)


def buffers_of(func: Any) -> dict[Any, Any]:
    """Return the arrays that a PrimFunc takes, by their parameters."""
    if hasattr(func, "buffer_map"):  # before TVM 0.26
        return {param: func.buffer_map[param] for param in func.params if param in func.buffer_map}
    return {param: param for param in func.params if hasattr(param, "shape")}


def parameters_of(func: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return the shapes and dtypes of the arrays that a PrimFunc of known sizes takes."""
    buffers = buffers_of(func).values()
    return [(tuple(map(int, one.shape)), dtype_name(one.dtype)) for one in buffers]
