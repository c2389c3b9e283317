# SPDX-License-Identifier: Apache-2.0
"""The kernel that computes an operator is named, and can be selected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

from helpers import build, cuda
from helpers.cases import Case
from helpers.cuda import GEMM, UP
from helpers.whole import TARGET, check
from relax_ext.cli import main
from topi_ext import backend
from topi_ext.compat import tir
from topi_ext.cpu.registry import KERNELS
from topi_ext.kernel.info import INFO, KERNEL, KernelInfo, info_of
from topi_ext.kernel.selection import ALL, Selection, selected

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

WIDE = Case("conv", (28, 28), (3, 3), n=1, ins=64, outs=64, padding=(1,) * 4)


def model() -> nn.Module:
    """One operator of every kind that has kernels."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.GroupNorm(2, 8),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Flatten(2),
        nn.Linear(32 * 32, 10),
        nn.Softmax(-1),
    )


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [
        one for one in capsys.readouterr().err.splitlines() if one.startswith(("tvm_conv", "{"))
    ]


def infos(mod: tvm.IRModule, target: tvm.target.Target) -> list[KernelInfo]:
    with target:
        lowered = relax.transform.LegalizeOps()(mod)
    found = [info_of(f) for _, f in lowered.functions_items() if not isinstance(f, relax.Function)]
    return [one for one in found if one is not None]


def test_every_kernel_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_CONV_VERBOSE", "1")
    kernels = check(model(), torch.randn(1, 3, 8, 8))
    found = lines(capsys)
    assert len(found) == len(kernels)
    kinds = [line.split()[1] for line in found]
    assert kinds == ["conv", "conv_transpose", "normalize", "resize", "conv", "softmax"]
    assert "1x3x8x8 -> 1x16x8x8 kernel 3x3 padding 1x1x1x1 | float32 | add+relu | " in found[0]
    assert " cycles | " in found[0]


def test_machine_readable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_CONV_VERBOSE", "json")
    check(model(), torch.randn(1, 3, 8, 8))
    found = [json.loads(line) for line in lines(capsys)]
    assert [one["kind"] for one in found][:2] == ["conv", "conv_transpose"]
    assert found[0]["post_ops"] == ["add", "relu"] and found[0]["estimate"] > 0
    assert all(isinstance(one["plan"], dict) for one in found)


def test_refused_kernels_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each kernel of the kind, behind that of the kernel: its estimate, or why not."""
    monkeypatch.setenv("TVM_CONV_VERBOSE", "2")
    infos(build.forward_module([WIDE]), TARGET)
    chosen, *others = [line for line in lines(capsys) if line]
    kernel = chosen.split(" | ")[-3]
    verdicts = dict(line.removeprefix("tvm_conv:   ").split(" ", 1) for line in others)
    assert verdicts.keys() == {row.name for row in KERNELS.of_kind("conv") if row.candidates}
    estimates = {
        name: float(line.split()[1])
        for name, line in verdicts.items()
        if line.startswith("estimated ")
    }
    assert min(estimates, key=lambda name: estimates[name]) == kernel
    refused = verdicts.keys() - estimates.keys()
    assert refused and all(verdicts[name].startswith("refused: ") for name in refused)


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_nothing_is_printed_unless_asked(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_CONV_VERBOSE", value)
    infos(build.forward_module([WIDE]), TARGET)
    assert not lines(capsys)


def test_attributes() -> None:
    with TARGET:
        lowered = relax.transform.LegalizeOps()(build.forward_module([WIDE]))
    (func,) = (f for _, f in lowered.functions_items() if not isinstance(f, relax.Function))
    info = info_of(func)
    assert info is not None and func.attrs[KERNEL] == info.kernel
    assert json.loads(func.attrs[INFO])["plan"] == info.plan
    assert info.dtypes == ("float32",) * 3 and info.origin == "estimate" and info.unit == "cycles"


def test_cuda_and_gradients() -> None:
    found = infos(build.forward_module([GEMM, UP]), cuda.target("sm_80"))
    assert {one.unit for one in found} == {"ns"}
    assert {one.kind for one in found} == {"conv", "conv_transpose"}
    found = infos(build.gradient_module([WIDE]), TARGET)
    assert {one.kind for one in found} == {"conv", "conv_transpose", "conv_weight_grad"}


@pytest.mark.parametrize("selection", ["", "direct"])
def test_symbolic_sizes(selection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that chooses at run time is named with those that it chooses from."""
    monkeypatch.setenv("TVM_CONV_KERNEL", selection)
    n, h = (tir.Var(name, "int64") for name in "nh")
    shapes = [n, 32, h, h], [32, 32, 3, 3]
    mod = build.module(lambda x, w: relax.op.nn.conv2d(x, w, padding=1), *shapes)
    (info,) = infos(mod, TARGET)
    assert info.estimate is None or selection
    if selection:
        assert info.kernel == "direct"
    else:
        assert info.kernel.startswith("runtime_dispatch(") and info.shape.startswith("nx32x")


@pytest.mark.parametrize("selection", ["direct", "winograd", "-winograd", "-winograd, -direct"])
def test_selected_kernels_compute_the_same(
    selection: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    mod = build.forward_module([WIDE])
    monkeypatch.setenv("TVM_CONV_KERNEL", selection)
    (info,) = infos(mod, TARGET)
    assert info.origin == "selected"
    if selection.startswith("-"):
        assert f"-{info.kernel}" not in selection
    else:
        assert info.kernel == selection
    check(nn.Conv2d(64, 64, 3, padding=1), torch.randn(1, 64, 28, 28), tolerance=4e-6)


def test_a_kernel_that_does_not_serve_leaves_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = build.forward_module([WIDE])
    (usual,) = infos(mod, TARGET)
    monkeypatch.setenv("TVM_CONV_KERNEL", "gemm_col2im")
    (info,) = infos(mod, TARGET)
    assert (info.kernel, info.plan) == (usual.kernel, usual.plan)


def test_a_name_that_no_kernel_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CONV_KERNEL", "-fast")
    with pytest.raises(ValueError, match=r"^TVM_CONV_KERNEL: 'fast' must be one of attention, "):
        backend.of_target(TARGET)


def test_selection_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a", "b", "c"}
    assert selected(known) == ALL and ALL.is_all and ALL.allows("a")
    monkeypatch.setenv("TVM_CONV_KERNEL", " a, b ,-b")
    found = selected(known)
    assert found == Selection(frozenset("ab"), frozenset("b"))
    assert [found.allows(name) for name in "abc"] == [True, False, False]


def test_doctor_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "model.pt2", tmp_path / "kernels.json"
    layers = nn.Sequential(model()[:3], nn.MaxPool2d(2)).eval()
    torch.export.save(torch.export.export(layers, (torch.randn(1, 3, 8, 8),)), path)
    assert main(["doctor", str(path), "--threads", "1", "--json", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("model.pt2 on llvm")
    assert sorted(line.split()[0] for line in printed[1:3]) == ["conv", "conv_transpose"]
    assert printed[-1] == "2 kernels; TVM computes max_pool2d"
    found = json.loads(out.read_text())
    assert sorted(one["kind"] for one in found["ours"]) == ["conv", "conv_transpose"]
    assert main(["doctor", str(tmp_path / "none.pt2")]) == 2
    assert capsys.readouterr().err.endswith("none.pt2: no such file\n")


def test_doctor_of_a_model_needs_no_rich(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt2"
    program = torch.export.export(model()[:1].eval(), (torch.randn(1, 3, 8, 8),))
    torch.export.save(program, path)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["doctor", str(path), "--threads", "1"]) == 0
    assert "1 kernel" in capsys.readouterr().out


def test_the_pipeline_is_the_one_of_users() -> None:
    """`doctor` lists the kernels that ``tvm.compile`` builds with the same pipeline."""
    from relax_ext.cli.instrument import KernelNames

    mod = from_exported_program(torch.export.export(model().eval(), (torch.randn(1, 3, 8, 8),)))
    recorded = KernelNames(TARGET)
    tvm.compile(mod, TARGET, relax_pipeline=recorded.pipeline)
    again = KernelNames(TARGET)
    with TARGET:
        again.pipeline(mod)
    assert recorded.infos == again.infos and len(recorded.infos) == 6
