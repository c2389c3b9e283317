# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows: its Python runs, its links lead somewhere, no room is left out."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURES = ROOT / "docs" / "pictures"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def snippets(page: Path) -> list[tuple[int, str]]:
    """Line and text of every fenced block of Python."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@every_page
def test_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page is one session: examples print what they say, other blocks run to their end."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for line, text in snippets(page):
        if ">>>" not in text:
            exec(compile("\n" * line + text, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
        report: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        assert not failed, "".join(report)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_every_room_is_described() -> None:
    """docs/developer/design.md names each module and package of topi_ext and relax_ext."""
    text = (ROOT / "docs" / "design.md").read_text()
    rooms = [*(ROOT / "python").glob("*_ext/*.py"), *(ROOT / "python").glob("topi_ext/*/*.py")]
    names = {path.name for path in rooms if not path.name.startswith("__")}
    assert names
    assert sorted(name for name in names if not re.search(rf"[ /]{name}\b", text)) == []


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
