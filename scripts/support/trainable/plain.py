# SPDX-License-Identifier: Apache-2.0
"""Models of torch alone: GANs, autoencoders, super-resolution, vocoders, segmentation, audio."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .losses import Catalogue, Trainable, absolute, classification, detection, regression

MODELS = Catalogue()


def dcgan_generator(width: int, batch: int) -> Trainable:
    """Radford et al., 2015, for images of 32x32."""

    def up(ins: int, outs: int, kernel: int, stride: int, padding: int) -> Iterator[nn.Module]:
        yield nn.ConvTranspose2d(ins, outs, kernel, stride, padding, bias=False)
        yield from (nn.BatchNorm2d(outs), nn.ReLU(True))

    net = nn.Sequential(
        *up(32, 4 * width, 4, 1, 0),
        *up(4 * width, 2 * width, 4, 2, 1),
        *up(2 * width, width, 4, 2, 1),
        nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    return regression(net, torch.randn(batch, 32, 1, 1))


def dcgan_discriminator(width: int, batch: int) -> Trainable:
    """Its opponent."""

    def down(ins: int, outs: int) -> Iterator[nn.Module]:
        yield nn.Conv2d(ins, outs, 4, 2, 1, bias=False)
        yield from (nn.BatchNorm2d(outs), nn.LeakyReLU(0.2, True))

    net = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, True),
        *down(width, 2 * width),
        *down(2 * width, 4 * width),
        nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False),
        nn.Flatten(),
    )
    return detection(net, torch.randn(batch, 3, 32, 32))


def autoencoder(width: int, batch: int, side: int, mode: str) -> Trainable:
    """Halved and doubled: batch norm, gelu and nearest, or group norm, silu and bilinear."""
    is_nearest = mode == "nearest"

    def layer(ins: int, outs: int) -> Iterator[nn.Module]:
        yield nn.Conv2d(ins, outs, 3, 1, 1)
        yield nn.BatchNorm2d(outs) if is_nearest else nn.GroupNorm(4, outs)
        yield nn.GELU() if is_nearest else nn.SiLU()

    net = nn.Sequential(
        *layer(3, width), nn.MaxPool2d(2) if is_nearest else nn.AvgPool2d(2),
        *layer(width, 2 * width), nn.AvgPool2d(2),
        nn.Upsample(scale_factor=2, mode=mode), *layer(2 * width, width),
        nn.Upsample(scale_factor=2, mode=mode), nn.Conv2d(width, 3, 3, 1, 1), nn.Sigmoid(),
    )  # fmt: skip
    return (regression if is_nearest else absolute)(net, torch.randn(batch, 3, side, side))


def espcn(width: int, batch: int, side: int) -> Trainable:
    """Shi et al., 2016: super-resolution by rearranged channels."""
    net = nn.Sequential(
        nn.Conv2d(3, width, 5, 1, 2), nn.PReLU(),
        nn.Conv2d(width, width, 3, 1, 1), nn.PReLU(width),
        nn.Conv2d(width, 27, 3, 1, 1), nn.PixelShuffle(3),
    )  # fmt: skip
    return absolute(net, torch.randn(batch, 3, side, side))


class Pix2Pix(nn.Module):
    """Isola et al., 2016: a U-Net of strided convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 4 * width]
        last = len(widths) - 2
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, (ins, outs) in enumerate(pairwise(widths)):
            before = [] if level == 0 else [nn.LeakyReLU(0.2)]
            behind = [] if level in (0, last) else [nn.BatchNorm2d(outs)]
            self.down.append(nn.Sequential(*before, nn.Conv2d(ins, outs, 4, 2, 1), *behind))
        for level in range(last, 0, -1):
            ins, outs = widths[level + 1] * (1 if level == last else 2), widths[level]
            up = nn.ConvTranspose2d(ins, outs, 4, 2, 1)
            self.up.append(nn.Sequential(nn.ReLU(), up, nn.BatchNorm2d(outs)))
        self.last = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(2 * width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Return an image like x."""
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        skips.pop()
        for up in self.up:
            x = torch.cat([up(x), skips.pop()], 1)
        return self.last(x)


class Residual(nn.Module):
    """A block of CycleGAN's generator."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3), nn.InstanceNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return x and what the block adds to it."""
        return x + self.body(x)


def cyclegan(width: int, batch: int, side: int) -> Trainable:
    """Zhu et al., 2017."""
    net = nn.Sequential(
        nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU(True),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU(True),
        Residual(2 * width), Residual(2 * width),
        nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1),
        nn.InstanceNorm2d(width), nn.ReLU(True),
        nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh(),
    )  # fmt: skip
    return absolute(net, torch.randn(batch, 3, side, side))


def normed(layer: nn.Module) -> nn.Module:
    """Return a layer whose weight is a direction and a length."""
    return nn.utils.parametrizations.weight_norm(layer)


class HifiGan(nn.Module):
    """Kong et al., 2020: a vocoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = normed(nn.Conv1d(20, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for kernel, stride in ((8, 4), (4, 2)):
            up = nn.ConvTranspose1d(width, width // 2, kernel, stride, (kernel - stride) // 2)
            self.ups.append(normed(up))
            width //= 2
            block = (normed(nn.Conv1d(width, width, 3, padding=d, dilation=d)) for d in (1, 3))
            self.blocks.append(nn.ModuleList(block))
        self.last = normed(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        """Return a waveform of a mel spectrogram."""
        x = self.first(x)
        for up, block in zip(self.ups, self.blocks):
            x = up(F.leaky_relu(x, 0.1))
            for layer in block.children():
                x = x + layer(F.leaky_relu(x, 0.1))
        return torch.tanh(self.last(F.leaky_relu(x)))


class Period(nn.Module):
    """HiFi-GAN's discriminator of every third sample."""

    def __init__(self, width: int, period: int = 3) -> None:
        super().__init__()
        self.period = period
        widths = ((1, width), (width, 2 * width), (2 * width, 4 * width))
        self.layers = nn.ModuleList(
            normed(nn.Conv2d(ins, outs, (5, 1), (3, 1), (2, 0))) for ins, outs in widths
        )
        self.last = normed(nn.Conv2d(4 * width, 1, (3, 1), 1, (1, 0)))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of parts of a waveform."""
        x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect")
        x = x.view(*x.shape[:2], x.shape[-1] // self.period, self.period)
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
        return torch.flatten(self.last(x), 1, -1)


class Scale(nn.Module):
    """HiFi-GAN's discriminator of the averaged waveform."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool1d(4, 2, padding=2)
        self.layers = nn.ModuleList(
            normed(layer)
            for layer in (
                nn.Conv1d(1, width, 15, 1, padding=7),
                nn.Conv1d(width, width, 41, 2, groups=4, padding=20),
                nn.Conv1d(width, 2 * width, 41, 4, groups=16, padding=20),
                nn.Conv1d(2 * width, 2 * width, 5, 1, padding=2),
            )
        )
        self.last = normed(nn.Conv1d(2 * width, 1, 3, 1, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of parts of a waveform."""
        x = self.pool(x)
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
        return torch.flatten(self.last(x), 1, -1)


class UNet(nn.Module):
    """Ronneberger et al., 2015, of two levels."""

    def __init__(self, width: int, norm: str, outs: int) -> None:
        super().__init__()

        def layer(ins: int, outs: int) -> Iterator[nn.Module]:
            yield nn.Conv2d(ins, outs, 3, 1, 1, bias=norm == "group")
            yield nn.BatchNorm2d(outs) if norm == "batch" else nn.GroupNorm(4, outs)
            yield nn.ReLU(True)

        def block(ins: int, outs: int) -> nn.Module:
            return nn.Sequential(*layer(ins, outs), *layer(outs, outs))

        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.middle = block(2 * width, 4 * width)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in (2 * width, width))
        self.up = nn.ModuleList(block(2 * n, n) for n in (2 * width, width))
        self.last = nn.Conv2d(width, outs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each class for each pixel."""
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = self.pool(skips[-1])
        x = self.middle(x)
        for up, block in zip(self.ups, self.up):
            x = block(torch.cat([up(x), skips.pop()], 1))
        return self.last(x)


class AudioClassifier(nn.Module):
    """Convolutions in one dimension, layer and batch norm, max pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 16, 9, 4), nn.Conv1d(16, 32, 5, 2)
        self.layer_norm, self.batch_norm = nn.LayerNorm(16), nn.BatchNorm1d(32)
        self.pool, self.last = nn.MaxPool1d(3, 2), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of classes."""
        x = F.gelu(self.layer_norm(self.first(x).transpose(1, 2)).transpose(1, 2))
        x = F.softplus(self.batch_norm(self.second(self.pool(x))))
        return self.last(F.adaptive_avg_pool1d(x, 1).flatten(1))


MODELS.model("dcgan_generator")(lambda: dcgan_generator(16, 8))
MODELS.model("dcgan_discriminator")(lambda: dcgan_discriminator(16, 8))
MODELS.model("autoencoder_nearest")(lambda: autoencoder(16, 4, 32, "nearest"))
MODELS.model("autoencoder_bilinear")(lambda: autoencoder(16, 4, 32, "bilinear"))
MODELS.model("espcn")(lambda: espcn(32, 2, 16))
MODELS.model("pix2pix_generator")(lambda: absolute(Pix2Pix(16), torch.randn(2, 3, 32, 32)))
MODELS.model("cyclegan_generator")(lambda: cyclegan(16, 1, 32))
MODELS.model("hifigan_generator")(lambda: absolute(HifiGan(32), torch.randn(2, 20, 16)))
MODELS.model("hifigan_period")(lambda: regression(Period(8), torch.randn(2, 1, 200)))
MODELS.model("hifigan_scale")(lambda: regression(Scale(16), torch.randn(2, 1, 256)))
MODELS.model("unet_batch_norm")(
    lambda: classification(UNet(16, "batch", 5), torch.randn(2, 3, 32, 32))
)
MODELS.model("unet_group_norm")(
    lambda: classification(UNet(16, "group", 5), torch.randn(2, 3, 32, 32))
)
MODELS.model("audio_classifier")(lambda: classification(AudioClassifier(), torch.randn(4, 1, 400)))
