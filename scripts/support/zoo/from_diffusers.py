# SPDX-License-Identifier: Apache-2.0
"""diffusers: autoencoders of images and video, and denoising U-Nets."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers.models import upsampling
from torch import Tensor

from .weights import Call, Catalog, Made, first

MODELS = Catalog()

LEVELS: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
}
WIDTHS = {"block_out_channels": (16, 32)}


def _image(size: int, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, size, size)


@MODELS.model("AutoencoderKL")
def autoencoder_kl() -> Made:
    return first(diffusers.AutoencoderKL(**LEVELS, **WIDTHS)), (_image(32),)


@MODELS.model("AsymmetricAutoencoderKL")
def asymmetric() -> Made:
    widths = {"down_block_out_channels": (16, 32), "up_block_out_channels": (16, 32)}
    return first(diffusers.AsymmetricAutoencoderKL(**LEVELS, **widths)), (_image(32),)


def _tiny() -> Any:
    return diffusers.AutoencoderTiny(
        encoder_block_out_channels=(16,) * 4,
        decoder_block_out_channels=(16,) * 4,
        num_encoder_blocks=(1,) * 4,
        num_decoder_blocks=(1,) * 4,
    )


@MODELS.model("AutoencoderTiny")
def autoencoder_tiny() -> Made:
    return first(_tiny()), (_image(32),)


@MODELS.model("AutoencoderTiny, encoder")
def autoencoder_tiny_encoder() -> Made:
    return _tiny().encoder, (_image(32),)


@MODELS.model("AutoencoderTiny, decoder")
def autoencoder_tiny_decoder() -> Made:
    return _tiny().decoder, (_image(4, 4),)


@MODELS.model("AutoencoderDC")
def autoencoder_dc() -> Made:
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in {
            "block_out_channels": (8, 16),
            "block_types": "ResBlock",
            "layers_per_block": (1, 1),
            "qkv_multiscales": ((), ()),
        }.items()
    }
    return first(diffusers.AutoencoderDC(latent_channels=4, **sides)), (_image(32),)


@MODELS.model("VQModel")
def vq_model() -> Made:
    return first(diffusers.VQModel(**LEVELS, **WIDTHS, num_vq_embeddings=32)), (_image(32),)


@MODELS.model("AutoencoderKLTemporalDecoder")
def temporal_decoder() -> Made:
    model = diffusers.AutoencoderKLTemporalDecoder(
        down_block_types=LEVELS["down_block_types"], block_out_channels=(32, 32)
    )
    frames = torch.randn(2, 3, 16, 16)
    return Call(model, lambda model, x: model(x, num_frames=2, return_dict=False)[0]), (frames,)


@MODELS.model("AutoencoderKLCogVideoX, decoder")
def cogvideo() -> Made:
    model = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 2,
        up_block_types=("CogVideoXUpBlock3D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
        temporal_compression_ratio=2,
    )
    return Call(model.decoder, lambda model, x: model(x)[0]), (torch.randn(1, 4, 2, 8, 8),)


@MODELS.model("UNet2DModel")
def unet_2d() -> Made:
    model = diffusers.UNet2DModel(
        sample_size=16,
        **WIDTHS,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
        layers_per_block=1,
    )
    return first(model), (_image(16), torch.tensor([7]))


@MODELS.model("KUpsample2D")
def k_upsample() -> Made:
    """Return a layer whose weights are made when it runs."""
    return upsampling.KUpsample2D(), (_image(8),)


@MODELS.model("UNet2DConditionModel")
def unet_2d_condition() -> Made:
    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        **WIDTHS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
        layers_per_block=1,
        cross_attention_dim=16,
    )
    return first(model), (_image(16, 4), torch.tensor([7]), torch.randn(1, 5, 16))


@MODELS.model("UNet1DModel")
def unet_1d() -> Made:
    model = diffusers.UNet1DModel(
        sample_size=64,
        block_out_channels=(16, 32),
        extra_in_channels=32,
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D"),
        up_block_types=("UpBlock1D", "UpBlock1DNoSkip"),
    )
    return first(model), (torch.randn(1, 2, 64), torch.tensor([7]))
