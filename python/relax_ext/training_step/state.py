# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch and of TVM, and the names under which a module and an optimizer have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import dlpack
from tvm import runtime

from topi_ext.spec.geometry import fail

from .export import FLOATS, OP

ALIGNMENT = 64
"""Bytes to which code of TVM expects tensors to be aligned."""


def to_tvm(tensor: torch.Tensor) -> Any:
    """Return a tensor as TVM's, the same memory wherever that is contiguous and aligned."""
    tensor = tensor.detach().resolve_neg().contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return runtime.from_dlpack(tensor)


def to_torch(tensor: Any) -> torch.Tensor:
    """Return a tensor of TVM as PyTorch's: the same memory."""
    return dlpack.from_dlpack(tensor)


def owned(tensor: torch.Tensor) -> Any:
    """Return a copy of a tensor as TVM's, which no other code changes."""
    return to_tvm(tensor.detach().clone(memory_format=torch.contiguous_format))


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, each once: shared ones by their first name.

    Raises
    ------
    ValueError
        One line, where parameters are of another dtype than float32 or float64, of several, or of
        another device than the CPU.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    dtypes = {tensor.dtype for tensor in module.parameters()}
    if len(dtypes) > 1 or not dtypes <= set(FLOATS):
        names = ", ".join(sorted(map(str, dtypes)))
        rule = "all must be float32, or all float64"
        raise fail(OP, f"{type(module).__name__} has parameters of {names}: {rule}")
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise fail(OP, f"{name!r} is on {tensor.device}: it must be on the CPU")
        if tensor.layout is not torch.strided:
            raise fail(OP, f"{name!r} is {tensor.layout}: it must be dense")
    return tensors


def module_state(module: nn.Module, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``module.state_dict()`` with copies of `values` for what the module holds itself."""
    names = {id(tensor): name for name, tensor in tensors_of(module).items()}
    state = module.state_dict(keep_vars=True)
    return {
        key: to_torch(values[names[id(value)]]).clone() if id(value) in names else value
        for key, value in state.items()
    }


def read_module_state(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a ``state_dict`` as TVM's, by the names of :func:`tensors_of`.

    Raises
    ------
    ValueError
        One line with a key that is missing or too many, or a tensor of another shape.
    """
    names = {id(tensor): name for name, tensor in tensors_of(module).items()}
    expected = module.state_dict(keep_vars=True)
    for key in sorted(set(expected) ^ set(state)):
        what = "lacks" if key in expected else "has, and the module lacks,"
        raise fail("load_state_dict", f"the state {what} {key!r}")
    values: dict[str, Any] = {}
    for key, tensor in expected.items():
        name = names.get(id(tensor))
        if name is None:
            continue
        if state[key].shape != tensor.shape:
            shapes = f"{tuple(state[key].shape)}, the module's {tuple(tensor.shape)}"
            raise fail("load_state_dict", f"{key!r} has shape {shapes}")
        values[name] = owned(state[key].to(tensor.dtype))
    return values
