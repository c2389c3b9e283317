# SPDX-License-Identifier: Apache-2.0
"""MONAI: networks of medical images, with ConvTranspose3d in their decoders."""

from __future__ import annotations

import torch
from monai.networks import nets
from torch import Tensor

from .weights import Call, Catalog, Made

MODELS = Catalog()
add = MODELS.model


def _volume(size: int) -> tuple[Tensor]:
    return (torch.randn(1, 1, size, size, size),)


add("UNet")(lambda: (nets.UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1), _volume(16)))
add("BasicUNet")(lambda: (nets.BasicUNet(3, 1, 2, (4, 4, 8, 8, 16, 4)), _volume(32)))
add("AttentionUnet")(lambda: (nets.AttentionUnet(3, 1, 2, (4, 8, 16), (2, 2)), _volume(16)))
add("VNet")(lambda: (nets.VNet(3, 1, 2), _volume(16)))
add("SegResNet")(lambda: (nets.SegResNet(3, 8, 1, 2), _volume(16)))


@add("DynUNet")
def dynunet() -> Made:
    kernels = ((3, 3, 1), (3, 3, 3), (3, 3, 3))
    strides = ((1, 1, 1), (2, 2, 1), (2, 2, 2))
    return nets.DynUNet(3, 1, 2, kernels, strides, strides[1:], filters=(4, 8, 16)), _volume(16)


add("UNETR")(lambda: (nets.UNETR(1, 2, 32, 4, 24, 48, 2), _volume(32)))


@add("SwinUNETR")
def swin_unetr() -> Made:
    depths, heads = (1,) * 4, (1, 2, 2, 4)
    model = nets.SwinUNETR(1, 2, feature_size=12, depths=depths, num_heads=heads, spatial_dims=2)
    return model, (torch.randn(1, 1, 64, 64),)


add("AutoEncoder")(lambda: (nets.AutoEncoder(3, 1, 1, (4, 8), (2, 2)), _volume(16)))


@add("VQVAE, encoder and decoder")
def vqvae() -> Made:
    model = nets.VQVAE(
        *(3, 1, 1),
        channels=(8, 16),
        num_res_layers=1,
        num_res_channels=8,
        downsample_parameters=((2, 4, 1, 1),) * 2,
        upsample_parameters=((2, 4, 1, 1, 0),) * 2,
        embedding_dim=8,
    )
    return Call(model, lambda model, x: model.decode(model.encode(x))), _volume(16)
