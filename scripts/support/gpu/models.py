# SPDX-License-Identifier: Apache-2.0
"""Whole models of a run on a GPU, written with ``torch.nn`` alone, and their inputs.

The machine with the GPU builds them again, so bundles contain no weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from models import DECODERS, UNet, calibrated

EMBEDDED = 256
"""Numbers that describe a step of diffusion."""


class Residual(nn.Module):
    """Two convolutions with group norms, and the step of diffusion added between them."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, ins), nn.SiLU(), nn.Conv2d(ins, outs, 3, 1, 1))
        self.step = nn.Linear(EMBEDDED, outs)
        self.second = nn.Sequential(
            nn.GroupNorm(8, outs), nn.SiLU(), nn.Conv2d(outs, outs, 3, 1, 1)
        )
        self.skip = nn.Conv2d(ins, outs, 1) if ins != outs else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Return x and what the block adds to it."""
        h = self.first(x) + self.step(F.silu(step))[:, :, None, None]
        return self.skip(x) + self.second(h)


class Attention(nn.Module):
    """Attention of all pixels to all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.read, self.write = (nn.Linear(channels, n * channels) for n in (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x and the values that it attends to."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.read(pixels).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
        return x + self.write(scores @ v).transpose(1, 2).reshape(x.shape)


class Diffusion(nn.Module):
    """U-Net that removes noise (Ho et al., 2020), with attention at the lowest resolution."""

    def __init__(self, widths: Sequence[int] = (64, 128, 256)) -> None:
        super().__init__()
        a, b, c = widths
        self.first = nn.Conv2d(3, a, 3, 1, 1)
        self.down = nn.ModuleList([Residual(a, a), Residual(a, b)])
        self.shrink = nn.ModuleList([nn.Conv2d(n, n, 3, 2, 1) for n in (a, b)])
        self.middle = nn.ModuleList([Residual(b, c), Residual(c, c)])
        self.attention = Attention(c)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(n, n, 4, 2, 1) for n in (c, b)])
        self.up = nn.ModuleList([Residual(c + b, b), Residual(b + a, a)])
        self.last = nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, 3, 3, 1, 1))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Return the noise in x."""
        x, skips = self.first(x), []
        for block, shrink in zip(self.down, self.shrink):
            skips.append(block(x, step))
            x = shrink(skips[-1])
        x = self.attention(self.middle[0](x, step))
        x = self.middle[1](x, step)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), skips.pop()], 1), step)
        return self.last(x)


def layer() -> nn.Module:
    """Return the smallest decoder: if it fails, so does the rest."""
    return nn.Sequential(nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU())


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "one layer": (layer, ((1, 8, 8, 8),)),
    **{name: (constructor, (shape,)) for name, (constructor, shape) in DECODERS.items()},
    "diffusion U-Net": (Diffusion, ((1, 3, 64, 64), (1, EMBEDDED))),
    "large U-Net": (lambda: UNet((64, 128, 256, 512, 1024)), ((1, 1, 256, 256),)),
}
"""Name: constructor, and shapes of the inputs for a batch of one."""


def make(name: str, batch: int, dtype: str) -> tuple[nn.Module, list[Tensor]]:
    """Return a model with random weights, ready for inference, and its inputs."""
    constructor, shapes = MODELS[name]
    torch.manual_seed(0)
    model = constructor()
    inputs = [torch.randn(batch, *shape[1:]) for shape in shapes]
    kind = getattr(torch, dtype)
    calibrated(model, *(one[:1] for one in inputs))
    return model.to(kind), [one.to(kind) for one in inputs]
