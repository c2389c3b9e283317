# SPDX-License-Identifier: Apache-2.0
"""Files of measured plans: what is found in them, what is ignored, and several writers."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from topi_ext import notices
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.select.choose import candidates
from topi_ext.cpu.select.lookup import entry, measured
from topi_ext.kernel.database import (
    DatabaseError,
    current,
    machine_name,
    merge,
    opened,
    read,
    using,
)
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import PostOp

MACHINE = CpuMachine(vector_bytes=32, threads=2)
NAME = machine_name("znver3", MACHINE)
GEOMETRY = Geometry.of_conv("conv2d", (1, 8, 12, 12), (8, 8, 3, 3), padding=1).as_rank3()
PROBLEM = Convolution("conv", GEOMETRY, Layouts.canonical(2), 1, ("float32",) * 3)
PLANS = [plan for _, plan in candidates(PROBLEM, MACHINE)]


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    notices.warn_once.cache_clear()
    monkeypatch.delenv("TVM_CONV_PLANS", raising=False)


def planted(path: Path, number: int, problem: Convolution = PROBLEM, name: str = NAME) -> None:
    merge(path, {name: {problem.signature: entry(PLANS[number], 1.0, 2.0)}})


@pytest.mark.parametrize("number", [0, len(PLANS) // 2, -1])
def test_a_plan_comes_back(tmp_path: Path, number: int) -> None:
    planted(tmp_path / "plans.json", number)
    database = opened(tmp_path / "plans.json")
    assert measured(PROBLEM, MACHINE, "znver3", database) == PLANS[number]
    lines = (tmp_path / "plans.json").read_text().splitlines()
    assert sum('"kernel"' in line for line in lines) == 1


OTHERS = {
    "batch": replace(PROBLEM, n=2),
    "dtypes": replace(PROBLEM, dtypes=("float16",) * 3),
    "layouts": replace(PROBLEM, layouts=Layouts("NHWC", "OIHW", "NCHW")),
    "epilogue": replace(PROBLEM, epilogue=(PostOp("relu"),)),
    "operand of it": replace(PROBLEM, epilogue=(PostOp("add", "NCHW", "C"),)),
    "packed": replace(PROBLEM, prepacked=True),
    "face": replace(PROBLEM, kind="conv_transpose"),
    "zero points": replace(PROBLEM, dtypes=("int8", "int8", "int32"), zero_points=(3, 0)),
    "geometry": replace(PROBLEM, geometry=replace(GEOMETRY, pad_before=(0, 1, 2))),
}


def test_entries_are_of_one_problem() -> None:
    assert len({one.signature for one in (PROBLEM, *OTHERS.values())}) == len(OTHERS) + 1
    slope = replace(PROBLEM, epilogue=(PostOp("leaky_relu", value=0.1),))
    other = replace(PROBLEM, epilogue=(PostOp("leaky_relu", value=0.2),))
    assert slope.signature == other.signature


@pytest.mark.parametrize("one", OTHERS.values(), ids=OTHERS)
def test_another_problem_finds_nothing(tmp_path: Path, one: Convolution) -> None:
    planted(tmp_path / "plans.json", 0)
    with warnings.catch_warnings(record=True) as said:
        assert measured(one, MACHINE, "znver3", opened(tmp_path / "plans.json")) is None
    assert not said


def test_another_machine_is_told_once(tmp_path: Path) -> None:
    planted(tmp_path / "plans.json", 0)
    database = opened(tmp_path / "plans.json")
    with warnings.catch_warnings(record=True) as said:
        for problem in (PROBLEM, OTHERS["batch"]):
            assert measured(problem, MACHINE, "znver4", database) is None
    assert len(said) == 1
    assert "ignored, it has no plans for processor=znver4" in str(said[0].message)


@pytest.mark.parametrize("fields", [{}, {"tile": [3]}, None, {**PLANS[0].__dict__, "lanes": 5}])
def test_a_plan_that_there_is_not_is_ignored(tmp_path: Path, fields: object) -> None:
    found = {"kernel": "direct", "plan": fields, "ms": 1}
    text = json.dumps(found, default=repr)
    merge(tmp_path / "plans.json", {NAME: {PROBLEM.signature: json.loads(text)}})
    with pytest.warns(UserWarning, match="plans that this version has not are ignored"):
        assert measured(PROBLEM, MACHINE, "znver3", opened(tmp_path / "plans.json")) is None


HEAD = '{"format": "tvm-conv-ext plans", "version": 1, "plans": '
BROKEN = {
    "empty": ("", "not JSON"),
    "cut": (HEAD + "{", "not JSON"),
    "deep": ("[" * 100000, "not JSON"),
    "list": ("[]", "its format must be"),
    "other format": ('{"format": "tophub"}', "its format must be"),
    "later": ('{"format": "tvm-conv-ext plans", "version": 2}', "version must be 1, not 2"),
    "plans": (HEAD + "[]}", "must be objects"),
    "problems": (HEAD + '{"m": {"p": 3}}}', "must be objects"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_told_once_and_left_alone(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "plans.json"
    path.write_text(text)
    with warnings.catch_warnings(record=True) as said:
        for _ in range(2):
            with using(path):
                assert current() is None
    assert len(said) == 1
    assert reason in str(said[0].message)
    assert "\n" not in str(said[0].message)
    with pytest.raises(DatabaseError, match=reason):
        planted(path, 0)
    assert path.read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_no_file(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no plans are used: No such file"):
        assert opened(tmp_path / "absent.json") is None
    with pytest.warns(UserWarning, match="no plans are used"):
        assert opened(tmp_path / "absent.json/below.json") is None
    with pytest.warns(UserWarning, match="no database of plans: Is a directory"):
        assert opened(tmp_path) is None


def test_which_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost one, else that of the environment; a changed file is another database."""
    planted(tmp_path / "a.json", 0)
    planted(tmp_path / "b.json", 1)
    assert current() is None
    with using(tmp_path / "a.json"):
        first = current()
        with using(tmp_path / "b.json"):
            assert current() != first
        with using(None):
            assert current() is None
        assert current() == first
    assert current() is None
    monkeypatch.setenv("TVM_CONV_PLANS", str(tmp_path / "a.json"))
    assert current() == first
    planted(tmp_path / "a.json", 1)
    assert current() != first
    assert measured(PROBLEM, MACHINE, "znver3", first) == PLANS[0]
    assert measured(PROBLEM, MACHINE, "znver3", current()) == PLANS[1]


def _write(path: Path, writer: int) -> None:
    for batch in range(10):
        planted(path, 0, replace(PROBLEM, n=10 * writer + batch))
        read(path)


def test_several_writers(tmp_path: Path) -> None:
    """Nothing is lost, and nobody reads half a file."""
    path = tmp_path / "plans.json"
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        for done in [pool.submit(_write, path, writer) for writer in range(4)]:
            done.result()
    assert len(read(path)[NAME]) == 40
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_nothing_is_left_of_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(tmp_path / "plans.json", 0)
    before = (tmp_path / "plans.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        planted(tmp_path / "plans.json", 1)
    assert (tmp_path / "plans.json").read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["plans.json"]
