# SPDX-License-Identifier: Apache-2.0
"""The examples: training by TVM follows PyTorch, and every decoder can be exported."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import relax_ext

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import autoencoder
import demo
import models
import segmentation

from conv_cli.check import Report, Row
from conv_cli.measure import Side

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def test_training_follows_torch_step_by_step() -> None:
    """50 steps from the same weights on the same batches; a wrong gradient shows at once."""
    torch.manual_seed(0)
    model = autoencoder.Autoencoder(width=8, code=8)
    twin = copy.deepcopy(model)
    data = autoencoder.digits(256)
    batches = autoencoder.batches(data, 16, 50)
    theirs = autoencoder.train_torch(model, batches, data[:4])
    ours = autoencoder.train_tvm(twin, batches, data[:4], relax_ext.host_target())
    assert len(ours.losses) == 50
    assert ours.losses[-1] < 0.5 * ours.losses[0]
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-4)
    np.testing.assert_allclose(ours.reconstructions, theirs.reconstructions, atol=1e-3)
    for mine, other in zip(twin.parameters(), model.parameters()):
        np.testing.assert_allclose(mine.detach(), other.detach(), atol=1e-3)


def test_the_unet_trains_as_in_pytorch() -> None:
    """Batch norm, max pooling and Adam; roundings are multiplied by each step."""
    torch.manual_seed(0)
    model = segmentation.UNet(width=4)
    twin = copy.deepcopy(model)
    batches = segmentation.batches(8, 10)
    shown, _ = segmentation.noisy(autoencoder.digits(2), seed=1)
    theirs = segmentation.train_torch(model, batches, shown, lambda: None)
    ours = segmentation.train_tvm(twin, batches, shown, lambda: None)
    assert ours.losses[-1] < ours.losses[0]
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-3)
    for name, buffer in twin.named_buffers():
        np.testing.assert_allclose(buffer, dict(model.named_buffers())[name], rtol=1e-2, atol=1e-3)


def test_the_report_says_why_times_are_rough(tmp_path: Path) -> None:
    """The command line's notes on a measurement stand beside the times, in the page too."""
    row = Row("conv2d", "3x3", 1, 1e-4, Side(1e-6, 28.0), Side(1e-6, 1.0), 0.5)
    busy = "this machine is busy (load 9.1), times are rough"
    report = Report("relax_ext", "DCGAN", "torch", "llvm", 2, [busy], [row], row)
    history = autoencoder.History(np.linspace(1, 0.5, 50), np.zeros((4, 1, 8, 8)))
    pictures = np.zeros((4, 1, 8, 8))
    unet = demo.Unet(history, history, history, [("input", pictures), ("digit", pictures)])
    demo.write_report(tmp_path, [report], [], history, history, pictures, unet, 1.0)
    assert f"DCGAN (relax_ext): {busy}" in (tmp_path / "report.html").read_text()
    report.notes.clear()
    demo.write_report(tmp_path, [report], [], history, history, pictures, unet, 1.0)
    assert "busy" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", list(models.DECODERS))
def test_decoders_have_live_outputs(name: str) -> None:
    """Outputs neither vanish nor blow up, so that comparing them means something."""
    model, x = models.make(name)
    with torch.no_grad():
        y = model(x)
    assert torch.isfinite(y).all()
    assert 1e-3 < y.std() < 1e3
