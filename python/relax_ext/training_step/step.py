# SPDX-License-Identifier: Apache-2.0
"""The training step of a module: what :func:`relax_ext.training` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from torch import nn

from topi_ext.compat import dtype_name, relax, tensor_type
from topi_ext.notices import warn_once
from topi_ext.spec.geometry import fail
from topi_ext.target import host_target

from .. import optimizers
from ..executable_cache import compiled
from . import state as states
from . import torch_optimizer
from .checks import Check
from .differentiate import differentiated, imported
from .draws import Draw
from .export import OP, export, modes, refuse_module

R = relax()


MANY_SHAPES = 6
"""Compiled losses, for training and evaluation together, at which there is a warning."""

_RULE = (
    "each is compiled for itself: pad batches, or use "
    'torch.compile(module, backend="tvm_conv"), which compiles for all sizes'
)


@dataclass(frozen=True)
class _Loss:
    """The compiled loss for batches of given shapes, with or without gradients."""

    run: Any
    changed: tuple[str, ...]
    draws: tuple[Draw, ...]
    check: Check


class TrainingStep:
    """A module, its loss and its optimizer as compiled functions, and their state in TVM.

    Created by :func:`relax_ext.training`.  A step belongs to one thread.

    Attributes
    ----------
    module : torch.nn.Module
        Unchanged until :meth:`to_torch` writes the weights and buffers of this step into it.
    optimizer : torch.optim.Optimizer
        Its groups give the rates of every update.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Sequence[torch.Tensor],
        optimizer: Any,
        target: Any = None,
        clip_norm: float | None = None,
        database: Any = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise fail(OP, f"module={type(module).__name__} must be a torch.nn.Module")
        self.module = module
        self.optimizer = optimizer
        self._target = _llvm(target)
        self._database = database
        rules = torch_optimizer.rules_of(optimizer)
        # Kept: optimizers know parameters by identity.
        self._tensors = tensors = states.tensors_of(module)
        self._groups = torch_optimizer.names_of(optimizer, tensors)
        self._trained = [name for group in self._groups for name in group if name is not None]
        if not self._trained:
            raise fail(OP, "no parameter of the optimizer has requires_grad=True")
        self._rules = rules
        refuse_module(module)
        self._modes = {name: child.training for name, child in module.named_modules()}
        batch = _tensors(example)
        self._dtypes = [tensor.dtype for tensor in batch]
        self._variables = [self._variables_of(group) for group in self._groups]
        update = optimizers.update_function(list(zip(rules, self._variables)), clip_norm)
        self._losses: dict[tuple[Any, ...], _Loss] = {}
        self._loss(batch, train=True)
        self._update = self._compiled(tvm.IRModule({"update": update}))["update"]
        self._values = {name: states.owned(tensor) for name, tensor in tensors.items()}
        self._steps, self._slots = torch_optimizer.read_state(optimizer, rules)

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        """Make one step: forward, backward, update.

        Parameters
        ----------
        *batch : torch.Tensor
            Arguments of ``module.forward``, on the CPU; read where they are, without a copy.

        Returns
        -------
        torch.Tensor
            The loss before the update, a scalar.

        Raises
        ------
        ValueError
            One line, where the batch does not suit the module, or the optimizer has changed in more
            than its numbers.
        """
        groups = self._current_groups()
        loss, gradients = self._differentiate(batch)
        self._apply(groups, gradients, 1.0)
        return states.to_torch(loss)

    def gradients(
        self, *batch: torch.Tensor, add_to: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of a batch and the gradients, without an update.

        The forward pass changes buffers, such as running statistics, as PyTorch's does.

        Parameters
        ----------
        *batch : torch.Tensor
        add_to : mapping of str to torch.Tensor, optional
            Gradients of other batches, which are added.

        Returns
        -------
        loss : torch.Tensor
            A scalar.
        gradients : dict of str to torch.Tensor
            By name of the parameter.
        """
        loss, tensors = self._differentiate(batch)
        gradients = {name: states.to_torch(t) for name, t in zip(self._trained, tensors)}
        if add_to is not None:
            others = self._by_name(add_to)
            gradients = {name: others[name] + gradients[name] for name in self._trained}
        return states.to_torch(loss), gradients

    def update(self, gradients: Mapping[str, torch.Tensor], scale: float = 1.0) -> None:
        """Update the weights with gradients, as the optimizer does.

        Parameters
        ----------
        gradients : mapping of str to torch.Tensor
            As :meth:`gradients` returns them.
        scale : float, optional
            Factor that is applied first: 1 / n for sums over n batches.
        """
        groups = self._current_groups()
        given = self._by_name(gradients)
        self._apply(groups, [states.to_tvm(given[name]) for name in self._trained], scale)

    def evaluate(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch in ``eval()`` mode; nothing changes.

        It is compiled when it is first called with a shape.
        """
        loss = self._loss(self._checked(batch), train=False)
        result = self._run(loss, batch)
        return states.to_torch(result[-1] if loss.changed else result)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all state, for ``torch.save``.

        Returns
        -------
        dict
            ``"module"`` and ``"optimizer"``: the ``state_dict()`` of each after the same steps in
            PyTorch, which can load them.
        """
        packed = torch_optimizer.state_dict_of(
            self.optimizer, self._rules, self._groups, self._steps, self._slots
        )
        return {"module": states.module_state(self.module, self._values), "optimizer": packed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`, or from PyTorch's under the same two keys.

        Raises
        ------
        ValueError
            If the state is that of another module or optimizer.
        """
        if set(state) != {"module", "optimizer"}:
            keys = ", ".join(map(repr, sorted(state)))
            rule = "it must have 'module' and 'optimizer', the state_dict() of each"
            raise fail("load_state_dict", f"the state has {keys}: {rule}")
        values = states.read_module_state(self.module, state["module"])
        before = self.optimizer.state_dict()
        try:
            self.optimizer.load_state_dict(state["optimizer"])
            rules = [rule for rule, _ in self._current_groups()]
            steps, slots = torch_optimizer.read_state(self.optimizer, rules)
        except Exception as error:
            self.optimizer.load_state_dict(before)
            if isinstance(error, KeyError):  # PyTorch's own
                raise fail("load_state_dict", f"the optimizer's state lacks {error}") from error
            raise
        self._steps, self._slots = steps, slots
        self._values.update(values)

    def to_torch(self) -> nn.Module:
        """Write weights and buffers into the module, and the optimizer's state into the optimizer.

        Returns
        -------
        torch.nn.Module
            The module.
        """
        packed = self.state_dict()["optimizer"]
        tensors = states.tensors_of(self.module)
        with torch.no_grad():
            for name, value in self._values.items():
                tensors[name].copy_(states.to_torch(value))
        self.optimizer.load_state_dict(packed)
        return self.module

    def _checked(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        tensors = _tensors(batch)
        if len(tensors) != len(self._dtypes):
            raise fail(OP, f"a batch has {len(tensors)} tensors, the example {len(self._dtypes)}")
        for i, (tensor, dtype) in enumerate(zip(tensors, self._dtypes)):
            if tensor.dtype is not dtype:
                raise fail(OP, f"argument {i} is {tensor.dtype}, that of the example {dtype}")
        return tensors

    def _loss(self, batch: Sequence[torch.Tensor], train: bool) -> _Loss:
        """Return the compiled loss for the shapes of a batch."""
        key = (train, *(tuple(tensor.shape) for tensor in batch))
        if key not in self._losses:
            with modes(self.module, self._modes if train else None):
                exported = export(self.module, batch, states.tensors_of(self.module))
            module = imported(exported)
            if train:
                names = [*exported.inputs, *states.tensors_of(self.module)]
                module = differentiated(module, names, self._trained)
            run = self._compiled(module)["main_adjoint" if train else "main"]
            self._losses[key] = _Loss(run, exported.changed, exported.draws, exported.check)
            if len(self._losses) == MANY_SHAPES:
                warn_once(f"{OP}: {MANY_SHAPES} shapes of batches, {_RULE}")
        return self._losses[key]

    def _compiled(self, module: Any) -> Any:
        executable = compiled(module, self._target, self._database)
        return R.VirtualMachine(executable, tvm.cpu())

    def _variables_of(self, group: Sequence[str | None]) -> list[Any]:
        """Return Relax variables for the trained parameters of a group."""

        def variable(tensor: torch.Tensor) -> Any:
            shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            return R.Var("weight", tensor_type(shape, dtype, len(shape)))

        return [variable(self._tensors[name]) for name in group if name is not None]

    def _current_groups(self) -> list[tuple[Any, Any]]:
        """Return the rules with the numbers that the optimizer has now, and their variables."""
        rules = torch_optimizer.rules_of(self.optimizer)
        groups = torch_optimizer.names_of(self.optimizer, self._tensors)
        same = all(new.structure == old.structure for new, old in zip(rules, self._rules))
        if not same or groups != self._groups:
            what = "parameters, requires_grad, or which of its options are zero"
            raise fail(OP, f"the optimizer has changed in {what}: call relax_ext.training again")
        return list(zip(rules, self._variables))

    def _run(self, loss: _Loss, batch: Sequence[torch.Tensor]) -> Any:
        loss.check(batch)
        inputs = [states.to_tvm(tensor) for tensor in batch]
        numbers = [states.to_tvm(draw()) for draw in loss.draws]
        return loss.run(*inputs, *self._values.values(), *numbers)

    def _differentiate(self, batch: Sequence[torch.Tensor]) -> tuple[Any, list[Any]]:
        """Return the loss and the gradients, and keep the changed buffers."""
        loss = self._loss(self._checked(batch), train=True)
        result, gradients = self._run(loss, batch)
        if not loss.changed:
            return result, list(gradients)
        *changed, value = result
        self._values.update(zip(loss.changed, changed))
        return value, list(gradients)

    def _apply(self, groups: Sequence[Any], gradients: Sequence[Any], scale: float) -> None:
        steps = [step + 1 for step in self._steps]
        weights = [self._values[name] for name in self._trained]
        numbers = optimizers.numbers(groups, steps, scale)
        new, slots = self._update(weights, list(gradients), self._slots, numbers)
        self._values.update(zip(self._trained, new))
        self._slots, self._steps = list(slots), steps
        # As optimizer.step() sets it: schedulers warn where no step has been made.
        self.optimizer._opt_called = True

    def _by_name(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return gradients checked against the parameters."""
        other = sorted(set(gradients) ^ set(self._trained))
        if other:
            what = "lacks" if other[0] in self._trained else "has, and no parameter is called,"
            raise fail(OP, f"gradients: the mapping {what} {other[0]!r}")
        for name in self._trained:
            tensor, value = gradients[name], self._values[name]
            expected = tuple(map(int, value.shape)), dtype_name(value.dtype)
            if (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) != expected:
                found = f"{tuple(tensor.shape)} {tensor.dtype}"
                raise fail(OP, f"gradient of {name!r} is {found}, must be {expected}")
        return dict(gradients)


def _llvm(target: Any) -> Any:
    target = host_target() if target is None else tvm.target.Target(target)
    if target.kind.name != "llvm":
        raise fail(OP, f"target {target.kind.name}: training runs on processors, by an llvm target")
    return target


def _tensors(batch: object) -> list[torch.Tensor]:
    """Return a batch as a list, of dense tensors on the CPU."""
    if isinstance(batch, torch.Tensor) or not isinstance(batch, (list, tuple)):
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
    return list(batch)
