# SPDX-License-Identifier: Apache-2.0
"""Ten models of :mod:`trainable.plain` in sizes that people train on a CPU."""

from __future__ import annotations

import torch

from . import plain
from .losses import Catalogue, absolute, classification, regression

MODELS = Catalogue()

MODELS.model("DCGAN, generator")(lambda: plain.dcgan_generator(64, 32))
MODELS.model("DCGAN, discriminator")(lambda: plain.dcgan_discriminator(64, 32))
MODELS.model("autoencoder, batch norm")(lambda: plain.autoencoder(32, 8, 64, "nearest"))
MODELS.model("autoencoder, group norm")(lambda: plain.autoencoder(32, 8, 64, "bilinear"))
MODELS.model("ESPCN")(lambda: plain.espcn(64, 8, 64))
MODELS.model("pix2pix, generator")(lambda: absolute(plain.Pix2Pix(32), torch.randn(2, 3, 128, 128)))
MODELS.model("CycleGAN, generator")(lambda: plain.cyclegan(32, 1, 128))
MODELS.model("HiFi-GAN, generator")(lambda: absolute(plain.HifiGan(128), torch.randn(4, 20, 64)))
MODELS.model("HiFi-GAN, discriminator")(
    lambda: regression(plain.Period(32), torch.randn(4, 1, 8192))
)
MODELS.model("U-Net, batch norm")(
    lambda: classification(plain.UNet(32, "batch", 3), torch.randn(4, 3, 96, 96))
)
