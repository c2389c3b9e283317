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
    "bench_topi.py": "--only dcgan4_n1 --json {out}",
    "bench_torch_compile.py": "--list",
    "bench_first_call.py": "--list",
    "bench_relay.py": "--list",
    "dump_kernels.py": "{out} --cases {cases} --targets x86-64-v3 --jobs 1",
    "draw_phases.py": "--out {folder} --png",
    "evaluate_cost_model.py": "--cases {cases} --kinds conv --time-budget 0.001 --most 1",
    "figures.py": "--check",
    "padding_golden.py": "--frameworks torch --check 4",
    "trained_models.py": "--only espcn --steps 2",
}
"""Arguments of a small run by script; :mod:`test_bench` and :mod:`test_figures` run others."""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


HELP = """
import os, runpy, sys
import relax_ext, torch, tvm
folder, *scripts = sys.argv[1:]
for script in scripts:
    if not os.fork():
        sys.path[0], sys.argv[:] = folder, [script, "--help"]
        runpy.run_path(os.path.join(folder, script), run_name="__main__")
        sys.exit(1)
    print(script, os.wait()[1], flush=True)
"""
"""A program that asks each script for its arguments, in a process that has the large packages."""


def test_scripts_state_their_arguments() -> None:
    """The imports of a script are those of a run, but for what it imports later."""
    command = [sys.executable, "-W", "ignore", "-c", HELP, str(SCRIPTS), *COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith(".py 0")] == [f"{one} 0" for one in COMMANDS]
    assert sum(line.startswith("usage: ") for line in lines) == len(COMMANDS), done.stderr


@pytest.mark.parametrize("script", SMALL)
def test_a_script_runs_a_small_case(script: str, tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([CASE]))
    places = {"cases": cases, "out": tmp_path / "out.json", "folder": tmp_path}
    done = run(script, *SMALL[script].format(**places).split())
    assert done.returncode == 0, done.stderr + done.stdout
