# SPDX-License-Identifier: Apache-2.0
"""An optimizer of PyTorch that updates tensors of a step in place of a module's parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from topi_ext.spec.geometry import fail

from .module import OP


class OwnOptimizer:
    """A copy of an optimizer: with its rule and the numbers of its groups, and tensors of its own.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        One of ``torch.optim``, whose groups are read at every step.
    own : mapping of int to torch.Tensor
        The tensor that takes the place of a parameter, by the ``id`` of the parameter.

    Raises
    ------
    ValueError
        One line with what is wrong with the optimizer.
    """

    def __init__(self, optimizer: Any, own: Mapping[int, torch.Tensor]) -> None:
        self._other = optimizer
        self._parameters = _parameters(optimizer)
        self._own = own
        self._copy = copy.copy(optimizer)
        self._copy.param_groups = [
            {**group, "params": [own[id(parameter)] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.read()

    def read(self) -> None:
        """Continue from the state of the other optimizer."""
        self._copy.state = defaultdict(dict)
        for parameter, state in self._other.state.items():
            if id(parameter) in self._own:
                self._copy.state[self._own[id(parameter)]] = _copied(state)

    def check(self) -> None:
        """Raise if the other optimizer has other parameters than at first."""
        if _parameters(self._other) != self._parameters:
            rule = "call relax_ext.training again"
            raise fail(OP, f"the optimizer has changed in parameters or requires_grad: {rule}")

    def step(self, trained: Sequence[Any], gradients: Sequence[torch.Tensor]) -> None:
        """Update tensors by their gradients, as the other optimizer would."""
        for group, own in zip(self._other.param_groups, self._copy.param_groups):
            own.update((key, value) for key, value in group.items() if key != "params")
            if "fused" in group and group["fused"] is None and not group["foreach"]:
                own["fused"] = True  # the quickest, of the same values
        for parameter, gradient in zip(trained, gradients):
            parameter.grad = gradient.contiguous()
        self._copy.step()
        for parameter in trained:
            parameter.grad = None
        # As optimizer.step() sets it: schedulers warn where no step has been made.
        self._other._opt_called = True

    def state_dict(self) -> dict[str, Any]:
        """Return the ``state_dict()`` that the other optimizer would have, of copies."""
        states = {key: _copied(state) for key, state in self._copy.state_dict()["state"].items()}
        return {**self._other.state_dict(), "state": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let both optimizers continue from a state; where it is refused, from that of before.

        Raises
        ------
        ValueError
            One line, where the state is not one of this optimizer.
        """
        before = self._other.state_dict()
        try:
            self._other.load_state_dict(state)
            self.check()
            for parameter, state in self._other.state.items():
                own = self._own[id(parameter)]
                _check_state(own, state, self._copy.state.get(own, {}))
        except Exception as error:
            self._other.load_state_dict(before)
            if isinstance(error, KeyError):  # PyTorch's own
                raise fail("load_state_dict", f"the optimizer's state lacks {error}") from error
            raise
        self.read()


def trained_of(optimizer: Any, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the parameters of an optimizer that have a gradient.

    Raises
    ------
    ValueError
        One line where the optimizer is not one of ``torch.optim`` that suits a step, or has a
        parameter that is not one of `tensors`.
    """
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim.") or name in ("LBFGS", "SparseAdam"):
        rule = "those of torch.optim are, without LBFGS and SparseAdam"
        raise fail(OP, f"optimizer {name} is not known: {rule}")
    names = {id(tensor): name for name, tensor in tensors.items()}
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                raise fail(OP, f"{name} with {option}=True: it must be False")
        for parameter in group["params"]:
            if id(parameter) not in names:
                rule = "the optimizer must be made of the module's parameters"
                raise fail(OP, f"shape {tuple(parameter.shape)} is no parameter of it: {rule}")
    trained = [names[one] for group in _parameters(optimizer) for one, has in group if has]
    if not trained:
        raise fail(OP, "no parameter of the optimizer has requires_grad=True")
    return trained


def _parameters(optimizer: Any) -> list[list[tuple[int, bool]]]:
    """Return the identity of each parameter by groups, and whether it has a gradient."""
    groups = optimizer.param_groups
    return [[(id(one), one.requires_grad) for one in group["params"]] for group in groups]


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of a parameter with copies of its tensors, in the order of their axes."""
    return {
        key: value.clone(memory_format=torch.contiguous_format)
        if isinstance(value, torch.Tensor)
        else copy.deepcopy(value)
        for key, value in state.items()
    }


def _check_state(
    parameter: torch.Tensor, state: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    """Raise unless a state of a parameter has what the optimizer has had of it so far."""
    for key, value in known.items():
        if not isinstance(value, torch.Tensor):
            continue
        found = state.get(key)
        what = f"the optimizer's state of a parameter of shape {tuple(parameter.shape)}"
        if found is None:
            raise fail(OP, f"{what} lacks {key!r}")
        if torch.as_tensor(found).shape != value.shape:
            shape = tuple(torch.as_tensor(found).shape)
            raise fail(OP, f"{what} has {key!r} of shape {shape}: it must be {tuple(value.shape)}")
