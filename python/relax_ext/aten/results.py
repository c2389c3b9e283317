# SPDX-License-Identifier: Apache-2.0
"""Results of converters, compared with the shapes and dtypes that PyTorch states."""

from __future__ import annotations

from typing import Any

import torch

from topi_ext.compat import (
    dtype_name,
    known_shape,
    relax,
    same_size,
    tensor_type,
    type_of,
)

from ..ir import are_same
from ..legalizations.reshapes import of_equal_sizes
from .calls import Call, torch_dtype_name
from .sizes import is_unbacked

R = relax()


def as_stated(call: Call, result: Any) -> Any:
    """Return one result, or a list of several with None for those that no node reads.

    Each is a variable whose shape and dtype are those that PyTorch states.
    """
    if not isinstance(call.value, (list, tuple)):
        return _checked(call, result, call.value)
    results = result
    if isinstance(result, R.Expr):
        fields = getattr(type_of(call.emit(result)), "fields", None)
        results = (
            [result] if fields is None else [R.TupleGetItem(result, i) for i in range(len(fields))]
        )
    return [
        _checked(call, part, stated) if index in call.used and part is not None else None
        for index, (part, stated) in enumerate(zip(results, call.value))
    ]


def _checked(call: Call, result: Any, stated: Any) -> Any:
    if not isinstance(result, R.Expr) or not isinstance(stated, torch.Tensor):
        raise call.refusal(f"gives {type(result).__name__}")
    if isinstance(result, (R.Call, R.TupleGetItem)):
        result = call.emit(result)
    found, dtype = type_of(result), torch_dtype_name(stated.dtype)
    if dtype_name(found.dtype) != dtype:
        raise call.refusal(f"dtype {dtype_name(found.dtype)} must be {dtype}, as in PyTorch")
    if is_unbacked(stated):
        return result
    shape, wanted = known_shape(found.shape), call.sizes(stated.shape)
    if shape is None:
        shape = [None] * found.ndim
    if len(shape) != len(wanted) or any(map(_differ, shape, wanted)):
        raise call.refusal(f"shape {list(shape)} must be {wanted}, as in PyTorch")
    if all(size is not None and same_size(size, other) for size, other in zip(shape, wanted)):
        return result
    if None not in shape and not are_same(wanted, call.stated(stated.shape)):
        return of_equal_sizes(call.builder, result, wanted)
    kind = tensor_type(R.ShapeExpr(wanted), dtype, len(wanted))
    return call.builder.match_cast(result, kind)


def _differ(size: Any, wanted: Any) -> bool:
    return isinstance(size, int) and isinstance(wanted, int) and size != wanted
