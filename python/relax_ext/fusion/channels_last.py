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

from ..ir import HALF, dtype_of, shape_of
from ..op.attrs import STOCK, read
from .constants import parameters_of_load, value_of
from .patterns import Function, is_operator
from .views import PERMUTE

R = relax()


LAYOUTS = {"relax.nn.conv2d": ["NHWC", "OIHW"], "relax.nn.conv2d_transpose": ["NHWC", "IOHW"]}
"""Layouts of data and weights; weights keep theirs, because kernels pack them."""

NOMINAL_SIZE = 64
"""Value of symbolic sizes of transposed tensors in the estimate."""


def channels_last(module: Any, packs_parameters: bool = False) -> Any:
    """Return `module` with convolutions of images in NHWC if that is estimated to take less time.

    It is tried where a convolution of half precision has channels first and the target is CUDA.

    Parameters
    ----------
    module : tvm.IRModule
    packs_parameters : bool
        As in :func:`.fuse.fuse_kernels`.

    Returns
    -------
    tvm.IRModule
    """
    target = tvm.target.Target.current(allow_none=True)
    if target is None or target.kind.name != "cuda" or not any(map(_is_tried, _calls(module))):
        return module
    converted = tvm.transform.Sequential(
        [R.transform.ConvertLayout(LAYOUTS), R.transform.CanonicalizeBindings()]
    )(module)
    works = (_work(one, packs_parameters) for one in (module, converted))
    now, then = (backend.estimated_time(*work, target) for work in works)
    return converted if then is not None and now is not None and then < now else module


def _functions(module: Any) -> Iterator[tuple[Any, dict[Any, Any]]]:
    """Yield the functions with the values of their variables."""
    for _, func in module.functions_items():
        if isinstance(func, R.Function):
            yield func, Function.of(func).values


def _calls(module: Any) -> Iterator[Any]:
    for _, values in _functions(module):
        yield from filter(is_operator, values.values())


def _is_tried(call: Any) -> bool:
    """Return whether a call is a half-precision convolution with channels first."""
    if str(call.op.name) not in LAYOUTS:
        return False
    is_half = dtype_of(call.args[0]) in HALF
    return is_half and str(call.attrs["data_layout"]) == "NCHW"


def _work(module: Any, packs_parameters: bool) -> tuple[list[Convolution], list[int]]:
    """Return the convolutions of a module, and the bytes of each tensor that it transposes."""
    problems, transposed = [], []
    for func, values in _functions(module):
        loaded = parameters_of_load(func) if packs_parameters else set()
        for call in filter(is_operator, values.values()):
            if call.op.name in STOCK:
                problems += _problem(call, loaded)
            elif call.op.name == PERMUTE and not _is_known(call.args[0], values, loaded):
                shape = shape_of(call) or ()
                sizes = (size if isinstance(size, int) else NOMINAL_SIZE for size in shape)
                transposed.append(prod(sizes) * byte_width(dtype_of(call)))
    return problems, transposed


def _is_known(expr: Any, values: dict[Any, Any], loaded: set[Any]) -> bool:
    return expr in loaded or value_of(expr, values.get) is not None


def _problem(call: Any, loaded: set[Any]) -> list[Convolution]:
    """Return the convolution of a call; none if the package has no kernel for it."""
    conv = read(call)
    if conv is None or conv.geometry is None or conv.is_blocked or "" in conv.dtypes.values():
        return []
    is_packed = call.args[1] in loaded or constant_value(call.args[1]) is not None
    return [replace(conv.problem, prepacked=is_packed)]
