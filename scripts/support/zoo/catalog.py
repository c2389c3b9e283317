# SPDX-License-Identifier: Apache-2.0
"""All models, by the name that the page of the documentation gives them."""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from .weights import Make

PACKAGES = {
    "transformers": ("from_transformers_audio", "from_transformers_vision"),
    "diffusers": ("from_diffusers",),
    "segmentation_models_pytorch": ("from_smp",),
    "torchvision": ("from_torchvision",),
    "monai": ("from_monai",),
}
"""Package: the modules of this folder with its models."""

OTHER_DTYPES = {
    "SpeechT5HifiGan": "float16",
    "Linknet": "float64",
    "AutoencoderKL": "bfloat16",
    "Mask R-CNN, mask head": "bfloat16",
    "VNet": "float16",
}
"""Models that are tried in a dtype beside float32 too."""


@dataclass(frozen=True)
class Entry:
    """A model: its name on the page, the package that wrote it, constructor, dtype."""

    name: str
    package: str
    make: Make
    dtype: str


def entries() -> dict[str, Entry]:
    """Return every model of the packages, by its name."""
    quiet()
    found: dict[str, Entry] = {}
    for package, module in ((p, m) for p, modules in PACKAGES.items() for m in modules):
        for name, make in import_module(f".{module}", __package__).MODELS.items():
            found[name] = Entry(name, package, make, "float32")
            if name in OTHER_DTYPES:
                dtype = OTHER_DTYPES[name]
                found[f"{name}, {dtype}"] = Entry(f"{name}, {dtype}", package, make, dtype)
    return found


def quiet() -> None:
    """Import the packages without their advice, and without asking a hub for anything."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    _import_torchvision()


def _import_torchvision() -> None:
    """Its wheel is built for CUDA: beside a torch without CUDA its own operators can't be loaded,
    and its import fails where it describes two of them. Models here use none."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
        import_module("torchvision")


def versions() -> dict[str, Any]:
    """Releases of what a run compares."""
    from importlib.metadata import version

    names = ("apache-tvm", "torch", "timm", *(name.replace("_", "-") for name in PACKAGES))
    return {name: version(name) for name in names}
