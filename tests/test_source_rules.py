# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that no linter knows, read from the files that git tracks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LICENCE = "# SPDX-License-Identifier: Apache-2.0"
# Directories of one person's machine; a path in the project is relative to its root.
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(home|root|Users|work|opt|tmp)/\w+")
SUPPRESSION = re.compile(r"^\s*#\s*(ruff|flake8|mypy|pylint):\s*(noqa|ignore-errors|disable)", re.M)


def tracked(*patterns: str) -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: the list of tracked files is unknown")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [ROOT / name for name in names.stdout.split("\0") if name]
    return [path for path in found if path.is_file()]


def test_every_module_starts_with_the_licence() -> None:
    modules = tracked("*.py")
    assert modules
    unlicensed = [
        str(path.relative_to(ROOT))
        for path in modules
        if path.read_text().removeprefix("#!/usr/bin/env python3\n").split("\n", 1)[0] != LICENCE
    ]
    assert unlicensed == []


def test_no_file_silences_a_linter_as_a_whole() -> None:
    assert [str(p) for p in tracked("*.py") if SUPPRESSION.search(p.read_text())] == []


def test_no_path_of_one_machine() -> None:
    texts = tracked("*.py", "*.md", "*.toml", "*.yaml", "*.json", "Makefile", ".ci/*")
    others = [path for path in texts if path != Path(__file__)]
    assert [str(p) for p in others if MACHINE_PATH.search(p.read_text())] == []


def test_nothing_large_or_generated_is_tracked() -> None:
    assert [str(p) for p in tracked() if p.stat().st_size > 500_000] == []


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        (MACHINE_PATH, "open('/home/me/x.npy')", "open('tests/x.npy'), https://a.b/work/x"),
        (SUPPRESSION, "# ruff: noqa: E501", "x = 1  # noqa: E501"),
    ],
)
def test_the_patterns_see_what_they_should(pattern: re.Pattern[str], bad: str, good: str) -> None:
    assert pattern.search(bad)
    assert not pattern.search(good)
