# SPDX-License-Identifier: Apache-2.0
"""Decoders that people run, written with torch.nn: their shapes are real, their sizes small.

Stock TVM runs a convolution on CPU at about one multiply-add per nanosecond, those with inserted
zeros included; each model here takes it about a second.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn


def dcgan() -> nn.Module:
    """DCGAN generator (Radford et al., 2015): 100 numbers to a 64 x 64 colour image."""
    widths = (100, 512, 256, 128, 64)
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015): convolutions down and up, joined level by level."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip((1, *widths[:-2]), widths[:-1]))
        self.bottom = self.block(widths[-2], widths[-1])
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(self.block(a, b) for a, b in pairs)
        self.head = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def block(c: int, k: int) -> nn.Module:
        """Two 3 x 3 convolutions."""
        return nn.Sequential(
            nn.Conv2d(c, k, 3, padding=1),
            nn.BatchNorm2d(k),
            nn.ReLU(),
            nn.Conv2d(k, k, 3, padding=1),
            nn.BatchNorm2d(k),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


class Vocoder(nn.Module):
    """HiFi-GAN generator, variant 3 (Kong et al., 2020): a mel spectrogram to a waveform."""

    def __init__(self, mels: int = 80, width: int = 128) -> None:
        super().__init__()
        self.before = nn.Conv1d(mels, width, 7, padding=3)
        self.ups = nn.ModuleList()
        self.residual = nn.ModuleList()
        for kernel, stride in ((16, 8), (16, 8), (8, 4)):
            self.ups.append(
                nn.ConvTranspose1d(width, width // 2, kernel, stride, (kernel - stride) // 2)
            )
            width //= 2
            self.residual.append(
                nn.ModuleList(
                    nn.ModuleList(
                        nn.Conv1d(width, width, k, dilation=d, padding=(k - 1) * d // 2)
                        for d in dilations
                    )
                    for k, dilations in ((3, (1, 2)), (5, (2, 6)), (7, (3, 12)))
                )
            )
        self.after = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.before(mel)
        for up, blocks in zip(self.ups, self.residual):
            x = up(nn.functional.leaky_relu(x, 0.1))
            total = torch.zeros_like(x)
            for block in (groups := list(blocks.children())):
                h = x
                for conv in block.children():
                    h = h + conv(nn.functional.leaky_relu(h, 0.1))
                total = total + h
            x = total / len(groups)
        return torch.tanh(self.after(nn.functional.leaky_relu(x, 0.1)))


class VNet(nn.Module):
    """V-Net (Milletari et al., 2016): residual 5 x 5 x 5 convolutions on a volume."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        a, b, c = widths
        self.first = nn.Conv3d(1, a, 5, padding=2)
        self.down = nn.ModuleList([nn.Conv3d(a, b, 2, 2), nn.Conv3d(b, c, 2, 2)])
        self.deep = nn.ModuleList([nn.Conv3d(b, b, 5, padding=2), nn.Conv3d(c, c, 5, padding=2)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(c, b, 2, 2), nn.ConvTranspose3d(b, a, 2, 2)])
        self.merge = nn.ModuleList(
            [nn.Conv3d(2 * b, b, 5, padding=2), nn.Conv3d(2 * a, a, 5, padding=2)]
        )
        self.head = nn.Conv3d(a, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x) + x)
        kept = []
        for down, deep in zip(self.down, self.deep):
            kept.append(x)
            x = torch.relu(down(x))
            x = torch.relu(deep(x) + x)
        for up, merge in zip(self.up, self.merge):
            x = torch.relu(up(x))
            x = torch.relu(merge(torch.cat([x, kept.pop()], 1)) + x)
        return self.head(x)


def bilinear(classes: int, scale: int) -> nn.ConvTranspose2d:
    """Depthwise transposed convolution that starts as bilinear upsampling."""
    size = 2 * scale
    up = nn.ConvTranspose2d(classes, classes, size, scale, scale // 2, groups=classes, bias=False)
    ramp = 1 - ((torch.arange(size) - (size - 1) / 2) / scale).abs()
    with torch.no_grad():
        up.weight.copy_(torch.outer(ramp, ramp).expand(classes, 1, size, size))
    return up


class FCN(nn.Module):
    """FCN-8s (Long et al., 2015): scores of 21 classes, upsampled depthwise by 2, 2 and 8."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        widths = (3, 32, 64, 64, 128, 128)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.score = nn.ModuleList(nn.Conv2d(c, classes, 1) for c in widths[3:])
        self.up = nn.ModuleList(bilinear(classes, s) for s in (2, 2, 8))

    def forward(self, image: Tensor) -> Tensor:
        features, x = [], image
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        y = self.score[2](features[4])
        y = self.score[1](features[3]) + self.up[0](y)
        y = self.score[0](features[2]) + self.up[1](y)
        return self.up[2](y)


DECODERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "DCGAN": (dcgan, (1, 100, 1, 1)),
    "U-Net": (UNet, (1, 1, 128, 128)),
    "HiFi-GAN": (Vocoder, (1, 80, 32)),
    "V-Net": (VNet, (1, 1, 24, 24, 24)),
    "FCN-8s": (FCN, (1, 3, 128, 128)),
}
"""Name: constructor, and shape of the input."""


def make(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """Return a decoder with random weights, ready for inference, and an input for it."""
    torch.manual_seed(seed)
    constructor, shape = DECODERS[name]
    model = constructor()
    x = torch.randn(shape)
    return calibrated(model, x), x


def calibrated(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """Return a model for inference, whose batch norms have seen these inputs, so that activations
    are as large as in a trained model.
    """
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0
    with torch.no_grad():
        model(*inputs)
    return model.eval()


def trace(name: str, path: str, seed: int = 0) -> Tensor:
    """Write a decoder as a TorchScript file; its input, which the file does not hold."""
    model, x = make(name, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is what Relay reads
        torch.jit.save(torch.jit.trace(model, x), path)
    return x


def export(name: str, path: str, seed: int = 0) -> None:
    """Write a decoder as a ``.pt2`` file."""
    model, x = make(name, seed)
    torch.export.save(torch.export.export(model, (x,)), path)
