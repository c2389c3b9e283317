# SPDX-License-Identifier: Apache-2.0
"""Selection of the operators that PyTorch decomposes before a graph is imported."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves

from ..aten.resizes import OPERATORS as RESIZES
from . import attention

_WHOLE = (
    *("silu.default", "hardswish.default", "hardsigmoid.default"),
    *("roll.default", "select_backward.default", "slice_backward.default"),
    *(f"reflection_pad{rank}d{form}.default" for rank in (1, 2, 3) for form in ("", "_backward")),
    *(f"replication_pad{rank}d{form}.default" for rank in (1, 2, 3) for form in ("", "_backward")),
    *(f"{name}{form}.default" for name in RESIZES for form in ("", "_backward")),
)
"""Operators for which a converter is better than PyTorch's decomposition."""

_EXTRA = ("_softmax_backward_data", "_log_softmax_backward_data")
"""Operators that are not in PyTorch's own table, but have a decomposition."""

_IN_FLOAT32 = ("native_group_norm_backward.default",)
"""Decompositions that compute half precision in half precision."""


def decompositions(*, trains: bool = False) -> dict[Any, Callable[..., Any]]:
    """Return AOTAutograd's table of decompositions; with `trains` for a graph with gradients."""
    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([getattr(aten, name) for name in _EXTRA]))
    for name in _WHOLE:
        table.pop(_operator(name), None)
    for name in RESIZES:
        for overload in _overloads(name):
            table.pop(overload, None)
    for name in _IN_FLOAT32:
        operator = _operator(name)
        table[operator] = _in_float32(table[operator])
    forward, backward = attention.forward, attention.backward
    if trains:
        forward = attention.whole(forward, first=0)
        backward = attention.whole(backward, first=1)
    table[attention.FORWARD.default] = forward
    table[attention.BACKWARD.default] = backward
    table[torch.ops.aten.convolution.default] = _with_known_attributes
    return table


def _with_known_attributes(x: Any, weight: Any, *attributes: Any) -> Any:
    """Fix the sizes of a weight and the attributes, by guards, and keep the convolution.

    PyTorch makes them symbolic if one function convolves with weights of several sizes or with
    several strides.  Kernels are made for known ones.
    """
    del x
    for number in (*weight.shape, *tree_leaves(attributes)):
        if isinstance(number, torch.SymInt):
            int(number)
    return NotImplemented


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _overloads(name: str) -> list[Any]:
    """Return the overloads of an operator and its gradient that take no result as argument."""
    packets = (getattr(torch.ops.aten, f"{name}{form}") for form in ("", "_backward"))
    return [
        getattr(packet, kind)
        for packet in packets
        for kind in ("default", "vec")
        if kind in packet.overloads()
    ]


def _in_float32(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition that computes half precision in float32, and rounds once."""
    half = (torch.float16, torch.bfloat16)

    @wraps(decomposition)
    def widened(*args: Any, **kwargs: Any) -> Any:
        narrow = next(
            (a.dtype for a in args if isinstance(a, torch.Tensor) and a.dtype in half), None
        )
        if narrow is None:
            return decomposition(*args, **kwargs)
        wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype in half else a for a in args]
        results = decomposition(*wide, **kwargs)
        return tuple(None if result is None else result.to(narrow) for result in results)

    return widened


def _whole(overload: Any, image: Any, output_size: Any, *rest: Any) -> Any:
    """Compute a resize by sizes or by factors as one operator."""
    *corners, factors = rest
    if output_size is None:
        output_size = [_times(n, f) for n, f in zip(image.shape[2:], factors)]
    scales = factors or [None] * (image.dim() - 2)
    return overload.overloadpacket.default(image, output_size, *corners, *scales)


def _gradient(dy: Any, output_size: Any, input_size: Any, *_: Any) -> Any:
    """Return an empty gradient of a resize, which PyTorch does not make of symbolic sizes."""
    del output_size
    return dy.new_empty(input_size).to(memory_format=suggest_memory_format(dy))


def _times(size: Any, factor: float) -> Any:
    """Return a size times a factor, rounded down; a whole factor needs no floats."""
    return size * int(factor) if factor == int(factor) else math.floor(size * factor)


@contextlib.contextmanager
def whole_upsamples() -> Iterator[None]:
    """Keep resizes whole while a graph is traced.

    PyTorch decomposes them before autograd, with every table of decompositions, into reads
    and writes at indices.  The kernels in Python that do so are replaced inside the block.  They
    belong to the process, so they are replaced for other threads that trace at the same time.
    """
    replaced = []
    meta = torch._C.DispatchKey.Meta
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    for overload in (one for name in RESIZES for one in _overloads(name)):
        replaced.append((overload, dict(overload.py_kernels)))
        for key in keys:
            overload.py_kernels.pop(key, None)
        if overload._overloadname == "vec":
            overload.py_kernels[keys[1]] = partial(_whole, overload)
        elif overload.overloadpacket.__name__.endswith("_backward"):
            overload.py_kernels[meta] = _gradient
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, kernels in replaced:
            overload.py_kernels.clear()
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()
