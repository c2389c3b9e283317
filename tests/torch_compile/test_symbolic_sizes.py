# SPDX-License-Identifier: Apache-2.0
"""Graphs of symbolic sizes: sizes that PyTorch knows to be equal, and those that calls have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.torch_backend import check_inference, compiled
from relax_ext.torch import part, report


class UNet(nn.Module):
    """Images of ``2 * (h // 2)`` rows are combined with those of ``h``."""

    def __init__(self, combine: Any) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.combine = combine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the combination of two images, with a layer behind it."""
        skip = F.relu(self.first(x))
        middle = F.max_pool2d(skip, 2)
        small = F.relu(self.second(F.max_pool2d(middle, 2)))
        up = self.combine(self.up(small), middle)
        return torch.tanh(self.combine(F.interpolate(up, scale_factor=2.0)[:, :4], skip))


COMBINATIONS = {
    "concatenated": lambda a, b: torch.cat([a, b], 1),
    "added": torch.add,
    "larger one": torch.maximum,
    "selected": lambda a, b: torch.where(a > b, a, b * b),
}


@pytest.mark.parametrize("case", COMBINATIONS)
def test_skip_connections(case: str) -> None:
    """Nothing stays in PyTorch: both sizes are one where PyTorch knows that they are equal."""
    torch.manual_seed(0)
    model = UNet(COMBINATIONS[case]).double().eval()
    run = compiled(model, dynamic=True)
    for size in ((8, 12), (20, 16), (12, 40)):
        check_inference(model, torch.randn(2, 3, *size, dtype=torch.float64), run=run)
    (graph,) = report().graphs
    assert len(graph.parts) == 1 and not graph.unknown


def test_few_kernels_for_sizes_far_from_those_that_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No second kernel for images of a few positions is built; all sizes are right."""
    built: list[str] = []
    stock = part.compiled

    def noted(module: Any, *args: Any, **options: Any) -> Any:
        built.append(str(module["main"].attrs["topi_ext.expected_sizes"]))
        return stock(module, *args, **options)

    monkeypatch.setattr(part, "compiled", noted)
    model = nn.Conv2d(8, 16, 3, padding=1).double().eval()
    run = compiled(model, dynamic=True)
    for size in ((50, 70), (2, 3), (3, 5), (7, 200)):
        check_inference(model, torch.randn(2, 8, *size, dtype=torch.float64), run=run)
    (sizes,) = built
    assert "32" in sizes and "64" in sizes
