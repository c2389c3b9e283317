# SPDX-License-Identifier: Apache-2.0
"""A small convolutional autoencoder, trained twice: by PyTorch, and by TVM alone.

Both start from the same weights and see the same batches. In TVM, ``relax.transform.Gradient``
differentiates the exported training loss, and ``relax.training``'s optimizer updates the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LEARNING_RATE = 2.0
MOMENTUM = 0.9


class Autoencoder(nn.Module):
    """16 x 16 pixels to a few numbers and back, by strided and transposed convolutions.

    The last two layers need ``output_padding``: without it, 4 x 4 would become 13 x 13.
    """

    def __init__(self, width: int = 16, code: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(2 * width, code, 4),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(code, 2 * width, 4),
            nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 3, stride=2, padding=1, output_padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(width, 1, 3, stride=2, padding=1, output_padding=1),
        )
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                _init(layer)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.decoder(self.encoder(x)))


def _init(layer: nn.Conv2d | nn.ConvTranspose2d) -> None:
    """Keep the size of the activations (He et al., 2015).

    Every output of a transposed convolution meets one in ``stride`` of the taps per axis.
    """
    inputs = layer.in_channels * math.prod(layer.kernel_size)
    if isinstance(layer, nn.ConvTranspose2d):
        inputs //= layer.kernel_size[0] ** 2 if layer.stride[0] == 1 else math.prod(layer.stride)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / inputs))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Loss(nn.Module):
    """Mean squared error of the reconstruction."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        difference = self.model(x) - x
        return (difference * difference).mean()


@dataclass(frozen=True)
class History:
    """Losses of every step, and reconstructions after the last."""

    losses: np.ndarray
    reconstructions: np.ndarray


def digits(count: int | None = None) -> Tensor:
    """Scikit-learn's handwritten digits, 8 x 8 smoothed to 16 x 16, in [0, 1]: (n, 1, 16, 16)."""
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().images[:count]).float()[:, None] / 16
    return nn.functional.interpolate(images, scale_factor=2, mode="bilinear", align_corners=False)


def batches(data: Tensor, size: int, steps: int, seed: int = 0) -> list[Tensor]:
    """Random batches, the same for everyone who asks with the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [
        data[torch.randperm(len(data), generator=generator)[:size]].contiguous()
        for _ in range(steps)
    ]


Step = Callable[[], None]


def train_torch(
    model: nn.Module, data: list[Tensor], shown: Tensor, tick: Step = lambda: None
) -> History:
    """Train ``model`` in place by PyTorch."""
    loss_of = Loss(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tick()
    with torch.no_grad():
        return History(np.array(losses), model(shown).numpy())


def training_module(model: nn.Module, batch: Tensor) -> tuple[Any, list[str], Any]:
    """Relax module that trains ``model``, the names of its weights in order, the first state.

    ``main_adjoint(x, *weights)`` gives the loss and the tuple of gradients;
    ``update(weights, gradients, state)`` gives new weights and a new state.
    """
    from tvm import relax
    from tvm.relax.training.optimizer import MomentumSGD

    from relax_ext.cli.torch_model import to_relax

    exported = torch.export.export(Loss(model), (batch,))
    mod = to_relax(exported, keep_params=True)
    weights = list(mod["main"].params[1:])
    mod = relax.transform.Gradient("main", weights)(mod)
    optimizer = MomentumSGD(LEARNING_RATE, MOMENTUM).init(weights)
    mod["update"] = optimizer.get_function().with_attr("global_symbol", "update")
    origin = exported.graph_signature.inputs_to_parameters
    return mod, [origin[w.name].removeprefix("model.") for w in weights], optimizer.state


def train_tvm(
    model: nn.Module, data: list[Tensor], shown: Tensor, target: Any, tick: Step = lambda: None
) -> History:
    """Train by TVM from the weights of ``model``, which gets the result at the end.

    A ``target`` of kind ``cuda`` trains on the first GPU.
    """
    import tvm
    from tvm import relax

    import relax_ext

    mod, names, state = training_module(model, data[0])
    pipeline = relax_ext.pipeline(target)
    device = tvm.cuda() if tvm.target.Target(target).kind.name == "cuda" else tvm.cpu()
    vm = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline), device)
    values = dict(model.named_parameters())
    weights = [tvm.runtime.tensor(values[n].detach().numpy(), device) for n in names]
    state = [tvm.runtime.tensor(one.numpy(), device) for one in state]
    losses = []
    for batch in data:
        loss, gradients = vm["main_adjoint"](tvm.runtime.tensor(batch.numpy(), device), *weights)
        weights, state = vm["update"](list(weights), gradients, state)
        losses.append(float(loss.numpy()))
        tick()
    with torch.no_grad():
        for name, weight in zip(names, weights):
            values[name].copy_(torch.from_numpy(weight.numpy()))
        return History(np.array(losses), model(shown).numpy())
