# SPDX-License-Identifier: Apache-2.0
"""torchvision: segmentation, the heads of Mask R-CNN and Keypoint R-CNN, video."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import segmentation, video
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from .weights import Call, Catalog, Made

MODELS = Catalog()


@MODELS.model("FCN, ResNet-50")
def fcn() -> Made:
    model = segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=5)
    return Call(model, lambda model, x: model(x)["out"]), (torch.randn(1, 3, 32, 32),)


@MODELS.model("Mask R-CNN, mask head")
def mask_head() -> Made:
    head = nn.Sequential(MaskRCNNHeads(32, (32, 32), 1), MaskRCNNPredictor(32, 32, 5))
    return head, (torch.randn(2, 32, 14, 14),)


@MODELS.model("Keypoint R-CNN, head")
def keypoint_head() -> Made:
    head = nn.Sequential(KeypointRCNNHeads(16, (32, 32)), KeypointRCNNPredictor(32, 17))
    return head, (torch.randn(2, 16, 14, 14),)


@MODELS.model("R3D-18")
def r3d() -> Made:
    return video.r3d_18(weights=None, num_classes=7), (torch.randn(1, 3, 4, 32, 32),)
