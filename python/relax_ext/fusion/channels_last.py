# SPDX-License-Identifier: Apache-2.0
"""Half-precision convolutions for CUDA with channels last: a model is transposed once.

Kernels for tensor cores copy neighbouring channels by 16 bytes, without a register.  Other layouts
are read element by element.  TVM's ``ConvertLayout`` moves transposes to where a model begins and
ends, and to operators that have no such layout; an estimate decides whether the change is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import tvm

from topi_ext import backend
from topi_ext.compat import constant_value, relax
from topi_ext.spec.conv import Convolution
from topi_ext.spec.dtypes import byte_width

from ..op.attrs import STOCK, read
from .constants import value_of
from .patterns import Function, is_operator
from .views import PERMUTE, dtype_of, shape_of

R = relax()

HALVES = ("float16", "bfloat16")

LAYOUTS = {"relax.nn.conv2d": ["NHWC", "OIHW"], "relax.nn.conv2d_transpose": ["NHWC", "IOHW"]}
"""Layouts of data and weights; weights keep theirs, because kernels pack them."""

NOMINAL_SIZE = 64
"""Value of symbolic sizes of transposed tensors in the estimate."""


def channels_last(module: Any) -> Any:
    """Return `module` with convolutions of images in NHWC if that is estimated to take less time.

    It is tried where a convolution of half precision has channels first and the target is CUDA.
    """
    target = tvm.target.Target.current(allow_none=True)
    if target is None or target.kind.name != "cuda" or not any(map(_is_tried, _calls(module))):
        return module
    converted = tvm.transform.Sequential(
        [R.transform.ConvertLayout(LAYOUTS), R.transform.CanonicalizeBindings()]
    )(module)
    now, then = (backend.estimated_time(*_work(one), target) for one in (module, converted))
    return converted if then is not None and now is not None and then < now else module


def _bindings(module: Any) -> Iterator[tuple[Any, dict[Any, Any]]]:
    """Yield the calls of all functions, each with the values of its function's variables."""
    for _, func in module.functions_items():
        if not isinstance(func, R.Function):
            continue
        values = Function.of(func).values
        for value in values.values():
            if is_operator(value):
                yield value, values


def _calls(module: Any) -> Iterator[Any]:
    return (call for call, _ in _bindings(module))


def _is_tried(call: Any) -> bool:
    """Return whether a call is a half-precision convolution with channels first."""
    if str(call.op.name) not in LAYOUTS:
        return False
    is_half = dtype_of(call.args[0]) in HALVES
    return is_half and str(call.attrs["data_layout"]) == "NCHW"


def _work(module: Any) -> tuple[list[Convolution], list[int]]:
    """Return the convolutions of a module, and the bytes of each tensor that it transposes."""
    problems, transposed = [], []
    for call, values in _bindings(module):
        if call.op.name in STOCK:
            problems += _problem(call)
        elif call.op.name == PERMUTE and value_of(call.args[0], values.get) is None:
            shape = shape_of(call) or ()
            sizes = (size if isinstance(size, int) else NOMINAL_SIZE for size in shape)
            transposed.append(prod(sizes) * byte_width(dtype_of(call)))
    return problems, transposed


def _problem(call: Any) -> list[Convolution]:
    """Return the convolution of a call; none if the package has no kernel for it."""
    conv = read(call)
    if conv is None or conv.geometry is None or conv.is_blocked or "" in conv.dtypes.values():
        return []
    is_packed = constant_value(call.args[1]) is not None
    return [replace(conv.problem, prepacked=is_packed)]
