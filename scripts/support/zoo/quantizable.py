# SPDX-License-Identifier: Apache-2.0
"""Models that people quantize: classifiers, and decoders and encoders of the other catalog."""

from __future__ import annotations

import torch
from torch import nn
from torchvision import models

from . import published
from .weights import Catalog, Made

MODELS = Catalog()


@MODELS.model("resnet18")
def resnet18() -> Made:
    return models.resnet18(), (torch.randn(1, 3, 224, 224),)


@MODELS.model("mobilenet_v3_large")
def mobilenet_v3_large() -> Made:
    return models.mobilenet_v3_large(), (torch.randn(1, 3, 224, 224),)


@MODELS.model("DCGAN generator")
def dcgan_generator() -> Made:
    """Return the generator of Radford et al. (2016) for images of 64."""
    layers: list[nn.Module] = []
    for number, (ins, outs) in enumerate(((100, 512), (512, 256), (256, 128), (128, 64))):
        options = (4, 2, 1) if number else (4, 1, 0)
        layers += [nn.ConvTranspose2d(ins, outs, *options, bias=False)]
        layers += [nn.BatchNorm2d(outs), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(1, 100, 1, 1),)


for _name in ("Unet", "SegformerForSemanticSegmentation", "WhisperModel, encoder"):
    MODELS[_name] = published.MODELS[_name]
