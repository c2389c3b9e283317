# SPDX-License-Identifier: Apache-2.0
"""Options of the backend ``tvm_conv``, frozen weights, what it refuses, and how it is found."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
import tvm
from torch import nn

import relax_ext
from helpers.process import in_new_process
from helpers.torch_backend import assert_same, check_inference, compiled
from relax_ext.torch import openmp, report, setup
from relax_ext.torch import run as runs
from relax_ext.torch.options import Options
from topi_ext import notices

ROOT = Path(__file__).parents[2]


def conv(channels: int = 3) -> nn.Module:
    return nn.Conv2d(channels, 8, 3, padding=1).eval()


def image() -> torch.Tensor:
    return torch.rand(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            {"thread": 2},
            "option thread=2 must be one of target, threads, database, unknown, freeze, dtype, "
            "static_sizes",
        ),
        ({"threads": 0}, "option threads=0 must be a positive integer"),
        ({"threads": True}, "option threads=True must be a positive integer"),
        ({"static_sizes": -1}, "option static_sizes=-1 must be an integer of at least 0"),
        ({"database": 3}, "option database=3 must be the path of a file"),
        ({"unknown": "warn"}, "option unknown='warn' must be 'eager' or 'raise'"),
        ({"freeze": 1}, "option freeze=1 must be True or False"),
        ({"dtype": "int8"}, "option dtype='int8' must be bfloat16 or float16"),
        ({"dtype": torch.float32}, "option dtype=torch.float32 must be bfloat16 or float16"),
        ({"target": "nothing"}, "option target='nothing' must be a target of TVM"),
        ({"target": "cuda"}, "option target='cuda' must be an llvm target"),
    ],
)
def test_options_are_checked(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError) as error:
        Options.of(options)
    assert str(error.value) == f"tvm_conv: {rule}"


def test_a_wrong_option_is_an_error_of_the_first_call() -> None:
    with pytest.raises(Exception, match="tvm_conv: option fast=True must be one of"):
        compiled(conv(), {"fast": True})(image())


def test_modes_are_refused() -> None:
    torch._dynamo.reset()
    run = torch.compile(conv(), backend="tvm_conv", mode="max-autotune")
    with pytest.raises(Exception, match="tvm_conv: mode='max-autotune' must be left out"):
        run(image())


def test_options_reach_tvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from relax_ext import executable_cache

    seen: list[Any] = []
    stock = executable_cache.pipeline
    monkeypatch.setattr(
        executable_cache, "pipeline", lambda *given: seen.append(given) or stock(*given)
    )
    database = tmp_path / "plans.json"
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    options = {"target": target, "threads": 1, "database": str(database), "unknown": "raise"}
    check_inference(conv().double(), image().double(), options=options)
    (given,) = seen
    assert given == (target, str(database))


@pytest.mark.usefixtures("no_graph_is_small")
def test_threads_of_tvm_where_pytorch_has_no_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM runs on as many as PyTorch has at the call, or on as many as the option says."""
    monkeypatch.setattr(openmp, "_set_team", lambda: None)
    number = tvm.get_global_func("runtime.NumThreads")
    before, x = torch.get_num_threads(), image()
    run, one = compiled(conv()), torch.compile(conv(), backend="tvm_conv", options={"threads": 1})
    try:
        for count in (2, 1, 2):
            torch.set_num_threads(count)
            with torch.no_grad():
                run(x)
                assert number() == count
                one(x)
                assert number() == 1
    finally:
        torch.set_num_threads(before)


FREEZE = {"freeze": True, "unknown": "raise"}


def changed(model: nn.Module, change: Callable[[nn.Parameter], Any]) -> bool:
    """Return whether a model with frozen weights sees a change of the first."""
    run, x = compiled(model, FREEZE), torch.rand(1, 64, 12, 12)
    with torch.no_grad():
        assert_same(run(x), model(x), 1e-5)
        change(next(model.parameters()))
        return bool(torch.allclose(run(x), model(x), rtol=1e-4, atol=1e-4))


def replace(weight: nn.Parameter) -> None:
    weight.data = torch.rand_like(weight)


def through_numpy(weight: nn.Parameter) -> None:
    weight.detach().numpy()[:] *= 2


SEEN: dict[str, Callable[[nn.Parameter], Any]] = {
    "in place": lambda weight: weight.mul_(2),
    "copied": lambda weight: weight.copy_(torch.rand_like(weight)),
    "another tensor": replace,
}
UNSEEN: dict[str, Callable[[nn.Parameter], Any]] = {
    "through .data": lambda weight: weight.data.mul_(2),
    "through NumPy": through_numpy,
}


@pytest.mark.parametrize("name", [*SEEN, *UNSEEN])
def test_frozen_weights(name: str) -> None:
    """Packed once, by a function of their own; two changes are not seen, which the how-to says."""
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Flatten(1))
    model = nn.Sequential(*model, nn.Linear(64 * 144, 4)).eval()
    assert changed(model, (SEEN | UNSEEN)[name]) == (name in SEEN)
    (graph,) = report().graphs
    assert graph.parts[0].packed == 8


def test_frozen_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    stock = runs.CompiledPart._pack
    monkeypatch.setattr(
        runs.CompiledPart, "_pack", lambda *given: packed.append(1) or stock(*given)
    )
    model, x = conv(), image()
    run = compiled(model, FREEZE)
    with torch.no_grad():
        for _ in range(3):
            run(x)
        assert len(packed) == 1
        model.weight.mul_(2)
        run(x)
        assert len(packed) == 2
    with torch.inference_mode():
        made_inside = conv()
        run = compiled(made_inside, FREEZE)
        for _ in range(2):
            assert_same(run(x), made_inside(x), 1e-5)
    assert len(packed) == 4  # without a version, at every call


def test_training_does_not_freeze() -> None:
    run = compiled(conv(), FREEZE)
    run(image()).sum().backward()
    assert [part.packed for graph in report().graphs for part in graph.parts] == [0, 0]


@pytest.mark.usefixtures("no_graph_is_small")
@pytest.mark.parametrize("unknown", ["eager", "raise"])
def test_a_failure_of_the_compiler_leaves_pytorch(
    unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part runs in PyTorch, with one warning; or the error is raised."""
    from relax_ext import executable_cache

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(executable_cache.tvm, "compile", failing)
    notices.warn_once.cache_clear()
    if unknown == "raise":
        with pytest.raises(Exception, match="no such instruction"):
            check_inference(conv(), image())
        return
    with pytest.warns(UserWarning, match="tvm_conv: inference: .* no such instruction"):
        found = check_inference(conv(), image(), options={})
    assert found.graphs[0].parts == []


@pytest.mark.usefixtures("no_graph_is_small")
def test_unregistered_rules_leave_pytorch() -> None:
    """Stock TVM's convolutions would be slow, and wrong for some geometries."""
    notices.warn_once.cache_clear()
    with relax_ext.stock(), pytest.warns(UserWarning, match="relax_ext is unregistered"):
        found = check_inference(conv(), image(), options={})
    assert found.graphs[0].parts == []


def test_old_releases_of_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(ImportError, match=r"torch 2\.4\.1\+cpu is too old: it needs 2\.5 or newer"):
        setup.require_torch()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"relax_ext\.torch: needs PyTorch 2\.5 or newer"):
        setup.require_torch()


def test_importing_again_is_harmless() -> None:
    importlib.reload(sys.modules["relax_ext.torch"])
    assert "tvm_conv" in torch._dynamo.list_backends()


def environment(**others: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT / "python"), **others}


ENTRY = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
assert "tvm_conv" in torch._dynamo.list_backends()
run = torch.compile(torch.nn.Conv2d(3, 4, 3), backend="tvm_conv", options={"unknown": "raise"})
assert "relax_ext" in sys.modules
import os, relax_ext.torch
torch.compile(run, backend="tvm_conv")
print(os.environ["TVM_BIND_THREADS"], os.environ["TVM_NUM_THREADS"])
"""


def test_the_name_is_found_by_an_entry_point(tmp_path: Path) -> None:
    """Metadata of an installed package has the entry point of pyproject.toml."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (group,) = stated["entry-points"]
    folder = tmp_path / "tvm_conv_ext-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tvm-conv-ext\nVersion: 9\n")
    entries = "".join(
        f"{name} = {value}\n" for name, value in stated["entry-points"][group].items()
    )
    (folder / "entry_points.txt").write_text(f"[{group}]\n{entries}")
    printed = in_new_process(ENTRY, tmp_path, env=environment(TVM_NUM_THREADS="1"))
    assert printed.split() == ["0", "1"]
