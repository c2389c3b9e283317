# SPDX-License-Identifier: Apache-2.0
"""PyTorch: a module as a function of numbered tensors, and the reasons to refuse one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from topi_ext.spec.geometry import fail

OP = "training"
"""The name that errors begin with."""

FLOATS = (torch.float32, torch.float64)


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


def refuse_module(module: nn.Module) -> None:
    """Raise if the forward pass of a module in training mode cannot be trained; name the reason.

    Raises
    ------
    ValueError
        One line with the submodule and what would work.
    """
    for name, child in module.named_modules():
        label = f"{type(child).__name__} {name!r}"
        is_norm = isinstance(child, nn.modules.batchnorm._NormBase)
        if is_norm and child.training and child.track_running_stats and child.momentum is None:
            raise fail(OP, f"{label} has momentum=None: give it a number")


@contextmanager
def modes(module: nn.Module, training: Mapping[str, bool] | None) -> Iterator[None]:
    """Give every submodule the mode that `training` has by its name, ``eval()`` where it is None;
    the modes of before when the block ends."""
    before = {name: child.training for name, child in module.named_modules()}
    try:
        for name, child in module.named_modules():
            child.training = False if training is None else training.get(name, child.training)
        yield
    finally:
        for name, child in module.named_modules():
            child.training = before[name]


class Loss(nn.Module):
    """The loss of a module, for tensors of its state that PyTorch puts in place of its own.

    Parameters
    ----------
    module : torch.nn.Module
    state : mapping of str to torch.Tensor
        Its parameters and buffers by name; parameters of this module are those with a gradient.
    """

    def __init__(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        numbers = {id(tensor): number for number, tensor in enumerate(tensors_of(module).values())}
        self._names = list(state)
        self.assigned: list[str] = []
        for number, tensor in enumerate(state.values()):
            if tensor.requires_grad:
                self.register_parameter(str(number), nn.Parameter(tensor))
            else:
                self.register_buffer(str(number), tensor)
        # In tuples: no submodules, whose parameters would be those of this module.
        self._called = (module,)
        self._places: tuple[tuple[MutableMapping[str, Any], str, int], ...] = tuple(
            (tensors, key, numbers[id(tensor)])
            for child in module.modules()
            for tensors in (child._parameters, child._buffers)
            for key, tensor in tensors.items()
            if tensor is not None
        )

    def name_of(self, number: str) -> str:
        """Return the name that a tensor has in the module."""
        return self._names[int(number)]

    def forward(self, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the loss of a batch, and the buffers `assigned`; change others in place."""
        state = {**self._parameters, **self._buffers}
        tensors = [state[str(number)] for number in range(len(state))]
        before = [place[key] for place, key, _ in self._places]
        attributes = _attributes(self._called[0])
        try:
            for place, key, number in self._places:
                place[key] = tensors[number]
            loss = self._called[0](*batch)
            assigned = {
                str(number): place[key].detach()
                for place, key, number in self._places
                if place[key] is not tensors[number]
            }
        finally:
            for (place, key, _), tensor in zip(self._places, before):
                place[key] = tensor
            _refuse_assignments(self._called[0], attributes)
        self._refuse(loss)
        self.assigned = list(assigned)
        return (loss, *assigned.values())

    def _refuse(self, loss: Any) -> None:
        """Raise if the result is not a loss of all parameters."""
        called = f"{type(self._called[0]).__name__}.forward"
        if isinstance(loss, (tuple, list, dict)):
            raise fail(OP, f"{called} returns {len(loss)} values: it must return the loss alone")
        if not isinstance(loss, torch.Tensor):
            raise fail(OP, f"{called} returns no tensor: it must return the loss, a scalar tensor")
        if loss.shape != ():
            rule = "it must return the loss, a scalar such as a mean"
            raise fail(OP, f"{called} returns shape {tuple(loss.shape)}: {rule}")
        if loss.dtype not in FLOATS:
            raise fail(OP, f"{called} returns {loss.dtype}: the loss must be float32 or float64")
        if not torch.is_grad_enabled():
            return
        reached = _functions(loss)
        for number, parameter in self.named_parameters():
            if get_gradient_edge(parameter).node not in reached:
                rule = "set requires_grad=False, or leave it out of the optimizer"
                name = self.name_of(number)
                raise fail(OP, f"the loss does not depend on parameter {name!r}: {rule}")


def _functions(loss: torch.Tensor) -> set[Any]:
    """Return the nodes of PyTorch's graph to which gradients of a loss flow."""
    found, left = set[Any](), [loss.grad_fn]
    while left:
        function = left.pop()
        if function is not None and function not in found:
            found.add(function)
            left += [following for following, _ in function.next_functions]
    return found


def _attributes(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Return the tensors that submodules hold as plain attributes."""
    return {
        (name, key): value
        for name, child in module.named_modules()
        for key, value in vars(child).items()
        if isinstance(value, torch.Tensor)
    }


def _refuse_assignments(module: nn.Module, before: Mapping[tuple[str, str], Any]) -> None:
    """Raise for tensors that the forward pass has left in attributes, and remove them."""
    assigned = []
    for (name, key), value in _attributes(module).items():
        if before.get((name, key)) is value:
            continue
        assigned.append(f"{name}.{key}".lstrip("."))
        attributes = vars(module.get_submodule(name))
        del attributes[key]
        if (name, key) in before:
            attributes[key] = before[name, key]
    if assigned:
        raise fail(OP, f"forward assigns a tensor to {assigned[0]}: register it as a buffer")


def checked(batch: object) -> list[torch.Tensor]:
    """Return a batch as a list of contiguous tensors, each the same memory if it is contiguous.

    Raises
    ------
    ValueError
        One line with an argument that is no dense tensor on the CPU, or has no element.
    """
    if isinstance(batch, torch.Tensor) or not isinstance(batch, Sequence):
        rule = "it must be a tuple of tensors, the arguments of forward"
        raise fail(OP, f"example is a {type(batch).__name__}: {rule}")
    for i, tensor in enumerate(batch):
        if not isinstance(tensor, torch.Tensor):
            rule = "it must be a tensor; others belong into the module"
            raise fail(OP, f"argument {i} is a {type(tensor).__name__}: {rule}")
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            what = f"{tensor.layout} on {tensor.device}"
            raise fail(OP, f"argument {i} is {what}: it must be dense and on the CPU")
        if not tensor.numel():
            raise fail(OP, f"argument {i} has shape {tuple(tensor.shape)}: it must not be empty")
    return [tensor.detach().contiguous() for tensor in batch]
