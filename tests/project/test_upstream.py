# SPDX-License-Identifier: Apache-2.0
"""The patches for TVM: applied to copies of the installed ones, nothing of ours is imported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from helpers import upstream
from helpers.profile import FUZZ
from helpers.upstream import ROOT

FAILING = {
    "0.27": [
        "test_legalize_conv_layouts.py and test_conv_transpose and layouts1",
        "test_op_gradient_conv.py and case7",
        "test_frontend_torch_conv_transpose.py and model1 and exported",
        "test_frontend_onnx_output_shape.py and case0",
    ],
    "relay-0.17": [
        "test_conv_any_layout.py and test_conv_transpose and case1",
        "test_conv_any_layout.py and test_gradient and case5",
        "test_conv.py and model1",
    ],
}
"""For each patch after the first, one of its tests that stock fails."""


def test_patches_are_as_git_am_takes_them(tmp_path: Path) -> None:
    """Titles, bodies and authors arrive, and the tree is what was meant."""
    patches = upstream.patches("0.27", tmp_path)
    repository, source = tmp_path / "repository", upstream.place("0.27")
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=n@localhost"]
    for patch in patches:
        for line in patch.read_text().splitlines():
            if line.startswith("--- a/"):
                path = line.removeprefix("--- a/")
                (repository / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / path.removeprefix("python/"), repository / path)
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    for command in (["add", "."], ["commit", "--quiet", "-m", "base"]):
        subprocess.run([*git, *command], check=True)
    subprocess.run([*git, "am", "--quiet", "--keep-non-patch", *map(str, patches)], check=True)
    log = subprocess.run([*git, "log", "--format=%s%n%b"], capture_output=True, text=True).stdout
    assert log.count("\n[") + log.startswith("[") == len(patches) == 5
    assert "[TOPI] Add transposed convolution of any rank" in log
    assert all(len(line) <= 100 for line in log.splitlines())
    changed = subprocess.run(
        [*git, "diff", "--name-only", "--diff-filter=A", "HEAD~5"], capture_output=True, text=True
    ).stdout.split()
    added = [repository / name for name in changed if name.endswith(".py")]
    assert len(added) == 7
    assert all(path.read_text().startswith("# Licensed to the Apache") for path in added)
    assert not any("topi_ext" in path.read_text() for path in added)
    rules = ROOT / "scripts" / "support" / "upstream" / "relax_code" / "ruff.toml"
    for check in (["check", "--quiet", "--ignore=E402,F401,F403,F405"], ["format", "--check"]):
        command = [str(ROOT / ".venv/bin/python"), "-m", "ruff", *check, "--config", str(rules)]
        done = subprocess.run([*command, *map(str, added)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("old", "line"),
    [
        ("from .conv1d_transpose import *\n", "0 places of"),
        ("from .conv1d import *\n", "2 places of"),
    ],
)
def test_a_tree_of_another_shape_is_refused(old: str, line: str, tmp_path: Path) -> None:
    """An anchor that is not there, or there twice: one line, and no patch at all."""
    source, out = upstream.place("0.27"), tmp_path / "out"
    (tmp_path / "tvm" / "topi").mkdir(parents=True)
    (tmp_path / "tvm" / "relax").symlink_to(source / "tvm" / "relax")
    shutil.copytree(source / "tvm" / "topi" / "nn", tmp_path / "tvm" / "topi" / "nn")
    (tmp_path / "tvm" / "topi" / "testing").symlink_to(source / "tvm" / "topi" / "testing")
    names = tmp_path / "tvm" / "topi" / "nn" / "__init__.py"
    text = names.read_text()
    new = "" if line.startswith("0") else "from .conv1d_transpose import *\n"
    names.write_text(text.replace(old, new))
    done = upstream.series("0.27", out, "--tree", str(tmp_path))
    assert done.returncode == 2
    assert not out.exists()
    assert line in done.stderr and len(done.stderr.splitlines()) == 1
    done = upstream.series("main", out)
    assert done.returncode == 2 and "needs --tree" in done.stderr


RANDOM = {"0.27": (30, 20), "0.26": (15, 10), "relay-0.17": (15, 3)}
"""Random calls and gradients.  TVM 0.17 takes a second and more to schedule and compile each."""

LONG = 2, (30, 30)
"""Rounds of the long run, each with a seed of its own: a module of more calls takes TVM 0.17 longer
than two."""


@pytest.mark.parametrize("base", RANDOM)
def test_random_calls(base: str, tmp_path: Path) -> None:
    """The founding reports, calls and gradients; a seed of its own for each release."""
    copy = upstream.patched(base, tmp_path, upstream.patches(base, tmp_path))
    program = f"helpers.upstream_{'relay' if base.startswith('relay') else 'relax'}"
    rounds, counts = LONG if FUZZ else (1, RANDOM[base])
    for seed in range(int(base[-2:]), int(base[-2:]) + rounds):
        given = [str(number) for number in (seed, *counts)]
        done = upstream.run(base, copy, "-W", "ignore", "-m", program, *given, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        ran = f"{' + '.join(given[1:])} calls of {copy}/tvm/__init__.py, [] of ours"
        assert done.stdout.splitlines()[-1] == ran


_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")


@pytest.mark.parametrize("base", ["0.27", "relay-0.17"])
def test_patches_pass_their_own_tests(base: str, tmp_path: Path) -> None:
    patches = upstream.patches(base, tmp_path)
    copy, tests = upstream.patched(base, tmp_path, patches), upstream.own_tests(tmp_path, patches)
    done = upstream.run(base, copy, *_PYTEST, "tests", cwd=tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("base", FAILING)
def test_own_tests_fail_without_their_patch(base: str, tmp_path: Path) -> None:
    """With the first patch alone, which brings the oracle of the others."""
    patches = upstream.patches(base, tmp_path)
    copy = upstream.patched(base, tmp_path, patches[:1])
    tests = upstream.own_tests(tmp_path, patches)
    chosen = " or ".join(f"({one})" for one in FAILING[base])
    done = upstream.run(base, copy, *_PYTEST, "tests", "-k", chosen, cwd=tests)
    assert done.returncode == 1, done.stdout[-3000:]
    assert f"{len(FAILING[base])} failed" in done.stdout
    assert "passed" not in done.stdout.splitlines()[-1]


def test_rule_for_output_padding_compiles(tmp_path: Path) -> None:
    """The C++ of the patch that wheels have no sources for, as far as their headers go: the rule
    itself, not the type inference that calls it."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no compiler of C++")
    site = upstream.place("0.27")
    (tmp_path / "main.cc").write_text(
        '#include "output_padding.h"\n'
        "using A = tvm::ffi::Array<int64_t>;\n"
        "int main() {\n"
        "  auto valid = tvm::relax::IsOutputPaddingValid;\n"
        "  bool takes = valid(A{2}, A{1}, A{3}) && valid(A{0, 1}, A{1, 2}, A{1, 1});\n"
        "  bool refuses = !valid(A{3}, A{1}, A{3}) && !valid(A{-1}, A{2}, A{1});\n"
        "  return takes && refuses ? 0 : 1;\n"
        "}\n"
    )
    include = [ROOT / "scripts/support/upstream/relax_code", site / "tvm/include"]
    include.append(site / "tvm_ffi/include")
    flags = [f"-I{path}" for path in include]
    library = site / "tvm_ffi" / "lib"
    link = [f"-L{library}", "-ltvm_ffi", f"-Wl,-rpath,{library}"]
    program = tmp_path / "main"
    command = [compiler, "-std=c++17", "-Wall", "-Werror", *flags, str(tmp_path / "main.cc")]
    subprocess.run([*command, *link, "-o", str(program)], check=True)
    subprocess.run([str(program)], check=True)
