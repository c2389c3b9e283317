# SPDX-License-Identifier: Apache-2.0
"""Which sizes ``torch.compile(..., backend="tvm_conv")`` compiles functions of their own for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import relax_ext
from helpers.torch_backend import assert_same, check_inference, compiled, gradients
from relax_ext import executable_cache
from relax_ext.torch import executables, part, report
from topi_ext.code_cache.build import why_nothing_is_kept


def net() -> nn.Module:
    """Return two convolutions and a batch norm, in float64."""
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    return nn.Sequential(*layers).double()


def image(batch: int) -> torch.Tensor:
    return torch.rand(batch, 3, 6, 7, dtype=torch.float64) - 0.5


def sizes() -> list[list[Any]]:
    """Return what the parts of each graph are compiled for."""
    return [list(one.compiled) for graph in report().graphs for one in graph.parts]


def check(run: Any, model: nn.Module, *batches: int) -> None:
    for batch in batches:
        check_inference(model, image(batch), run=run)


OWN = executables.STATIC_SIZES


def test_sizes_that_pytorch_makes_symbolic() -> None:
    """The first sizes have functions, all others share one; a size that comes back has its own."""
    model = net().eval()
    run = compiled(model)
    batches = list(range(2, 3 + OWN))
    check(run, model, *batches)
    assert sizes() == [[None], [(batch,) for batch in batches[1:]]]
    check(run, model, 9, 11, *batches, 8)
    assert sizes()[1] == [*((batch,) for batch in batches[1:]), None]
    text = str(report())
    assert "compiled for sizes (3,) (" in text and "others (" in text
    assert report().seconds >= sum(sum(one.compiled.values()) for one in report().graphs[1].parts)


def test_two_sizes_in_turn() -> None:
    """The graph of symbolic sizes takes over from that of the first size, and what it compiled."""
    if why_nothing_is_kept(relax_ext.host_target()) is not None:
        pytest.skip("no executable is kept on this machine")
    model = net().eval()
    check(compiled(model), model, 4, 3, 4, 3, 4)
    assert sizes() == [[None], [(3,)]]


@pytest.mark.parametrize("how", ["dynamic", "mark_dynamic", "maybe_mark_dynamic"])
def test_sizes_that_the_user_makes_symbolic(how: str) -> None:
    """One function for all sizes is compiled at once, which was asked for."""
    model, x = net().eval(), image(4)
    if how == "mark_dynamic":
        torch._dynamo.mark_dynamic(x, 0)
    if how == "maybe_mark_dynamic":
        torch._dynamo.maybe_mark_dynamic(x, 0)
    run = compiled(model, dynamic=True if how == "dynamic" else None)
    with torch.no_grad():
        assert_same(run(x), model(x))
    check(run, model, 3, 5)
    assert sizes() == [[None]]


def test_sizes_that_must_not_be_symbolic() -> None:
    model = net().eval()
    check(compiled(model, dynamic=False), model, 2, 3, 4)
    assert sizes() == [[None]] * 3


@pytest.mark.parametrize("count", [0, 1])
def test_the_option(count: int) -> None:
    model = net().eval()
    run = compiled(model, {"unknown": "raise", "static_sizes": count}, dynamic=True)
    check(run, model, 4, 3, 5, 4)
    assert sizes() == [[(4, 6, 7), None] if count else [None]]


def test_training_and_frozen_weights() -> None:
    """Forward and backward graphs have the same sizes; weights are packed for each function."""
    model = net()
    twin = copy.deepcopy(model)
    run = compiled(model)
    for batch in (2, 3, 4, 5, 6, 3):
        x = image(batch)
        for one, module in ((run, model), (twin, twin)):
            module.zero_grad()
            one(x).square().sum().backward()
        assert_same(gradients(model.parameters()), gradients(twin.parameters()))
    own = [*((batch,) for batch in range(3, 3 + OWN)), None]
    assert sizes() == [[None], [None], own, own]
    model.eval()
    run = compiled(model, {"unknown": "raise", "freeze": True})
    check(run, model, 2, 3, 4, 5, 6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    check(run, model, 6, 4, 3, 2)


def test_layers_that_two_models_use() -> None:
    """PyTorch makes channels and images symbolic where a container is called with both."""
    torch._dynamo.reset()
    report(clear=True)
    for number, channels in enumerate((3, 5)):
        model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
        run = torch.compile(model, backend="tvm_conv", options={"unknown": "raise"})
        x = torch.rand(2 + number, channels, 6 + number, 7 + number)
        with torch.no_grad():
            assert_same(run(x), model(x), limit=1e-5)  # float32, 45 products
    assert not any(None in own for own in sizes()[1:])


@pytest.mark.parametrize("raises", [False, True])
def test_a_later_size_that_does_not_compile(raises: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in PyTorch, with one warning, and the sizes before it keep their functions."""
    model = net().eval()
    run = compiled(model, {"unknown": "raise" if raises else "eager", "static_sizes": 1})
    check(run, model, 2, 3)

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such sizes")

    monkeypatch.setattr(part, "compiled", failing)
    if raises:
        with pytest.raises(RuntimeError, match="no such sizes"):
            run(image(4))
        return
    with pytest.warns(UserWarning, match="all other sizes of a part stay in PyTorch"):
        check(run, model, 4)
    check(run, model, 5, 3, 2)


def test_a_size_that_does_not_compile_behind_one_that_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first size of the graph was not compiled for it, and it is no first failure."""
    if why_nothing_is_kept(relax_ext.host_target()) is not None:
        pytest.skip("no executable is kept on this machine")
    model = net().eval()
    earlier = compiled(model)
    check(earlier, model, 2, 3)
    kept = dict(executable_cache._in_use)
    run = compiled(model, {"unknown": "eager", "static_sizes": 1})
    check(run, model, 2, 3)
    assert sizes() == [[None], []] and kept

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such sizes")

    monkeypatch.setattr(part, "compiled", failing)
    with pytest.warns(UserWarning, match="sizes 4 of a part stay in PyTorch"):
        check(run, model, 4, 3)


@pytest.mark.parametrize("freeze", [False, True])
def test_later_processes_load_what_was_compiled(
    freeze: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the cache no part is compiled twice, whichever sizes it is for."""
    if why_nothing_is_kept(relax_ext.host_target()) is not None:
        pytest.skip("the cache is off on this machine")
    monkeypatch.setenv("TVM_CONV_CACHE", str(tmp_path))
    model, options = net().eval(), {"unknown": "raise", "freeze": freeze}
    batches = range(2, 5 + OWN)
    check(compiled(model, options), model, *batches)
    executable_cache._in_use.clear()

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("must not run")

    monkeypatch.setattr(executable_cache, "pipeline", refused)
    check(compiled(model, options), model, *batches)
