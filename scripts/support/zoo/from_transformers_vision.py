# SPDX-License-Identifier: Apache-2.0
"""transformers: segmentation, depth, poses and other models of images."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.maskformer.modeling_maskformer import MaskFormerPixelDecoder

from .weights import EAGER, Call, Catalog, Made, field

MODELS = Catalog()
SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
STAGES = ["stage1", "stage2", "stage3", "stage4"]
WIDTHS = [8, 16, 24, 32]


def _image(size: int = 64, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, size, size)


# ---------------------------------------------------------------- segmentation


def _sam() -> Any:
    config = hf.SamConfig(
        mask_decoder_config={
            "hidden_size": 32,
            "mlp_dim": 64,
            "iou_head_hidden_dim": 32,
            "num_attention_heads": 4,
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 64, "patch_size": 8},
        vision_config={
            "hidden_size": 32,
            "output_channels": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "global_attn_indexes": [0],
            "image_size": 64,
            "patch_size": 8,
        },
        **EAGER,
    )
    return hf.SamModel(config)


def mask_decoder(model: nn.Module, width: int, side: int) -> Made:
    """Return a decoder of masks with its inputs, of so many channels and places along a side."""
    names = ("image_embeddings", "image_positional_embeddings")
    more = ("sparse_prompt_embeddings", "dense_prompt_embeddings")

    def masks(model: nn.Module, *inputs: Tensor) -> Any:
        return model(**dict(zip(names + more, inputs)), multimask_output=True)[:2]

    image, prompt = torch.randn(3, 1, width, side, side), torch.randn(1, 1, 2, width)
    return Call(model, masks), (image[0], image[1], prompt, image[2])


MODELS.model("SamModel, mask decoder")(lambda: mask_decoder(_sam().mask_decoder, 32, 8))


@MODELS.model("SamModel, vision encoder")
def sam_vision_encoder() -> Made:
    return field(_sam().vision_encoder, "last_hidden_state"), (_image(),)


@MODELS.model("SegformerForSemanticSegmentation")
def segformer() -> Made:
    config = hf.SegformerConfig(
        hidden_sizes=WIDTHS,
        depths=[1] * 4,
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=32,
        **EAGER,
    )
    return field(hf.SegformerForSemanticSegmentation(config), "logits"), (_image(),)


@MODELS.model("BeitForSemanticSegmentation")
def beit() -> Made:
    config = hf.BeitConfig(
        **SMALL,
        **EAGER,
        num_hidden_layers=4,
        image_size=64,
        patch_size=16,
        out_indices=[1, 2, 3, 4],
        auxiliary_channels=16,
    )
    return field(hf.BeitForSemanticSegmentation(config), "logits"), (_image(),)


@MODELS.model("UperNetForSemanticSegmentation")
def upernet() -> Made:
    backbone = hf.ConvNextConfig(hidden_sizes=WIDTHS, depths=[1] * 4, out_features=STAGES)
    config = hf.UperNetConfig(
        backbone_config=backbone,
        hidden_size=16,
        auxiliary_in_channels=24,
        auxiliary_channels=16,
    )
    return field(hf.UperNetForSemanticSegmentation(config), "logits"), (_image(),)


@MODELS.model("MaskFormer, pixel decoder")
def maskformer() -> Made:
    model = MaskFormerPixelDecoder(
        32, feature_size=32, mask_feature_size=16, lateral_widths=[8, 16, 24]
    )
    sizes = zip(WIDTHS, (32, 16, 8, 4))
    features = tuple(_image(size, channels) for channels, size in sizes)
    return Call(model, lambda model, *maps: model(list(maps)).last_hidden_state), features


@MODELS.model("Mask2FormerForUniversalSegmentation")
def mask2former() -> Made:
    backbone = hf.SwinConfig(
        embed_dim=8,
        depths=[1] * 4,
        num_heads=[1, 1, 2, 2],
        window_size=4,
        image_size=64,
        out_features=STAGES,
    )
    config = hf.Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=5,
        dim_feedforward=32,
    )
    model = hf.Mask2FormerForUniversalSegmentation(config)
    return field(model, "masks_queries_logits"), (_image(),)


# ---------------------------------------------------------------- depth


@MODELS.model("DPTForDepthEstimation")
def dpt() -> Made:
    config = hf.DPTConfig(
        **SMALL,
        **EAGER,
        num_hidden_layers=4,
        image_size=64,
        patch_size=16,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=WIDTHS,
        fusion_hidden_size=16,
    )
    return field(hf.DPTForDepthEstimation(config), "predicted_depth"), (_image(),)


@MODELS.model("DepthAnythingForDepthEstimation")
def depth_anything() -> Made:
    backbone = hf.Dinov2Config(
        hidden_size=32,
        num_attention_heads=2,
        **EAGER,
        num_hidden_layers=4,
        image_size=56,
        patch_size=14,
        out_features=STAGES,
        reshape_hidden_states=False,
    )
    config = hf.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=32,
        neck_hidden_sizes=WIDTHS,
        fusion_hidden_size=16,
        head_hidden_size=8,
        patch_size=14,
    )
    return field(hf.DepthAnythingForDepthEstimation(config), "predicted_depth"), (_image(56),)


@MODELS.model("ZoeDepthForDepthEstimation")
def zoe_depth() -> Made:
    backbone = hf.BeitConfig(
        **SMALL,
        **EAGER,
        num_hidden_layers=4,
        image_size=64,
        patch_size=16,
        out_features=STAGES,
        reshape_hidden_states=False,
        use_relative_position_bias=True,
    )
    config = hf.ZoeDepthConfig(
        backbone_config=backbone,
        neck_hidden_sizes=WIDTHS,
        fusion_hidden_size=16,
        bottleneck_features=16,
        num_relative_features=8,
        bin_embedding_dim=16,
    )
    return field(hf.ZoeDepthForDepthEstimation(config), "predicted_depth"), (_image(),)


# ---------------------------------------------------------------- others


@MODELS.model("VitPoseForPoseEstimation")
def vitpose() -> Made:
    backbone = hf.VitPoseBackboneConfig(
        image_size=[64, 48],
        patch_size=[16, 16],
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        out_features=["stage2"],
    )
    config = hf.VitPoseConfig(backbone_config=backbone, use_simple_decoder=False, **EAGER)
    return field(hf.VitPoseForPoseEstimation(config), "heatmaps"), (torch.randn(1, 3, 64, 48),)


@MODELS.model("VitMatteForImageMatting")
def vitmatte() -> Made:
    backbone = hf.VitDetConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=16,
        num_channels=4,
        out_features=["stage2"],
    )
    config = hf.VitMatteConfig(
        backbone_config=backbone,
        hidden_size=32,
        fusion_hidden_sizes=[32, 24, 16, 8],
        convstream_hidden_sizes=[8, 16, 16],
    )
    return field(hf.VitMatteForImageMatting(config), "alphas"), (_image(64, 4),)


@MODELS.model("Swin2SRForImageSuperResolution")
def swin2sr() -> Made:
    config = hf.Swin2SRConfig(
        image_size=16, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=8, upscale=2
    )
    return field(hf.Swin2SRForImageSuperResolution(config), "reconstruction"), (_image(16),)


@MODELS.model("ConvNextModel")
def convnext() -> Made:
    config = hf.ConvNextConfig(hidden_sizes=WIDTHS, depths=[1] * 4)
    return field(hf.ConvNextModel(config), "last_hidden_state"), (_image(),)


@MODELS.model("VideoMAEModel")
def video_mae() -> Made:
    config = hf.VideoMAEConfig(
        **SMALL, **EAGER, image_size=32, patch_size=16, num_frames=4, num_hidden_layers=1
    )
    return field(hf.VideoMAEModel(config), "last_hidden_state"), (torch.randn(1, 4, 3, 32, 32),)
