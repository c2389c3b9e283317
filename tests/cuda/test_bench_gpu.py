# SPDX-License-Identifier: Apache-2.0
"""The run on a GPU, without one: what it asks for, launches, and says of the times."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bench_gpu
from cuda_emulator.host import Address, Launch, Memory, Plan
from helpers import fake_gpu
from helpers.fake_gpu import FakeCuda, device
from support import processes
from support.cases import KINDS, Case
from support.gpu import (
    building,
    bundle,
    driver,
    measure,
    requests,
    session,
    summary,
    tensors,
    through_tvm,
)
from support.gpu.record import Record
from support.gpu.requests import Request
from topi_ext.cuda.machine import GpuMachine
from topi_ext.cuda.plan.implicit_gemm import ImplicitGemmPlan
from topi_ext.cuda.plan.implicit_gemm_mma import ImplicitGemmMmaPlan
from topi_ext.cuda.plan.tiles import Tile
from topi_ext.cuda.registry import KERNELS
from topi_ext.spec.geometry import Geometry

SCRIPTS = Path(__file__).parents[2] / "scripts"
MACHINE = GpuMachine.of_arch("sm_90")
GEOMETRY = Geometry.of_conv("up", (2, 24, 12, 10), (40, 24, 4, 4), stride=2, padding=1)
CASE = Case("up", "conv", 2, GEOMETRY)
FORMATS = [("float32", "first"), ("float16", "last"), ("bfloat16", "first")]


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize("n", [1, 5])
def test_launches_of_any_batch(n: int) -> None:
    """Blocks, sizes and workspaces follow from the shapes that a call is given."""
    case = Case("up", "conv", n, GEOMETRY)
    request = Request(case, "conv", maker="symbolic")
    plan = ImplicitGemmPlan(Tile(64, 64, 8, 2), 4, 4, packed=True)
    problem = building.sized(request, request.problem)
    made = building.lower(building.kernels.build(problem, plan), "sm_90")
    found = made.plan(*map(request.stored, request.roles))
    pack, multiply, add = found.launches
    rows = -(-n * 6 * 5 // 64)
    assert multiply.grid == (rows * 1 * 2, 1, 1)
    assert multiply.block == (256, 1, 1)
    assert pack.grid == (-(-16 * 24 * 64 // 256), 1, 1)
    assert [one.argument for one in found.memory] == [0, 1, 2, None, None]
    workspaces = [one.bytes for one in found.memory if one.argument is None]
    assert workspaces == [16 * 24 * 64 * 4, 2 * n * 40 * 30 * 4]
    assert multiply.arguments[:3] == (Address(0, 0), Address(3, 0), Address(4, 0))
    assert add.arguments[:2] == (Address(4, 0), Address(2, 0))
    assert add.grid == (-(-n * 40 * 30 // 256), 1, 1)
    assert set(multiply.types[:3]) == {"handle"} and set(multiply.types[3:]) <= {"int64", "int32"}


def test_dynamic_shared_memory_is_asked_for() -> None:
    request = Request(CASE, "conv", "float16", "last")
    plan = ImplicitGemmMmaPlan(Tile(128, 128, 32), 2, 4, stages=4)
    made = building.lower(building.kernels.build(request.problem, plan), "sm_90")
    found = made.plan(*map(request.stored, request.roles))
    multiply = found.launches[-1]
    assert multiply.dynamic_shared == 4 * plan.stage_bytes
    cuda = FakeCuda()
    code = bundle.Prepared("", "", "", b"code", found)
    kernel = driver.Kernel(driver.Driver(cuda), code, [256, 512, 768, 1024])
    kernel(0)
    assert cuda.attributes == [multiply.dynamic_shared]
    assert cuda.launches[-1] == (*multiply.grid, *multiply.block, multiply.dynamic_shared)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", ["ours", "prepacked", "stock"])
def test_what_is_built(kind: str, maker: str) -> None:
    """Each maker's kernels, or one line that says why there are none."""
    request = Request(CASE, kind, "float32", "first", maker=maker)
    if kind == "conv_weight_grad" and maker != "ours":
        with pytest.raises(ValueError, match=r"^.*(several kernels|packs no weights).*$"):
            building.build(request, "sm_90")
        return
    made = building.build(request, "sm_90")
    assert "__global__" in made.source
    assert made.call.launches
    assert (made.packed > 0) == (maker == "prepacked")


def test_a_refusal_of_the_driver_is_one_line() -> None:
    with pytest.raises(driver.DriverError, match=r"cuModuleLoadData: no such thing \(200\)"):
        driver.Driver(FakeCuda()).load(b"")


# ---------------------------------------------------------------- requests and bundles


@pytest.fixture(scope="module")
def found() -> list[Request]:
    """All checks of two dtypes."""
    return list(requests.checked(MACHINE, ("float32", "float16")))


def test_checks_meet_every_kernel_and_kind(found: list[Request]) -> None:
    assert {one.kernel for one in found} >= {kernel.name for kernel in KERNELS.of_kind(*KINDS)}
    assert {one.kind for one in found} == set(KINDS)
    assert {one.geometry.rank for one in found} == {1, 2, 3}
    assert len({one.key for one in found}) == len(found)
    first = requests.spread(found)[: len(found) // 8]
    assert {one.kernel for one in first} == {one.kernel for one in found}
    few = requests.smoke(requests.spread(found))
    plain = [one for one in few if not one.one_sign and not any(one.offsets)]
    assert few[: len(plain)] == plain and len(plain) < 40
    assert {one.kernel for one in plain} == {one.kernel for one in found}
    assert any(one.maker == "tf32x3" for one in plain)


def test_first_checks_truncate_and_misalign(found: list[Request]) -> None:
    """Sums of one sign in every kind, and each operand and result at addresses of no vector."""
    few = requests.smoke(requests.spread(found))
    signs = {(one.kind, one.dtype, one.maker) for one in few if one.one_sign}
    assert {kind for kind, _, _ in signs} == set(KINDS)
    assert ("conv", "float32", "tf32x3") in signs
    assert all(one.case.terms(one.kind) == 9216 for one in few if one.one_sign)
    begins = {(one.kernel, one.dtype, one.offsets) for one in few if any(one.offsets)}
    for kernel in KERNELS.of_kind(*KINDS):
        assert (kernel.name, "float16", (0, 2, 0)) in begins
        assert (kernel.name, "float16", (0, 0, 8)) in begins
    assert not any(2 in offsets for _, dtype, offsets in begins if dtype == "float32")
    assert {one.code for one in few} <= {one.code for one in found}
    assert len({one.key for one in few}) == len(few)


def test_operands_begin_where_a_request_says() -> None:
    plain = Request(CASE, "conv", "float16", "last")
    for request in requests.misaligned(plain):
        assert request.code == plain.code and request.key != plain.key
        cuda = FakeCuda()
        addresses: list[list[int]] = []
        cuda.then = addresses.append
        measure.check(request, device(cuda))
        assert tuple(one % 16 for one in addresses[0]) == request.offsets
    placed = tensors.operands(replace(plain, one_sign=True), "cpu")
    assert all(one.min() >= 0 for one in placed.values())


def test_kernels_of_several_requests_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = Request(CASE, "conv"), Request(CASE, "conv_transpose")
    listed = [plain, *requests.misaligned(plain), other, replace(plain, one_sign=True)]
    compiled: list[str] = []

    def prepare_all(some: Any, arch: str, jobs: int) -> Any:
        for one in some:
            compiled.append(one.code)
            yield bundle.Prepared(one.code)

    monkeypatch.setattr(bundle, "prepare_all", prepare_all)
    given = bench_gpu.parser().parse_args([])
    groups = [(one, [one]) for one in listed]
    found = list(session.compiled_ahead(groups, "sm_90", given))
    assert compiled == [plain.code, other.code]
    assert [ready[0].key for _, ready in found] == [one.code for one in listed]


def test_case_files_are_read_and_the_benchmarks_come_first() -> None:
    cases = bench_gpu.case_list(None, None)
    assert len(cases) > 400
    assert [case.name for case in bench_gpu.case_list(None, ["dcgan0_n1"])] == ["dcgan0_n1"]
    with pytest.raises(ValueError, match="nowhere: in none of the files"):
        bench_gpu.case_list(None, ["nowhere"])
    listed = list(requests.timed(cases, ("float32", "float16"), KINDS))
    telling = len([case for case in cases if case.name in requests.TELLING])
    assert telling == len(requests.TELLING)
    formats = {(one.dtype, one.channels, one.kind) for one in listed[: telling * 12]}
    assert len(formats) == 12  # every format before the first of the other cases
    assert len({one.key for one in listed}) == len(listed)


def test_bundle_gives_back_what_was_put_in(tmp_path: Path) -> None:
    launch = Launch("main", (3, 1, 1), (64, 1, 1), 9, (Address(0, 8), 7), ("handle", "int64"))
    call = Plan((Memory("w", None, 512),), (launch,))
    good = bundle.Prepared("a/b", "plan", "", b"\x7fELF", call, 40)
    bad = bundle.Prepared("a/c", error="ValueError: no")
    path = tmp_path / "kernels.zip"
    assert bundle.write(path, {"arch": "sm_90"}, [good, bad]) == 2
    parts = bundle.Parts(tmp_path / "parts", {"arch": "sm_90", "commit": "1"})
    parts.add(replace(good, source="// CUDA"))
    again = bundle.Parts(tmp_path / "parts", {"arch": "sm_90", "commit": "1"})
    assert list(again) == [replace(good, source="// CUDA")]
    assert "a/b" in again and "a/c" not in again
    with pytest.raises(ValueError, match="commit 1, not 2"):
        bundle.Parts(tmp_path / "parts", {"arch": "sm_90", "commit": "2"})
    opened = bundle.Bundle(path)
    assert opened.get("a/b") == good and opened.get("a/c") == bad
    assert opened.get("a/d") is None and "a/d" not in opened and len(opened) == 2
    with pytest.raises(ValueError, match="--bundle"):
        bundle.Bundle(tmp_path / "absent.zip")
    without_tvm = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); sys.modules['tvm'] = None\n"
        "from pathlib import Path\n"
        "from support.gpu import bundle, driver, measure, session\n"
        f"print(bundle.Bundle(Path({str(path)!r})).get('a/b'))"
    )
    command = [sys.executable, "-c", without_tvm]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(good), done.stderr


# ---------------------------------------------------------------- results and times


@pytest.mark.parametrize(("dtype", "channels"), FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_correct_results_pass_and_others_fail(kind: str, dtype: str, channels: str) -> None:
    """The fake kernel writes what PyTorch says into the memory that the launch names."""
    request = Request(CASE, kind, dtype, channels)
    placed = tensors.operands(request, "cpu")
    want = tensors.reference(request, placed).to(getattr(torch, dtype))
    stored = tensors.stored(request, request.roles[2], want).contiguous()
    cuda = FakeCuda()
    assert not measure.check(request, device(cuda))["ok"]

    def write(values: list[int]) -> None:
        ctypes.memmove(values[2], stored.data_ptr(), stored.nbytes)

    cuda.then = write
    found = measure.check(request, device(cuda))
    assert found["ok"], found
    assert cuda.launches[-1] == (7, 1, 1, 64, 1, 1, 0)
    row = measure.row_of(request, device(cuda), plans=2)
    assert [one["ok"] for one in row["plans"]] == [True, True]
    assert row["ok"] and row["ratio_torch"] == 3.0
    assert 0 < row["share"] < 1 and row["bound_by"] in ("products", "memory")
    assert (row["torch_tf32_ms"] is None) == (dtype != "float32")


def test_a_run_from_arguments_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    given = bench_gpu.parser().parse_args(
        ["--json", str(out), "--plot", str(tmp_path / "gpu.png"), "--through-tvm", "0"]
    )
    listed = [Request(CASE, kind) for kind in KINDS]
    runner = processes.InProcess(device(FakeCuda()))
    given.bundle = tmp_path / "kernels.zip"
    assert session.run(given, runner, "sm_90", listed[:1], listed) == 1
    found = json.loads(out.read_text())
    summary_of_all = found.pop("summary")
    assert Record.read(out.with_suffix(".jsonl"), *session.LISTS) == found
    found["summary"] = summary_of_all
    assert set(found) == {"header", "checks", "rows", "through_tvm", "summary"}
    assert len(found["rows"]) == 3 and len(found["summary"]["incorrect"]) == 10
    assert "What to look at first" in capsys.readouterr().out
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")
    # The check, and again with each of three tensors at two addresses; three rows.
    assert "10 results are incorrect or missing" in out.with_suffix(".md").read_text()


def test_a_gpu_that_breaks_costs_a_row(tmp_path: Path) -> None:
    """A rehearsal: a fault poisons the context, a kernel never ends, a process dies."""
    out = tmp_path / "gpu.json"
    given = bench_gpu.parser().parse_args(["--json", str(out), "--bundle", "kernels.zip"])
    names = ["poison", "up", "hang", "die", "up again"]
    listed = [Request(replace(CASE, name=name), "conv") for name in names]
    runner = processes.Workers(fake_gpu.open_device)
    record = Record(out, {}, *session.LISTS)
    tasks = session.Tasks(record, runner, "sm_90", given)
    tasks.check(listed[:2], math.inf)
    runner.seconds = 1
    tasks.check(listed[2:3], math.inf)
    runner.seconds = 60
    tasks.check(listed[3:4], math.inf)
    tasks.time(listed[4:], math.inf)
    runner.close()
    notes = {row["key"].partition("/")[0]: row["note"] for row in record.found["checks"]}
    assert "no such thing (700)" in notes["poison"]
    assert notes["up"] == ""  # whose result is not PyTorch's, as nothing computed it
    assert notes["hang"] == "no result after 1 s"
    assert notes["die"] == "its process ended with status 9"
    assert [row["name"] for row in record.found["rows"]] == ["up again"]
    assert Record.read(out.with_suffix(".jsonl"), *session.LISTS) == record.found


def row(name: str, ratio: float, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(summary.RATIOS)
    base |= {"key": name, "name": name, "dtype": "float32", "channels": "first", "kind": "conv"}
    base |= {
        "ratio_torch": ratio,
        "share": 0.5,
        "ok": True,
        "plan": "ImplicitGemmPlan(a)",
        "notes": [],
    }
    base |= {"ours_ms": 1.0, "ours_graph_ms": 0.9, "prepacked_ms": 0.95, "torch_ms": ratio}
    base |= {"estimate_ms": 0.9, "configuration": "c", "torch_graph_ms": None}
    base |= {"plans": [{"graph_ms": 0.45}, {"graph_ms": None}]}
    return base | changes


def test_summary_names_slow_and_incorrect_rows() -> None:
    rows = [row("a", 4.0), row("b", 0.25), row("c", 0.5, ok=False, share=0.1, prepacked_ms=0.2)]
    found = summary.summarize(rows, [{"key": "check", "ok": True}])
    (group,) = found["groups"]
    assert group["ratio_torch"] == pytest.approx(math.exp(math.log(0.5) / 3))
    assert group["slower_torch"] == 2
    assert group["best_plan"] == pytest.approx(2)
    assert found["worst"] == ["b", "c"]
    assert found["incorrect"] == ["c"]
    said = " ".join(found["first"])
    for words in (
        "1 results are incorrect",
        "ImplicitGemmPlan: slower than cuDNN in 2 rows",
        "packing",
        "20 %",
    ):
        assert words in said
    assert summary.advice([row("a", 4.0, ours_graph_ms=None)], []) == ["nothing stands out"]


def test_a_machine_without_cuda_is_told_in_one_line() -> None:
    if torch.version.cuda is not None and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = [sys.executable, str(SCRIPTS / "bench_gpu.py"), "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("bench_gpu: torch")


def test_without_tvms_runtime_for_cuda_a_row_says_so() -> None:
    if through_tvm.available() == "":
        pytest.skip("this machine has TVM's runtime for CUDA")
    row = through_tvm.check(Request(CASE, "conv"), "sm_90")
    assert row["ok"] and "libcudart.so.13" in row["note"]


def test_requests_follow_the_arguments() -> None:
    given = argparse.Namespace(
        **vars(bench_gpu.parser().parse_args(["--only", "dcgan0_n1", "--dtypes", "float16"])),
    )
    to_check, to_time = bench_gpu.requests(given, "sm_90")
    assert {one.dtype for one in to_check} == {"float16"}
    assert [one.channels for one in to_time] == ["last"] * 3 + ["first"] * 3
    assert [one.maker for one in requests.makers(to_time[0])] == ["ours", "prepacked", "stock"]
    assert replace(to_time[0], kernel="direct").plan(MACHINE) is not None


def test_other_plans_follow_the_one_that_is_taken() -> None:
    request = Request(CASE, "conv")
    others = [one for one in requests.makers(request, 3) if one.place]
    assert [one.place for one in others] == [1, 2, 3]
    rated = [one.rated(MACHINE) for one in (request, *others)]
    assert [time for time, _ in rated] == sorted(time for time, _ in rated)
    assert rated[0][1] == request.plan(MACHINE) and len({plan for _, plan in rated}) == 4
    assert len({one.key for one in (request, *others)}) == 4
    with pytest.raises(ValueError, match="there are"):
        replace(request, place=10**6).plan(MACHINE)
