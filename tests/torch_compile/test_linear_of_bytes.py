# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose weights are bytes, as quantization tools state them, through torch.compile:
each is one kernel that reads the bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.torch_backend import compiled


class WeightOnly(nn.Module):
    """``x @ w * scale + bias`` of weights that are widened: 8-bit weight-only quantization."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 127, (columns, inner), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(columns, 1) / 100)
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = torch.mm(rows, self.w.t().to(x.dtype)) * self.scale.view(-1)
        return y.reshape(*x.shape[:-1], -1) + self.bias


class Dynamic(WeightOnly):
    """Rows are quantized by their own largest values, products are sums of integers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        q = (rows / scale).round().clamp(-128, 127).to(torch.int8)
        unsigned = (q.to(torch.int32) + 128).to(torch.uint8)
        sums = torch._int_mm(unsigned, self.w.t())
        sums = sums - 128 * self.w.t().sum(0, keepdim=True, dtype=torch.int32)
        y = sums.float() * scale * self.scale.view(-1) + self.bias
        return y.reshape(*x.shape[:-1], -1)


KERNELS = {
    WeightOnly: ("float32,int8", {"gemm"}),
    Dynamic: ("uint8,int8", {"gemm_dot", "gemm_amx"}),
}
"""Dtypes of operands, and kernels of them, by what the processor has."""


@pytest.mark.parametrize("freeze", [False, True], ids=["parameters", "frozen"])
@pytest.mark.parametrize("layer", KERNELS, ids=lambda one: one.__name__)
def test_a_layer_is_one_kernel(
    layer: type[WeightOnly],
    freeze: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run known rows, then any number of them, which share a kernel."""
    monkeypatch.setenv("TVM_CONV_VERBOSE", "1")
    torch.manual_seed(0)
    model = nn.Sequential(layer(256, 512), nn.ReLU(), layer(512, 64)).eval()
    run = compiled(model, {"freeze": freeze})
    with torch.no_grad():
        for rows in (40, 17, 33):
            x = torch.randn(3, rows, 256)
            want = model(x)
            # Sums of 512 products in another order; one rounding of rows to integers may differ
            # where a quotient is a half.
            limit = 1e-5 if layer is WeightOnly else 1e-2
            torch.testing.assert_close(run(x), want, rtol=0, atol=limit * float(want.abs().max()))
    lines = [line.split(" | ") for line in capsys.readouterr().err.splitlines() if " | " in line]
    dtypes, kernels = KERNELS[layer]
    assert len(lines) >= 4 and all(line[1].startswith(dtypes) for line in lines)
    assert all("multiply" in line[2] and line[3] in kernels for line in lines)
