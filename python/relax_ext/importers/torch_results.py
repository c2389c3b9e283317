# SPDX-License-Identifier: Apache-2.0
"""PyTorch: results of converters, compared with the shape and dtype that the program states.

An exported program states the type of each value.  A converter that gives another shape or dtype
has computed something else: a float64 product in float32, a pooling of another size.
"""

from __future__ import annotations

import re
from typing import Any

from topi_ext.compat import dtype_name, known_shape, relax, type_of
from topi_ext.spec.geometry import fail

from .torch_arguments import operator_name, torch_dtype_name, used_results

R = relax()

_FILLED = re.compile(r"(zeros|ones|full|empty|new|to|fill|copy|lift|type)(_|$)")
"""Operators whose results are copies or constants: TVM's converters ignore their dtype."""


def as_stated(importer: Any, node: Any, result: Any) -> Any:
    """Return the result of a converter in the dtype that the program states.

    Parameters
    ----------
    importer : ExportedProgramImporter
        The importer, whose block receives a cast.
    node : torch.fx.Node
        The call.
    result : object
        Result of its converter.

    Raises
    ------
    ValueError
        Where the shape differs, or where a cast would not give PyTorch's values.
    """
    if isinstance(result, R.Call):
        result = importer.block_builder.emit(result)  # some of TVM's converters leave that out
    stated = node.meta.get("val") if node.users and isinstance(result, R.Expr) else None
    if isinstance(stated, (list, tuple)) and _is_tensor_type(_type(result)):
        stated = stated[0]  # the converter gives the first result alone
    if isinstance(stated, (list, tuple)):
        _check_several(node, result, stated)
        return result
    return _checked(importer, node, result, stated)


def _check_several(node: Any, result: Any, stated: Any) -> None:
    """Compare the results that are read."""
    fields = list(getattr(_type(result), "fields", ()))
    is_list = hasattr(node.target, "_schema") and len(node.target._schema.returns) == 1
    if is_list and len(fields) != len(stated):
        rule = f"must be {len(stated)}, as PyTorch states"
        raise fail(operator_name(node), f"{len(fields)} results {rule}")
    used = range(len(stated)) if is_list else used_results(node)
    for index, (field, value) in enumerate(zip(fields, stated)):
        if index in used and _is_tensor(value) and _is_tensor_type(field):
            _check_shape(node, field, value)
            if dtype_name(field.dtype) != _name(value):
                raise _other_dtype(node, field, value)


def _type(result: Any) -> Any:
    """Return the type of a converted value, None where that is no expression."""
    return type_of(result) if isinstance(result, R.Expr) else None


def _checked(importer: Any, node: Any, result: Any, stated: Any) -> Any:
    found = _type(result)
    if not _is_tensor(stated) or not _is_tensor_type(found):
        return result
    _check_shape(node, found, stated)
    if dtype_name(found.dtype) in (_name(stated), ""):
        return result
    if not _casts(node, found, stated):
        raise _other_dtype(node, found, stated)
    return importer.block_builder.emit(R.op.astype(result, _name(stated)))


def _casts(node: Any, found: Any, stated: Any) -> bool:
    """Return whether a cast of the result gives the values that PyTorch has."""
    import torch

    if _FILLED.match(node.target.__name__.lstrip("_").partition(".")[0]):
        return True
    got, want = getattr(torch, dtype_name(found.dtype)), stated.dtype
    if got.is_floating_point and want.is_floating_point:
        return got.itemsize > want.itemsize  # one rounding more
    return not (got.is_floating_point or want.is_floating_point or want is torch.bool)


def _check_shape(node: Any, found: Any, stated: Any) -> None:
    if found.shape is None:
        return
    shape, wanted = known_shape(found.shape), tuple(stated.shape)
    pairs = [(a, b) for a, b in zip(shape, wanted) if isinstance(a, int) and type(b) is int]
    if len(shape) != len(wanted) or any(a != b for a, b in pairs):
        sizes = "must have the shape that PyTorch states"
        raise fail(operator_name(node), f"result of shape {tuple(shape)} {sizes}, {wanted}")


def _other_dtype(node: Any, found: Any, stated: Any) -> ValueError:
    rule = f"must have the dtype that PyTorch states, {_name(stated)}"
    return fail(operator_name(node), f"result of {dtype_name(found.dtype)} {rule}")


def _name(stated: Any) -> str:
    return torch_dtype_name(stated.dtype)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_tensor_type(found: Any) -> bool:
    return hasattr(found, "dtype") and hasattr(found, "shape") and hasattr(found, "ndim")
