# SPDX-License-Identifier: Apache-2.0
"""Small models of packages: torchvision, smp, timm, MONAI, diffusers and transformers."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import diffusers
import segmentation_models_pytorch as smp
import timm
import torch
import transformers
from monai.losses import DiceCELoss
from monai.networks import nets
from torch import Tensor, nn
from torchvision import models
from torchvision.models import video

from .losses import Catalogue, Loss, Trainable, absolute, classification, regression

MODELS = Catalogue()
add = MODELS.model


def images(batch: int, side: int = 64) -> Tensor:
    """Return a batch of random images."""
    return torch.randn(batch, 3, side, side)


def volume(side: int) -> Tensor:
    """Return a random volume of one channel."""
    return torch.randn(1, 1, side, side, side)


# ---------------------------------------------------------------- torchvision


def vgg() -> Trainable:
    """Return a network whose classifier is one layer."""
    net = models.vgg11_bn(num_classes=10)
    net.classifier = nn.Linear(512 * 49, 10)
    return classification(net, images(2))


add("torchvision resnet18")(lambda: classification(models.resnet18(num_classes=10), images(4)))
add("torchvision mobilenet_v3_small")(
    lambda: classification(models.mobilenet_v3_small(num_classes=10), images(4))
)
add("torchvision vgg11_bn")(vgg)
add("torchvision r3d_18")(
    lambda: classification(video.r3d_18(num_classes=5), torch.randn(1, 3, 4, 32, 32))
)
add("torchvision densenet")(
    lambda: classification(models.DenseNet(8, (2, 2), 16, num_classes=10), images(2))
)


# ---------------------------------------------------------------- smp and timm


def segmentation(name: str, classes: int = 3) -> nn.Module:
    """Return a network of segmentation on a ResNet-18."""
    net: nn.Module = getattr(smp, name)("resnet18", encoder_weights=None, classes=classes)
    return net


def smp_dice() -> Trainable:
    """Return a network of one class and a loss of its package."""
    target = (torch.rand(4, 1, 64, 64) > 0.5).float()
    return Loss(segmentation("Unet", 1), smp.losses.DiceLoss("binary")), (images(4), target)


def convnext() -> nn.Module:
    """Return a network of four blocks."""
    widths = (16, 24, 32, 40)
    net: nn.Module = timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=widths, num_classes=10)
    return net


def efficientnet() -> nn.Module:
    """Return a network without dropout."""
    net: nn.Module = timm.create_model("efficientnet_b0", num_classes=10, drop_rate=0.0)
    return net


add("smp unet, resnet18")(lambda: classification(segmentation("Unet"), images(4)))
add("smp unet, dice loss")(smp_dice)
add("smp deeplabv3plus")(lambda: classification(segmentation("DeepLabV3Plus"), images(4)))
add("timm convnext")(lambda: classification(convnext(), images(2)))
add("timm efficientnet_b0")(lambda: classification(efficientnet(), images(4)))


# ---------------------------------------------------------------- MONAI


def dynunet(rank: int, channels: tuple[int, int], width: int) -> nn.Module:
    """MONAI's nnU-Net of three levels."""
    kernels, strides = ((3,) * rank,) * 3, ((1,) * rank, (2,) * rank, (2,) * rank)
    filters = (width, 2 * width, 4 * width)
    net: nn.Module = nets.DynUNet(rank, *channels, kernels, strides, strides[1:], filters=filters)
    return net


def monai_vnet() -> Trainable:
    """Return a network without dropout."""
    net = nets.VNet(3, 1, 2, dropout_prob_down=0.0, dropout_prob_up=(0.0, 0.0))
    return classification(net, volume(32))


def monai_dice() -> Trainable:
    """Return a network and a loss of its package."""
    target = torch.randint(0, 3, (2, 1, 32, 32))
    module = Loss(dynunet(2, (1, 3), 4), DiceCELoss(to_onehot_y=True, softmax=True))
    return module, (torch.randn(2, 1, 32, 32), target)


add("monai unet")(
    lambda: classification(nets.UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1), volume(16))
)
add("monai dynunet")(lambda: classification(dynunet(3, (1, 2), 4), volume(16)))
add("monai vnet")(monai_vnet)
add("monai segresnet")(lambda: classification(nets.SegResNet(3, 8, 1, 2), volume(16)))
add("monai dynunet, dice and cross entropy")(monai_dice)


# ---------------------------------------------------------------- diffusers and transformers

sample, logits = attrgetter("sample"), attrgetter("logits")
TWO_LEVELS: dict[str, Any] = {"block_out_channels": (16, 32), "norm_num_groups": 4}


@add("diffusers AutoencoderKL")
def autoencoder_kl() -> Trainable:
    net = diffusers.AutoencoderKL(
        **TWO_LEVELS,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return regression(net, images(1, 32), take=sample)


@add("diffusers UNet2DModel")
def unet2d() -> Trainable:
    net = diffusers.UNet2DModel(
        **TWO_LEVELS,
        sample_size=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        layers_per_block=1,
    )
    return regression(net, images(2, 16), torch.tensor([7, 300]), take=sample)


@add("transformers Segformer")
def segformer() -> Trainable:
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate")
    config = transformers.SegformerConfig(
        hidden_sizes=[16, 24, 32, 40],
        depths=[1] * 4,
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        num_labels=5,
        **dict.fromkeys((*rates, "classifier_dropout_prob"), 0.0),
    )
    net = transformers.SegformerForSemanticSegmentation(config)
    return classification(net, images(2), take=logits)


@add("transformers Encodec, decoder")
def encodec() -> Trainable:
    config = transformers.EncodecConfig(
        hidden_size=32, num_filters=4, upsampling_ratios=[4, 2], num_lstm_layers=1
    )
    return absolute(transformers.EncodecModel(config).decoder, torch.randn(1, 32, 10))


@add("transformers SpeechT5HifiGan")
def speecht5() -> Trainable:
    from ..zoo.from_transformers_audio import HIFI_GAN

    net = transformers.SpeechT5HifiGan(transformers.SpeechT5HifiGanConfig(**HIFI_GAN))
    net.apply_weight_norm()
    return absolute(net, torch.randn(1, 8, 80))
