# SPDX-License-Identifier: Apache-2.0
"""Modules whose forward returns a scalar loss, and the catalogue that collects them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Trainable = tuple[nn.Module, tuple[Tensor, ...]]
"""A module whose forward returns a loss, and a batch: the inputs of a call."""

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Catalogue(dict[str, Callable[..., Trainable]]):
    """Constructors by name, collected by a decorator; dropout is off, since it draws numbers."""

    def model(self, name: str) -> Callable[[Callable[[], Trainable]], Callable[..., Trainable]]:
        """Register a constructor; weights and batch are drawn from the seed that is given."""

        def add(make: Callable[[], Trainable]) -> Callable[..., Trainable]:
            def made(seed: int = 0) -> Trainable:
                torch.manual_seed(seed)
                module, batch = make()
                for layer in module.modules():
                    if isinstance(layer, DROPOUT):
                        layer.p = 0.0
                return module.train(), batch

            self[name] = made
            return made

        return add


class Loss(nn.Module):
    """``criterion(take(net(*inputs)), target)``; the target is the last input."""

    def __init__(
        self,
        net: nn.Module,
        criterion: Callable[[Tensor, Tensor], Tensor],
        take: Callable[[Any], Tensor] = lambda result: result,
    ) -> None:
        super().__init__()
        self.net, self.criterion, self.take = net, criterion, take

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self.criterion(self.take(self.net(*inputs[:-1])), inputs[-1])

    def result(self, *inputs: Tensor) -> Tensor:
        """Return what the network gives, without a change of its buffers."""
        with torch.no_grad():
            return self.take(copy.deepcopy(self.net).train()(*inputs))


class InBfloat16(nn.Module):
    """The loss of a module by ``torch.autocast``: products in bfloat16, weights in float32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the loss of a batch, in float32."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(*inputs).float()


def regression(
    net: nn.Module, *inputs: Tensor, criterion: Any = F.mse_loss, **how: Any
) -> Trainable:
    """Compare the result with random numbers of its shape."""
    module = Loss(net, criterion, **how)
    return module, (*inputs, torch.randn_like(module.result(*inputs)))


def absolute(net: nn.Module, *inputs: Tensor, **how: Any) -> Trainable:
    """Return the same by absolute differences."""
    return regression(net, *inputs, criterion=F.l1_loss, **how)


def classification(net: nn.Module, *inputs: Tensor, **how: Any) -> Trainable:
    """Cross entropy against random classes; channels of the result are classes."""
    module = Loss(net, F.cross_entropy, **how)
    shape = module.result(*inputs).shape
    return module, (*inputs, torch.randint(0, shape[1], (shape[0], *shape[2:])))


def detection(net: nn.Module, *inputs: Tensor) -> Trainable:
    """Binary cross entropy of logits against random zeros and ones."""
    module = Loss(net, F.binary_cross_entropy_with_logits)
    return module, (*inputs, (torch.rand_like(module.result(*inputs)) > 0.5).float())
