# SPDX-License-Identifier: Apache-2.0
"""Small models of packages: torchvision, smp, timm, MONAI, diffusers and transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .losses import Catalogue, Loss, Trainable, absolute, classification, regression

MODELS = Catalogue()


def images(batch: int, side: int = 64) -> Tensor:
    """Return a batch of random images."""
    return torch.randn(batch, 3, side, side)


def volume(side: int) -> Tensor:
    """Return a random volume of one channel."""
    return torch.randn(1, 1, side, side, side)


@MODELS.model("torchvision resnet18")
def resnet18() -> Trainable:
    from torchvision import models

    return classification(models.resnet18(num_classes=10), images(4))


@MODELS.model("torchvision mobilenet_v3_small")
def mobilenet() -> Trainable:
    from torchvision import models

    return classification(models.mobilenet_v3_small(num_classes=10), images(4))


@MODELS.model("torchvision vgg11_bn")
def vgg() -> Trainable:
    from torchvision import models

    net = models.vgg11_bn(num_classes=10)
    net.classifier = nn.Linear(512 * 49, 10)
    return classification(net, images(2))


@MODELS.model("torchvision r3d_18")
def r3d() -> Trainable:
    from torchvision.models import video

    return classification(video.r3d_18(num_classes=5), torch.randn(1, 3, 4, 32, 32))


@MODELS.model("torchvision densenet")
def densenet() -> Trainable:
    from torchvision import models

    return classification(models.DenseNet(8, (2, 2), 16, num_classes=10), images(2))


@MODELS.model("smp unet, resnet18")
def smp_unet() -> Trainable:
    import segmentation_models_pytorch as smp

    return classification(smp.Unet("resnet18", encoder_weights=None, classes=3), images(4))


@MODELS.model("smp unet, dice loss")
def smp_dice() -> Trainable:
    import segmentation_models_pytorch as smp

    net = smp.Unet("resnet18", encoder_weights=None, classes=1)
    target = (torch.rand(4, 1, 64, 64) > 0.5).float()
    return Loss(net, smp.losses.DiceLoss("binary")), (images(4), target)


@MODELS.model("smp deeplabv3plus")
def smp_deeplab() -> Trainable:
    import segmentation_models_pytorch as smp

    return classification(smp.DeepLabV3Plus("resnet18", encoder_weights=None, classes=3), images(4))


@MODELS.model("timm convnext")
def convnext() -> Trainable:
    import timm

    net = timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(16, 24, 32, 40), num_classes=10)
    return classification(net, images(2))


@MODELS.model("timm efficientnet_b0")
def efficientnet() -> Trainable:
    import timm

    net = timm.create_model("efficientnet_b0", num_classes=10, drop_rate=0.0)
    return classification(net, images(4))


@MODELS.model("monai unet")
def monai_unet() -> Trainable:
    from monai.networks import nets

    return classification(nets.UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1), volume(16))


def dynunet(width: int) -> nn.Module:
    """MONAI's nnU-Net in three dimensions."""
    from monai.networks import nets

    kernels, strides = ((3, 3, 3),) * 3, ((1, 1, 1), (2, 2, 2), (2, 2, 2))
    filters = (width, 2 * width, 4 * width)
    return nets.DynUNet(3, 1, 2, kernels, strides, strides[1:], filters=filters)


@MODELS.model("monai dynunet")
def monai_dynunet() -> Trainable:
    return classification(dynunet(4), volume(16))


@MODELS.model("monai vnet")
def monai_vnet() -> Trainable:
    from monai.networks import nets

    net = nets.VNet(3, 1, 2, dropout_prob_down=0.0, dropout_prob_up=(0.0, 0.0))
    return classification(net, volume(32))


@MODELS.model("monai segresnet")
def monai_segresnet() -> Trainable:
    from monai.networks import nets

    return classification(nets.SegResNet(3, 8, 1, 2), volume(16))


@MODELS.model("monai dynunet, dice and cross entropy")
def monai_dice() -> Trainable:
    from monai.losses import DiceCELoss
    from monai.networks import nets

    kernels, strides = ((3, 3),) * 3, ((1, 1), (2, 2), (2, 2))
    net = nets.DynUNet(2, 1, 3, kernels, strides, strides[1:], filters=(4, 8, 16))
    target = torch.randint(0, 3, (2, 1, 32, 32))
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    return Loss(net, loss), (torch.randn(2, 1, 32, 32), target)


def sample(result: Any) -> Tensor:
    """Return the tensor of a result of diffusers."""
    return result.sample


def logits(result: Any) -> Tensor:
    """Return the tensor of a result of transformers."""
    return result.logits


@MODELS.model("diffusers AutoencoderKL")
def autoencoder_kl() -> Trainable:
    import diffusers

    net = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    return regression(net, images(1, 32), take=sample)


@MODELS.model("diffusers UNet2DModel")
def unet2d() -> Trainable:
    import diffusers

    net = diffusers.UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
        layers_per_block=1,
    )
    return regression(net, images(2, 16), torch.tensor([7, 300]), take=sample)


@MODELS.model("transformers Segformer")
def segformer() -> Trainable:
    import transformers

    config = transformers.SegformerConfig(
        hidden_sizes=[16, 24, 32, 40],
        depths=[1] * 4,
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
        num_labels=5,
    )
    net = transformers.SegformerForSemanticSegmentation(config)
    return classification(net, images(2), take=logits)


@MODELS.model("transformers Encodec, decoder")
def encodec() -> Trainable:
    import transformers

    config = transformers.EncodecConfig(
        hidden_size=32, num_filters=4, upsampling_ratios=[4, 2], num_lstm_layers=1
    )
    return absolute(transformers.EncodecModel(config).decoder, torch.randn(1, 32, 10))


@MODELS.model("transformers SpeechT5HifiGan")
def speecht5() -> Trainable:
    import transformers

    config = transformers.SpeechT5HifiGanConfig(
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3, 7],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
    )
    net = transformers.SpeechT5HifiGan(config)
    net.apply_weight_norm()
    return absolute(net, torch.randn(1, 8, 80))
