# SPDX-License-Identifier: Apache-2.0
"""The training step of a module: what :func:`relax_ext.training` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm
from torch import nn

from topi_ext.spec.geometry import fail

from ..torch.options import Options
from .graphs import Graphs
from .module import OP, checked, refuse_module, tensors_of
from .optimizer import OwnOptimizer, trained_of


class TrainingStep:
    """A module and its loss as compiled graphs, with weights, buffers and optimizer of its own.

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
        self._clip_norm = clip_norm
        options = Options.of({"target": _llvm(target), "database": database})
        tensors = tensors_of(module)
        self._trained = trained_of(optimizer, tensors)
        refuse_module(module)
        self._values = {name: _owned(tensor) for name, tensor in tensors.items()}
        for name in self._trained:
            self._values[name].requires_grad_()
        # Kept: optimizers know parameters by identity.
        self._tensors = tensors
        own = {id(tensor): self._values[name] for name, tensor in tensors.items()}
        self._own = OwnOptimizer(optimizer, own)
        batch = checked(example)
        self._dtypes = [tensor.dtype for tensor in batch]
        self._graphs = Graphs(module, self._values, options)
        self._graphs.of(batch, train=True)

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
            One line, where the batch does not suit the module, or the optimizer has other
            parameters.
        """
        self._own.check()
        loss, gradients = self._differentiate(batch)
        self._apply(gradients)
        return loss

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
        gradients = dict(zip(self._trained, tensors))
        if add_to is not None:
            others = self._by_name(add_to)
            gradients = {name: others[name] + gradients[name] for name in self._trained}
        return loss, gradients

    def update(self, gradients: Mapping[str, torch.Tensor], scale: float = 1.0) -> None:
        """Update the weights with gradients, as the optimizer does.

        Parameters
        ----------
        gradients : mapping of str to torch.Tensor
            As :meth:`gradients` returns them.
        scale : float, optional
            Factor that is applied first: 1 / n for sums over n batches.
        """
        self._own.check()
        given = self._by_name(gradients)
        with torch.no_grad():
            self._apply([given[name] * scale for name in self._trained])

    def evaluate(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch in ``eval()`` mode; nothing changes.

        It is compiled when it is first called with a shape.
        """
        tensors = self._checked(batch)
        return self._graphs.of(tensors, train=False)(self._values, tensors)[0]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all state, for ``torch.save``.

        Returns
        -------
        dict
            ``"module"`` and ``"optimizer"``: the ``state_dict()`` of each after the same steps in
            PyTorch, which can load them.
        """
        names = {id(tensor): name for name, tensor in tensors_of(self.module).items()}
        state = {
            key: _owned(self._values[names[id(value)]]) if id(value) in names else value
            for key, value in self.module.state_dict(keep_vars=True).items()
        }
        return {"module": state, "optimizer": self._own.state_dict()}

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
        values = self._read(state["module"])
        self._own.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for name, value in values.items():
                self._values[name].copy_(value)

    def to_torch(self) -> nn.Module:
        """Write weights and buffers into the module, and the optimizer's state into the optimizer.

        Returns
        -------
        torch.nn.Module
            The module.
        """
        tensors = tensors_of(self.module)
        with torch.no_grad():
            for name, value in self._values.items():
                tensors[name].copy_(value)
        self.optimizer.load_state_dict(self._own.state_dict())
        return self.module

    def _checked(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        tensors = checked(batch)
        if len(tensors) != len(self._dtypes):
            raise fail(OP, f"a batch has {len(tensors)} tensors, the example {len(self._dtypes)}")
        for i, (tensor, dtype) in enumerate(zip(tensors, self._dtypes)):
            if tensor.dtype is not dtype:
                raise fail(OP, f"argument {i} is {tensor.dtype}, that of the example {dtype}")
        return tensors

    def _differentiate(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[Any]]:
        """Return the loss and the gradients, and keep the changed buffers."""
        tensors = self._checked(batch)
        loss, buffers, gradients = self._graphs.of(tensors, train=True)(self._values, tensors)
        for name, value in buffers.items():
            self._values[name].copy_(value)
        return loss, [gradients[name] for name in self._trained]

    def _apply(self, gradients: Sequence[torch.Tensor]) -> None:
        if self._clip_norm is not None:
            norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
            norm = torch.linalg.vector_norm(torch.stack(norms))
            factor = torch.clamp(self._clip_norm / (norm + 1e-6), max=1.0)
            gradients = [gradient * factor for gradient in gradients]
        self._own.step([self._values[name] for name in self._trained], gradients)

    def _read(self, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a ``state_dict`` of the module by the names of this step."""
        names = {id(tensor): name for name, tensor in tensors_of(self.module).items()}
        expected = self.module.state_dict(keep_vars=True)
        for key in sorted(set(expected) ^ set(state)):
            what = "lacks" if key in expected else "has, and the module lacks,"
            raise fail("load_state_dict", f"the state {what} {key!r}")
        values = {}
        for key, tensor in expected.items():
            if id(tensor) in names:
                values[names[id(tensor)]] = state[key]
                if state[key].shape != tensor.shape:
                    shapes = f"{tuple(state[key].shape)}, the module's {tuple(tensor.shape)}"
                    raise fail("load_state_dict", f"{key!r} has shape {shapes}")
        return values

    def _by_name(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return gradients checked against the parameters."""
        other = sorted(set(gradients) ^ set(self._trained))
        if other:
            what = "lacks" if other[0] in self._trained else "has, and no parameter is called,"
            raise fail(OP, f"gradients: the mapping {what} {other[0]!r}")
        for name in self._trained:
            tensor, value = gradients[name], self._values[name]
            if tensor.shape != value.shape or tensor.dtype is not value.dtype:
                found, expected = (f"{tuple(one.shape)} {one.dtype}" for one in (tensor, value))
                raise fail(OP, f"gradient of {name!r} is {found}, must be {expected}")
        return dict(gradients)


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, in the order of its axes."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _llvm(target: Any) -> Any:
    target = None if target is None else tvm.target.Target(target)
    if target is not None and target.kind.name != "llvm":
        raise fail(OP, f"target {target.kind.name}: training runs on processors, by an llvm target")
    return target
