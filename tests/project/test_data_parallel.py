# SPDX-License-Identifier: Apache-2.0
"""Training by workers of disco: the same losses as one process, and nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import data_parallel  # noqa: E402

STEPS, BATCH = 8, 32
IDLE = """
import sys
from conv_cli.launch import answer_interrupts
from data_parallel import watched_workers
answer_interrupts("data_parallel")
with watched_workers(2) as session:
    array = session.empty((1,), "float32")
    for worker in range(2):
        array.debug_get_from_remote(worker)
    print("ready", flush=True)
    if sys.argv[1:]:
        raise ValueError("a mistake of ours")
    while True:
        array.debug_get_from_remote(1)
"""
"""A controller that keeps its workers busy until something happens, or that makes a mistake."""


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent / "python")])
    return {**os.environ, "PYTHONPATH": paths}


def test_losses_are_those_of_one_process(tmp_path: Path) -> None:
    """Losses equal PyTorch's, from the same weights on the same batches. float32 is added in
    another order, the parts of a batch and then the workers: measured, 8e-7 of the loss in 8 steps.
    Without one worker's part it is 6e-1."""
    report = tmp_path / "losses.json"
    command = [sys.executable, str(EXAMPLES / "data_parallel.py"), "--json", str(report)]
    command += ["--workers", "2", "--steps", str(STEPS), "--batch", str(BATCH), "--beside", "torch"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = json.loads(report.read_text())
    assert len(losses["losses"]) == STEPS
    assert losses["losses"][-1] < 0.9 * losses["losses"][0]
    np.testing.assert_allclose(losses["losses"], losses["single"], rtol=1e-5)


def test_a_net_with_batch_norm_trains_as_by_pytorch(tmp_path: Path) -> None:
    """Two processes by gloo, as DistributedDataParallel: losses, weights and running statistics.

    float64: measured, 2e-16 of the loss.  Statistics of the whole batch would be 1e-2 off.
    """
    report = tmp_path / "losses.json"
    command = [sys.executable, str(EXAMPLES / "data_parallel_unet.py"), "--json", str(report)]
    command += ["--steps", "4", "--batch", "8", "--width", "4", "--dtype", "float64"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    np.testing.assert_allclose(found["losses"], found["torch"], rtol=1e-12)
    assert len(found["losses"]) == 4 and found["state"] < 1e-11


def workers_of(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in lists for child in file.read_text().split()]


def assert_gone(pids: list[int]) -> None:
    until = time.monotonic() + 10
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("interrupt", 130, "data_parallel: interrupted"),
        ("dead worker", 1, "data_parallel: a worker died with signal 9"),
        ("mistake", 1, "ValueError: a mistake of ours"),
    ],
)
def test_no_worker_is_left_behind(how: str, status: int, said: str) -> None:
    """However the controller ends; and it does end where a worker has died."""
    controller = subprocess.Popen(
        [sys.executable, "-c", IDLE, *(["mistake"] if how == "mistake" else [])],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert controller.stdout.readline() == "ready\n"
        workers = workers_of(controller.pid)
        if how == "interrupt":
            assert len(workers) == 1
            os.killpg(controller.pid, signal.SIGINT)  # as a terminal does
        elif how == "dead worker":
            os.kill(workers[0], signal.SIGKILL)
        errors = controller.communicate(timeout=30)[1]
        assert controller.returncode == status, errors
        assert said in errors
        assert_gone(workers)
    finally:
        controller.kill()


def test_the_way_by_nccl() -> None:
    """Its calls, with a stand-in for the library: no GPU is needed to know that TVM takes them."""
    helper = EXAMPLES.parent / "tests" / "helpers" / "stand_in_nccl.py"
    done = subprocess.run(
        [sys.executable, str(helper)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    total = [[4, 6], [8, 10]]
    assert json.loads(done.stdout) == {
        "broadcast": [[3, 4]] * 2,
        "scatter": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        "sum": [total] * 2,
        "fetch": total,
        "calls": ["init_ccl [0, 1]"],
    }


def test_why_not_by_nccl() -> None:
    assert data_parallel.missing_for_nccl(2) == "this TVM was built without NCCL"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "9"], "--batch 9 is not a multiple of --workers 2"),
        (["--batch", "1798"], "--batch 1798 is not from 1 to 1797"),
        (["--workers", "0"], "--workers and --steps must be positive"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        data_parallel.main(arguments)
    assert said in capsys.readouterr().err
