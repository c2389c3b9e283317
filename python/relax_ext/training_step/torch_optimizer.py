# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the options of an optimizer of ``torch.optim``, read at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from topi_ext.spec.geometry import fail

from ..optimizers import SGD, Adam, Optimizer
from .export import OP
from .state import owned, to_torch


def _sgd(group: Mapping[str, Any]) -> Optimizer:
    return SGD(
        float(group["lr"]),
        float(group["momentum"]),
        float(group["dampening"]),
        float(group["weight_decay"]),
        bool(group["nesterov"]),
        bool(group["maximize"]),
    )


def _adam(group: Mapping[str, Any], decoupled: bool = False) -> Optimizer:
    return Adam(
        float(group["lr"]),
        (float(group["betas"][0]), float(group["betas"][1])),
        float(group["eps"]),
        float(group["weight_decay"]),
        bool(group["amsgrad"]),
        bool(group["maximize"]),
        # Releases of PyTorch that have the option make AdamW of Adam by it.
        decoupled or bool(group.get("decoupled_weight_decay")),
    )


def _adamw(group: Mapping[str, Any]) -> Optimizer:
    return _adam(group, decoupled=True)


RULES: dict[type, Callable[[Mapping[str, Any]], Optimizer]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
}


def rules_of(optimizer: Any) -> list[Optimizer]:
    """Return the rule of each parameter group, with the numbers that the groups have now.

    Raises
    ------
    ValueError
        One line where the optimizer is not of the classes of :data:`RULES`, no subclass either.
    """
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(kind.__name__ for kind in RULES)
        rest = "a gradient function and relax_ext.optimizers serve others"
        name = type(optimizer).__name__
        raise fail(OP, f"optimizer {name} is not known: torch.optim's {known} are; {rest}")
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                raise fail(OP, f"{type(optimizer).__name__} with {option}=True: it must be False")
    return [rule(group) for group in optimizer.param_groups]


def names_of(optimizer: Any, tensors: Mapping[str, torch.Tensor]) -> list[list[str | None]]:
    """Return the names of the parameters of each group, None for those without a gradient.

    Raises
    ------
    ValueError
        One line where a parameter is not one of `tensors`.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}
    groups: list[list[str | None]] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                rule = "the optimizer must be made of the module's parameters"
                raise fail(OP, f"shape {tuple(parameter.shape)} is no parameter of it: {rule}")
        groups.append([names[id(p)] if p.requires_grad else None for p in group["params"]])
    return groups


def read_state(optimizer: Any, rules: Sequence[Optimizer]) -> tuple[list[int], list[Any]]:
    """Return the steps that each group has made, and what the rules keep, copied to TVM.

    Raises
    ------
    ValueError
        One line, where parameters of one group have made different numbers of steps, or a state is
        not one of this optimizer.
    """
    steps: list[int] = []
    slots: list[Any] = []
    for rule, group in zip(rules, optimizer.param_groups):
        trained = [p for p in group["params"] if p.requires_grad]
        states = [optimizer.state.get(parameter, {}) for parameter in trained]
        for parameter, state in zip(trained, states):
            _check_state(rule, parameter, state)
        counts = sorted({_steps(rule, state) for state in states})
        if len(counts) > 1:
            rule_text = "they must have made equally many"
            raise fail(OP, f"parameters of one group have made {counts} steps: {rule_text}")
        steps += counts or [0]
        for parameter, state in zip(trained, states):
            for slot in rule.slots:
                value = state.get(slot)
                slots.append(owned(torch.zeros_like(parameter) if value is None else value))
    return steps, slots


def _check_state(rule: Optimizer, parameter: torch.Tensor, state: Mapping[str, Any]) -> None:
    """Raise unless a rule has made a state, or a parameter has none yet."""
    what = f"the optimizer's state of a parameter of shape {tuple(parameter.shape)}"
    needed = ("step", *rule.slots) if state and isinstance(rule, Adam) else ()
    for key in needed:
        if state.get(key) is None:
            raise fail(OP, f"{what} lacks {key!r}")
    for key in (*rule.slots, "step"):
        value, shape = state.get(key), parameter.shape if key in rule.slots else ()
        if value is not None and torch.as_tensor(value).shape != shape:
            found = tuple(torch.as_tensor(value).shape)
            raise fail(OP, f"{what} has {key!r} of shape {found}: it must be {tuple(shape)}")


def state_dict_of(
    optimizer: Any,
    rules: Sequence[Optimizer],
    groups: Sequence[Sequence[str | None]],
    steps: Sequence[int],
    slots: Sequence[Any],
) -> dict[str, Any]:
    """Return ``optimizer.state_dict()`` with copies of `slots`, ordered as by :func:`read_state`.

    `groups` are those of :func:`names_of`.
    """
    states: dict[int, dict[str, Any]] = {}
    kept = iter(slots)
    index = 0
    for rule, step, group in zip(rules, steps, groups):
        for name in group:
            state = {} if name is None else {s: to_torch(next(kept)).clone() for s in rule.slots}
            if state and isinstance(rule, Adam):
                state["step"] = torch.tensor(float(step))
            if state and step:
                states[index] = state
            index += 1
    return {**optimizer.state_dict(), "state": states}


def _steps(rule: Optimizer, state: Mapping[str, Any]) -> int:
    if isinstance(rule, Adam):
        return int(state.get("step", 0))
    # SGD tells the first step from the others alone.
    return int(state.get("momentum_buffer") is not None)
