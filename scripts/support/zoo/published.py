# SPDX-License-Identifier: Apache-2.0
"""Models in sizes that people run, to be timed: those of docs/how-to/real-models.md are small.

Configurations are those of the packages, or of a published checkpoint; weights are random.
"""

from __future__ import annotations

from typing import Any

import diffusers
import segmentation_models_pytorch as smp
import torch
import transformers as hf
from monai.networks import nets
from torch import Tensor, nn

from .from_transformers_vision import mask_decoder
from .weights import EAGER, Catalog, Made, field, first

MODELS = Catalog()


def _image(*sizes: int, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, *sizes)


# ---------------------------------------------------------------- convolutions


@MODELS.model("SpeechT5HifiGan")
def speech_t5() -> Made:
    return hf.SpeechT5HifiGan(hf.SpeechT5HifiGanConfig()), (torch.randn(1, 32, 80),)


@MODELS.model("Linknet")
def linknet() -> Made:
    return smp.Linknet("resnet18", encoder_weights=None, classes=3), (_image(256, 256),)


@MODELS.model("Unet")
def unet() -> Made:
    return smp.Unet("resnet18", encoder_weights=None, classes=3), (_image(256, 256),)


@MODELS.model("AutoencoderTiny, decoder")
def taesd_decoder() -> Made:
    return diffusers.AutoencoderTiny().decoder, (_image(32, 32, channels=4),)


@MODELS.model("CycleGAN")
def cycle_gan() -> Made:
    """Return the generator of Zhu et al. (2017) for images of 256: nine residual blocks."""

    def block(ins: int, outs: int, kernel: int, **more: Any) -> list[nn.Module]:
        return [nn.Conv2d(ins, outs, kernel, **more), nn.InstanceNorm2d(outs), nn.ReLU()]

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pad = nn.ReflectionPad2d(1)
            steps = [pad, *block(256, 256, 3), pad, *block(256, 256, 3)[:2]]
            self.steps = nn.Sequential(*steps)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.steps(x)

    down: dict[str, Any] = {"stride": 2, "padding": 1}
    up = [
        [nn.ConvTranspose2d(2 * n, n, 3, **down, output_padding=1), nn.InstanceNorm2d(n), nn.ReLU()]
        for n in (128, 64)
    ]
    steps = [
        *(nn.ReflectionPad2d(3), *block(3, 64, 7)),
        *(*block(64, 128, 3, **down), *block(128, 256, 3, **down)),
        *(Residual() for _ in range(9)),
        *(*up[0], *up[1]),
        *(nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh()),
    ]
    return nn.Sequential(*steps), (_image(128, 128),)


@MODELS.model("DynUNet")
def dynunet() -> Made:
    """nnU-Net of volumes."""
    kernels = (3,) * 4
    strides = (1, 2, 2, 2)
    model = nets.DynUNet(3, 1, 3, kernels, strides, strides[1:], filters=(16, 32, 64, 128))
    return model, (_image(48, 48, 48, channels=1),)


# ---------------------------------------------------------------- norms and attention


@MODELS.model("AutoencoderKL, decoder")
def vae_decoder() -> Made:
    """Stable Diffusion's, with half as many channels."""
    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=2,
    )
    return model.decoder, (_image(16, 16, channels=4),)


@MODELS.model("UNet2DModel")
def unet_2d() -> Made:
    model = diffusers.UNet2DModel(
        sample_size=32,
        block_out_channels=(64, 128, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    return first(model), (_image(64, 64), torch.tensor([7]))


@MODELS.model("UNet2DConditionModel")
def unet_2d_condition() -> Made:
    """Stable Diffusion's, with a fifth as many channels."""
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(64, 128, 256, 256), attention_head_dim=8, cross_attention_dim=768
    )
    return first(model), (
        _image(32, 32, channels=4),
        torch.tensor([7]),
        torch.randn(1, 77, 768),
    )


@MODELS.model("SamModel, mask decoder")
def sam_mask_decoder() -> Made:
    config = hf.SamConfig(vision_config={"num_hidden_layers": 1}, **EAGER)
    return mask_decoder(hf.SamModel(config).mask_decoder, 256, 64)


@MODELS.model("SegformerForSemanticSegmentation")
def segformer() -> Made:
    """B0."""
    model = hf.SegformerForSemanticSegmentation(hf.SegformerConfig(**EAGER))
    return field(model, "logits"), (_image(256, 256),)


@MODELS.model("DPTForDepthEstimation")
def dpt() -> Made:
    config = hf.DPTConfig(
        hidden_size=384,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=224,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
        **EAGER,
    )
    return field(hf.DPTForDepthEstimation(config), "predicted_depth"), (_image(224, 224),)


@MODELS.model("VitPoseForPoseEstimation")
def vitpose() -> Made:
    """Base."""
    backbone = hf.VitPoseBackboneConfig(out_features=["stage12"])
    config = hf.VitPoseConfig(backbone_config=backbone, use_simple_decoder=False, **EAGER)
    return field(hf.VitPoseForPoseEstimation(config), "heatmaps"), (_image(256, 192),)


@MODELS.model("ConvNextModel")
def convnext() -> Made:
    """Tiny."""
    return field(hf.ConvNextModel(hf.ConvNextConfig()), "last_hidden_state"), (_image(224, 224),)


@MODELS.model("Swin2SRForImageSuperResolution")
def swin2sr() -> Made:
    config = hf.Swin2SRConfig(
        image_size=64, embed_dim=60, depths=[6] * 4, num_heads=[6] * 4, upscale=2
    )
    model = hf.Swin2SRForImageSuperResolution(config)
    return field(model, "reconstruction"), (_image(64, 64),)


@MODELS.model("WhisperModel, encoder")
def whisper() -> Made:
    """Tiny, for ten seconds of sound."""
    config = hf.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_layers=1,
        max_source_positions=500,
        **EAGER,
    )
    model = hf.WhisperModel(config).encoder
    return field(model, "last_hidden_state"), (torch.randn(1, 80, 1000),)
