# SPDX-License-Identifier: Apache-2.0
"""Operators that cannot be compiled, and interrupts while a graph is compiled."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Any

import pytest
import torch

from helpers.torch_backend import assert_same, compiled
from relax_ext.torch import graph, report

PIPELINE = import_module("relax_ext.pipeline")  # the package has a function of that name


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.rand(3, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)


def test_refusals_of_the_import_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All remainders of floats, by two partitions: the work is linear in their number."""
    cuts: list[Any] = []
    cut = graph.Partition
    monkeypatch.setattr(graph, "Partition", lambda *args: cuts.append(None) or cut(*args))

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = torch.relu(x @ w) % 1.3
        return x

    x, w = operands()
    run = compiled(function, {})
    with torch.no_grad(), pytest.warns(UserWarning, match="remainder of floats"):
        assert_same(run(x, w), function(x, w))
    (found,) = report().graphs
    assert len(cuts) == 2 and len(found.parts) == 12
    assert list(found.unknown) == ["aten.remainder.Scalar"]
    assert found.seconds >= sum(sum(part.compiled.values()) for part in found.parts)


def chain(x: torch.Tensor, w: torch.Tensor) -> Any:
    variance, mean = torch.var_mean(x @ w, 1)
    y = (x.cos() @ w).sinh()
    z = y.tan().relu().exp() @ w
    return z + variance[:, None], mean, (z.sin() @ w).abs()


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ([("R.tan(",)], {"aten.tan.default"}),
        ([("R.cos(",), ("R.sinh(",)], {"aten.cos.default", "aten.sinh.default"}),
        ([("R.sinh(", "R.tan(")], None),
    ],
    ids=["one", "two", "only together"],
)
def test_an_operator_that_fails_costs_one_operator(
    refused: list[tuple[str, ...]], expected: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilation of parts that contain some operators fails, alone or together."""
    compile_part, tried = graph.compile_part, []

    def failing(part: Any, options: Any) -> Any:
        tried.append(part)
        text = part.modules.of(None, part.modules.first).script()
        if any(all(name in text for name in names) for names in refused):
            raise RuntimeError(f"no such operators: {refused}")
        return compile_part(part, options)

    monkeypatch.setattr(graph, "compile_part", failing)
    x, w = operands()
    run = compiled(chain, {})
    with torch.no_grad(), pytest.warns(UserWarning, match="no such operators"):
        assert_same(run(x, w), chain(x, w))
    (found,) = report().graphs
    if expected is not None:
        assert set(found.unknown) == expected
    assert len(found.unknown) <= 2
    assert sum(part.operators for part in found.parts) >= found.operators - 2
    assert len(tried) <= 40


def test_a_fault_of_all_operators_is_not_sought_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing compiles, the graph stays in PyTorch after few tries, with one warning."""
    tried = []

    def failing(part: Any, _: Any) -> Any:
        tried.append(part)
        raise RuntimeError("nothing compiles")

    def long(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        for _ in range(50):
            y = y.sin().exp()
        return y

    monkeypatch.setattr(graph, "compile_part", failing)
    x, w = operands()
    run = compiled(long, {})
    with torch.no_grad(), pytest.warns(UserWarning, match="nothing compiles"):
        assert_same(run(x, w), long(x, w))
    assert len(tried) <= 2 * graph.MOST_FAILED + 16  # and one way down from 101 operators


@pytest.mark.parametrize("kind", ["in a pass", "in a converter"])
def test_an_interrupt_is_not_lost(
    kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """TVM makes a RuntimeError without a text of it; the next call compiles the graph."""
    x, w = operands()
    run = compiled(chain, {})

    def interrupted(*_: Any, **__: Any) -> Any:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("") from error

    # Processes in the background of a shell ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with monkeypatch.context() as patch, torch.no_grad():
        if kind == "in a pass":
            patch.setattr(PIPELINE, "parallelized", interrupted)
        else:
            patch.setattr("relax_ext.aten.calls.Call.emit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(x, w)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    report(clear=True)
    with torch.no_grad():
        assert_same(run(x, w), chain(x, w))
    (found,) = report().graphs
    assert found.parts and not found.unknown
