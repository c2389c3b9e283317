# SPDX-License-Identifier: Apache-2.0
"""Plans that can be asked for, and the script that times them beside the chosen one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import evaluate_cost_model
from support import rating
from support.cases import KINDS, case_of
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.select.choose import candidates, choose

CASES = [
    {"name": "up", "x": [1, 8, 6, 6], "cout": 6, "kernel": 4, "stride": 2, "padding": 1},
    {"name": "down", "op": "conv", "x": [2, 4, 9], "cout": 5, "kernel": 3, "padding": 2},
]
MACHINE = CpuMachine(vector_bytes=32, threads=2)


def options(*more: str) -> Any:
    return evaluate_cost_model.parser().parse_args(
        ["--threads", "1", "--time-budget", "0.001", *more]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry["name"])
def test_the_chosen_plan_is_a_candidate(entry: dict[str, Any], kind: str) -> None:
    problem = rating.problem_of(case_of(entry, 0), kind, "float32")
    found = {plan: cycles for cycles, plan in candidates(problem, MACHINE)}
    assert choose(problem, MACHINE) in found
    assert min(found.values()) > 0


def test_candidates_are_of_known_sizes() -> None:
    problem = rating.problem_of(case_of(CASES[0], 0), "conv", "float32")
    with pytest.raises(ValueError, match="sizes must be known"):
        list(candidates(replace(problem, n=object()), MACHINE))


def test_few_of_many_are_spread_over_the_estimate() -> None:
    many = [rating.Candidate(float(cycles), Plan()) for cycles in [*range(100, 120), 200, 400]]
    assert [one.cycles for one in rating.spread(many, 3)] == [100, 200, 400]
    assert rating.spread(many, 1) == many[:1]
    assert rating.spread(many[:2], 3) == many[:2]


@pytest.mark.usefixtures("threads_given_back")
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two cases, all kinds: the JSON says on what, which plans, how long, and what the choice
    costs; all values are right."""
    out, plot = tmp_path / "out" / "rate.json", tmp_path / "rate.png"
    given = options("--most", "2", "--json", str(out), "--plot", str(plot))
    assert rating.run([case_of(entry, 0) for entry in CASES], given) == 0
    found = json.loads(out.read_text())
    assert plot.stat().st_size > 0
    head = {"date", "commit", "cpu", "features", "machine", "threads", "versions", "within", "most"}
    assert head <= set(found["header"]) and found["header"]["left_out"] == []
    assert [(row["name"], row["kind"]) for row in found["rows"]] == [
        (entry["name"], kind) for entry in CASES for kind in KINDS
    ]
    for row in found["rows"]:
        plans = row["plans"]
        assert not row["incorrect"] and row["regret"] >= 1 and row["regret_best"] >= 1
        assert [one["kernel"] for one in plans if one["chosen"]] == [row["chosen_kernel"]]
        assert all(one["cycles"] > 0 and one["ms"] > 0 and one["plan"] for one in plans)
        assert sum(one["rated"] for one in row["kernels"].values()) == len(plans)
        assert all(one["within"] <= one["candidates"] for one in row["kernels"].values())
        low = min(one["cycles"] for one in plans)
        assert all(one["cycles"] <= 2 * low or one["chosen"] for one in plans)
    assert set(found["summary"]) == set(KINDS)
    assert all(one["worst"]["value"] >= one["geomean"] >= 1 for one in found["summary"].values())
    assert "conv_weight_grad: 2 shapes, regret geomean" in capsys.readouterr().out


def test_a_budget_leaves_shapes_out(tmp_path: Path) -> None:
    """Finished rows are written, and missing shapes are named."""
    out = tmp_path / "rate.json"
    given = options("--most", "1", "--seconds", "1e-9", "--kinds", "conv", "--json", str(out))
    assert rating.run([case_of(entry, 0) for entry in CASES], given) == 0
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 1 and found["header"]["left_out"] == ["down conv"]
