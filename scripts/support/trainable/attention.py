# SPDX-License-Identifier: Apache-2.0
"""Attention alone, in the sizes of vision transformers, diffusion models and speech models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .losses import Catalogue, Trainable, regression

MODELS = Catalogue()
SIZES = {
    "windows of 49": (16, 4, 49, 49, 32),
    "256 positions": (2, 8, 256, 256, 64),
    "1,024 positions": (1, 8, 1024, 1024, 64),
    "77 keys": (1, 8, 1024, 77, 40),
    "one query": (1, 8, 1, 512, 64),
}
"""Batch, heads, queries, keys and head size."""


class Attention(nn.Module):
    """Attention of (batch, heads, positions, head size) tensors; a vector scales each of them.

    The vectors are what is trained, so that a step needs the gradients of all three tensors.
    """

    def __init__(self, head_size: int, causal: bool) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(3, head_size))
        self.causal = causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the result, of the shape of the query."""
        q, k, v = (one * scale for one, scale in zip((query, key, value), self.scales))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def attention(
    batch: int, heads: int, queries: int, keys: int, head_size: int, causal: bool = False
) -> Trainable:
    """Return attention of random numbers with its loss."""
    tensors = [torch.randn(batch, heads, count, head_size) for count in (queries, keys, keys)]
    return regression(Attention(head_size, causal), *tensors)


def _register(name: str, sizes: tuple[int, int, int, int, int], causal: bool = False) -> None:
    batch, heads, queries, keys, head_size = sizes
    shape = f"{batch}x{heads}x{queries}x{keys}x{head_size}"
    MODELS.model(f"{name} ({shape})")(lambda: attention(*sizes, causal))


for name, sizes in SIZES.items():
    _register(name, sizes)
_register("1,024 positions, causal", SIZES["1,024 positions"], causal=True)
