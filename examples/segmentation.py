# SPDX-License-Identifier: Apache-2.0
"""A U-Net with batch norm that finds handwritten digits under noise.

It is trained by PyTorch, by ``relax_ext.training`` and by ``torch.compile``, from the same weights
and on the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import autoencoder
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATE = 2e-3
NOISE = 0.6
"""Standard deviation of what is added to pixels between 0 and 1."""
INK = 0.35
"""Brightness from which on a pixel belongs to the digit."""


class UNet(nn.Module):
    """16 x 16 pixels to a score for each: two levels, joined by skip connections."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def block(ins: int, outs: int) -> nn.Sequential:
            def layers() -> Iterator[nn.Module]:
                for channels in (ins, outs):
                    yield nn.Conv2d(channels, outs, 3, padding=1, bias=False)
                    yield nn.BatchNorm2d(outs)
                    yield nn.ReLU()

            return nn.Sequential(*layers())

        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList([block(1, width), block(width, 2 * width)])
        self.middle = block(2 * width, 4 * width)
        widths = (2 * width, width)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in widths)
        self.joined = nn.ModuleList(block(2 * n, n) for n in widths)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the score of each pixel; above 0 it belongs to the digit."""
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = self.pool(skips[-1])
        x = self.middle(x)
        for up, block in zip(self.ups, self.joined):
            x = block(torch.cat([up(x), skips.pop()], 1))
        return self.last(x)


class Loss(nn.Module):
    """Binary cross entropy between scores and the pixels of the digit."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return F.binary_cross_entropy_with_logits(self.model(x), target)


@dataclass(frozen=True)
class History:
    """Losses of every step, and the digits that were found after the last."""

    losses: np.ndarray
    found: np.ndarray


def noisy(images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return images with noise, and one where there is a digit."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator)
    return (images + NOISE * noise).contiguous(), (images > INK).float()


def batches(size: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Random batches of noisy digits, the same in every run."""
    chosen = autoencoder.batches(autoencoder.digits(), size, steps)
    return [noisy(images, number) for number, images in enumerate(chosen)]


def train_torch(
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    shown: Tensor,
    tick: Callable[[], Any],
    backend: str | None = None,
) -> History:
    """Train ``model`` in place by PyTorch, or by this backend of ``torch.compile``."""
    module: Any = Loss(model).train()
    if backend is not None:
        import relax_ext.torch  # noqa: F401 (registers tvm_conv)

        module = torch.compile(module, backend=backend)
    optimizer = torch.optim.Adam(module.parameters(), RATE)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tick()
    return History(np.array(losses), found(model, shown))


def train_tvm(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], shown: Tensor, tick: Callable[[], Any]
) -> History:
    """Train ``model`` by TVM; weights and running statistics are written back at the end."""
    import relax_ext

    module = Loss(model).train()
    step = relax_ext.training(module, data[0], torch.optim.Adam(module.parameters(), RATE))
    losses = []
    for batch in data:
        losses.append(float(step(*batch)))
        tick()
    step.to_torch()
    return History(np.array(losses), found(model, shown))


def found(model: nn.Module, images: Tensor) -> np.ndarray:
    """Return the probability of each pixel to belong to a digit."""
    with torch.no_grad():
        return torch.sigmoid(copy.deepcopy(model).eval()(images)).numpy()
