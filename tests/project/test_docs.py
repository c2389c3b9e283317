# SPDX-License-Identifier: Apache-2.0
"""Documentation: its code runs, its links lead somewhere, and no package is left out."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.documents import DOCS, ROOT, blocks
from support import docs_hooks, modules_page

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")),
    *sorted(DOCS.rglob("*.md")),
]
PICTURES = DOCS / "pictures"

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def prose(page: Path) -> str:
    """A page without its code: blocks and spans."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4,}.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]+`", "code", text)


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of the headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def dead_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            dead.append(target)
    return dead


TOOLS = {
    "cmake ": ("cmake", "cc", "c++"),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
}
"""Tools that commands need and a machine may lack, by the word that names them."""

PATH = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
"""Search path with the folder of this environment, which may contain CMake."""


def missing_tools(text: str) -> list[str]:
    needed = [tool for name, tools in TOOLS.items() if name in text for tool in tools]
    return [tool for tool in needed if not shutil.which(tool, path=PATH)]


def run_shell(text: str, where: Path) -> None:
    """Commands of a page, by the Python that runs the tests."""
    (where / "bin").mkdir(exist_ok=True)
    python = where / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{where / 'bin'}{os.pathsep}{PATH}",
        "PYTHONPATH": str(ROOT / "python"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=where,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@every_page
def test_code_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page is one session: examples print what they say, other blocks run to their end, in one
    directory.  Blocks with a title are files; tests/cpu/test_add_a_kernel.py runs those of Python.
    """
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for line, language, file, text in blocks(page):
        if file:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(text)
        elif language == "sh":
            if missing_tools(text):
                pytest.skip(f"no {', '.join(missing_tools(text))}")
            run_shell(text, tmp_path)
        elif language == "python" and ">>>" not in text:
            exec(compile("\n" * line + text, str(page), "exec"), names)
        elif language == "python":
            test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
            report: list[str] = []
            failed, _ = doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
            names.update(test.globs)
            assert not failed, "".join(report)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# One room\n\n```sh\n# no heading\n```\n")
    page.write_text("[a](other.md#one-room) [b](other.md#no-heading) [c](none.md) [d](#gone)")
    assert dead_links(page) == ["other.md#no-heading", "none.md", "#gone"]


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"\b(?:tests|scripts|python|docs|examples)/[\w/-]+\.(?:py|json|md|yml)",
        page.read_text(),
    )
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_every_page_is_on_the_site() -> None:
    """mkdocs.yml lists each page and those that `make docs` generates."""
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *docs_hooks.GENERATED])


@pytest.mark.parametrize("path", docs_hooks.GENERATED)
def test_a_generated_page_is_made(path: str) -> None:
    assert re.match(r"# \w.*\n\n.*\n## ", docs_hooks.GENERATED[path](), re.DOTALL)


def test_every_module_has_a_line_of_its_own() -> None:
    for module in (ROOT / "python").rglob("*.py"):
        if module.name != "__main__.py":
            assert modules_page.summary(module), module


def test_pictures_are_those_of_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """scripts/draw_phases.py still runs and draws what is there, and every picture is shown."""
    pytest.importorskip("matplotlib", reason="draws with matplotlib")
    path = ROOT / "scripts" / "draw_phases.py"
    spec = importlib.util.spec_from_file_location("draw_phases", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr("sys.argv", ["draw_phases.py", "--out", str(tmp_path)])
    script.main()
    drawn = {path.name for path in tmp_path.iterdir()}
    kept = {path.name for path in PICTURES.iterdir()}
    shown = {
        Path(name).name
        for page in PAGES
        for name in re.findall(r"\((\S+\.svg)\)", page.read_text())
    }
    assert drawn == kept == shown
    assert max(path.stat().st_size for path in PICTURES.iterdir()) < 60_000
