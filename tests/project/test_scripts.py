# SPDX-License-Identifier: Apache-2.0
"""Every script starts, and those that need neither a GPU nor long run a small case."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
COMMANDS = sorted(path.name for path in SCRIPTS.glob("*.py") if path.name != "try_install.py")
"""All but the one that has no command line, and runs beside an installed package only."""
CASE = {"name": "up", "x": [1, 4, 5, 6], "cout": 6, "kernel": 3, "stride": 2}
SMALL = {
    "bench.py": "--cases {cases} --threads 1 --time-budget 0.001 --rivals torch",
    "bench_topi.py": "--only dcgan4_n1 --json {out}",
    "bench_torch_compile.py": "--list",
    "bench_first_call.py": "--list",
    "bench_relay.py": "--list",
    "dump_kernels.py": "{out} --cases {cases} --targets x86-64-v3 --jobs 1",
    "draw_phases.py": "--out {folder} --png",
    "evaluate_cost_model.py": "--cases {cases} --kinds conv --time-budget 0.001 --most 1",
    "figures.py": "--check",
    "padding_golden.py": "--frameworks torch --check 4",
    "random_cases.py": "{out} --count 2",
    "trained_models.py": "--only espcn --steps 2",
    "tune_gain.py": "--cases {cases} --threads 1",
}
"""Arguments of a small run by script."""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", COMMANDS)
def test_a_script_states_its_arguments(script: str) -> None:
    """Its imports are those of a run, but for what it imports later."""
    done = run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script}")


@pytest.mark.parametrize("script", SMALL)
def test_a_script_runs_a_small_case(script: str, tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([CASE]))
    places = {"cases": cases, "out": tmp_path / "out.json", "folder": tmp_path}
    done = run(script, *SMALL[script].format(**places).split())
    assert done.returncode == 0, done.stderr + done.stdout
