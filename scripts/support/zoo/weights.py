# SPDX-License-Identifier: Apache-2.0
"""Random weights under which every layer matters, and modules that return tensors alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]
"""A model and the inputs of one call."""
Make = Callable[[], Made]
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
"""How transformers computes attention."""


class Catalog(dict[str, Make]):
    """Constructors by name, gathered by a decorator."""

    def model(self, name: str) -> Callable[[Make], Make]:
        def add(make: Make) -> Make:
            self[name] = make
            return make

        return add


class Call(nn.Module):
    """A model called in another way: with other arguments, or for one of its results."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.model, *inputs)


def field(model: nn.Module, name: str) -> Call:
    """Return a model that returns one field of its result."""
    return Call(model, lambda model, *inputs: getattr(model(*inputs), name))


def first(model: nn.Module) -> Call:
    """Return a model of diffusers that returns the tensor of its result."""
    return Call(model, lambda model, *inputs: model(*inputs, return_dict=False)[0])


def draw(model: nn.Module) -> None:
    """Draw weights so that activations are of order one, as in a trained model.

    Weights get variance ``2 / fan_in`` (He et al., 2015); what packages start with one number, as
    scales and biases are, keeps it, and varies by 0.1 around it. The packages' own initial values
    are ten to a thousand times as small, and zero in many biases and last layers: results of
    1e-7 show errors of TVM's tanh, and hide those of every layer that is multiplied by zero.
    """
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.is_floating_point() or not weight.numel():
                continue
            is_one_number = bool((weight == weight.flatten()[0]).all())
            if weight.dim() < 2 or is_one_number:
                weight.add_(0.1 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * math.sqrt(2 / weight[0].numel()))
        for name, statistic in model.named_buffers():
            if name.endswith("running_mean"):
                statistic.copy_(0.1 * torch.randn_like(statistic))
            elif name.endswith("running_var"):
                statistic.copy_(0.5 + torch.rand_like(statistic))
