# SPDX-License-Identifier: Apache-2.0
"""segmentation_models_pytorch: decoders of segmentation on a ResNet-18."""

from __future__ import annotations

from functools import partial

import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

from .weights import Make

DECODERS = ("Unet", "Linknet", "MAnet", "FPN", "PAN", "DeepLabV3Plus")


def _segmentation(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = getattr(smp, name)("resnet18", encoder_weights=None, classes=3)
    size = 128 if name == "PAN" else 64  # it pools three times more
    return model, (torch.randn(1, 3, size, size),)


MODELS: dict[str, Make] = {name: partial(_segmentation, name) for name in DECODERS}
