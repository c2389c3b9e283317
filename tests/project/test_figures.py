# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of whole models: workers, rows, and the tables that documents show of them."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from pathlib import Path
from statistics import geometric_mean

import pytest

import figures
import figures_history
from support import model_rows, models_page, steps, workers

SERVES = """
import sys, time
sys.path.insert(0, {path!r})
from support.workers import serve
print("a library speaks")
print("a warning " * 20_000, file=sys.stderr)
serve(lambda: time.sleep({seconds}), {{"first_s": 1.5}})
"""
SCRIPTS = str(Path(steps.__file__).parents[1])


def worker(seconds: float) -> workers.Worker:
    return workers.Worker([sys.executable, "-c", SERVES.format(path=SCRIPTS, seconds=seconds)])


def test_workers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are those of the calls; what else a process prints is passed over."""
    monkeypatch.setattr(workers, "BLOCKS", 2)
    monkeypatch.setattr(workers, "PAUSE", 0.0)
    with worker(0.001) as short, worker(0.02) as long:
        assert short.ready == {"first_s": 1.5}
        assert len(long.block(0.0)) == 2
        ms = workers.in_turns({"short": short, "long": long})
    assert 1 <= ms["short"] < ms["long"] and ms["long"] >= 20


def test_a_worker_that_ends_says_why() -> None:
    with pytest.raises(workers.WorkerError, match="no such model"):
        workers.Worker([sys.executable, "-c", "raise SystemExit('no such model')"])


def test_rows_of_another_processor_are_not_kept(tmp_path: Path) -> None:
    """Rows of one file are of one machine, and ratios are those of the baselines only."""
    given = Namespace(json=tmp_path / "rows.json", threads=1)

    def measure(name: str) -> dict[str, steps.Row]:
        return {name: {"ms": {"ours": 2.0, "frozen": 1.0, "eager": 3.0, "inductor": 5.0}}}

    measured = {"date": "2026-01-02", "commit": "earlier"}
    for name in ("a", "b"):
        steps.measure_all([name], measure, given, ("eager", "inductor"), ("numpy",))
        written = json.loads(given.json.read_text())
        if name == "a":
            rows = {"a": {**written["rows"]["a"], **measured}}
            given.json.write_text(json.dumps({**written, **measured, "rows": rows}))
    assert list(written["rows"]) == ["a", "b"]
    assert written["rows"]["a"]["commit"] == "earlier" != written["rows"]["b"]["commit"]
    assert written["rows"]["a"]["ratios"] == {"eager": 1.5, "inductor": 2.5, "best": 1.5}
    given.json.write_text(json.dumps({**written, "cpu": "another"}))
    written = steps.measure_all(["c"], measure, given, ("eager",), ("numpy",))
    assert list(written[given.json]) == ["c"]


def test_documents_show_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every table between the comments is what its file gives: run scripts/figures.py otherwise."""
    monkeypatch.setattr(sys, "argv", ["figures.py", "--check"])
    assert figures.main() == 0, capsys.readouterr().err


def test_tables_of_figures_are_rendered() -> None:
    """Outside of what is rendered, only notes of experiments have cells that are numbers."""
    for document in (figures.ROOT / "README.md", figures.DEVELOPER / "performance.md"):
        text = figures.BLOCK.sub("", document.read_text())
        text = re.sub(r"^## Experiments$.*?(?=^## )", "", text, flags=re.DOTALL | re.MULTILINE)
        kept = re.findall(r"^\|.*\| \*{0,2}\d+\.\d+\*{0,2} \|.*$", text, re.MULTILINE)
        assert not kept, f"{document.name}: {kept}"


def test_the_readme_states_measured_figures() -> None:
    """Geometric means of torch.compile, and counts of correct models."""
    text = " ".join((figures.ROOT / "README.md").read_text().split())
    names = ("bench_torch_compile", "real_models", "compiled_models")
    bench, real, compiled = (
        json.loads((figures.MEASURED / f"{name}.json").read_text()) for name in names
    )
    for mode in figures.MODES:
        best = [r["ratios"]["best"] for n, r in bench["rows"].items() if n.endswith(mode)]
        assert f"**{figures.digits(geometric_mean(best))}** times" in text
    plain, stock = (sum(row[way] == "right" for row in real.values()) for way in ("plain", "stock"))
    assert f"{plain} of {len(real)} are correct after TVM's importer ({stock} without" in text
    right = sum(row["right"] for row in compiled.values())
    assert f"{right} of {len(compiled)} by `torch.compile`" in text


def test_rows_of_models_are_kept_and_grouped(tmp_path: Path) -> None:
    """Models of a package with the same outcomes share a line; operators in PyTorch are named."""
    outcomes = {"stock": {"stage": "import"}, "plain": {"stage": "right"}}
    row = {"package": "p", "convolutions": {"conv1d": 2}, "outcomes": outcomes}
    found, measured = tmp_path / "found.json", tmp_path / "measured.json"
    found.write_text(json.dumps({"a": row, "b": row}))
    measured.write_text("{}")
    model_rows.keep(found, measured, models_page.kept)
    imported = json.loads(measured.read_text())
    good = {"right": True, "in_pytorch": []}
    left = {"right": False, "in_pytorch": ["aten.index.Tensor"]}
    text = models_page.models(imported, {"a": good, "b": good, "q net, trained": left})
    assert "| correct | 0 of 2 | 2 of 2 | 2 of 2 | 0 of 1 |" in text
    assert "| p: a; b | not imported | correct | correct | |" in text
    assert "| q: net | | | | **incorrect** (`index`) |" in text


def test_a_figure_that_no_file_has_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"ms": {"ours": 2.0, "eager": 1.0}, "ratios": {"eager": 0.5, "best": 0.5}}
    row["first_s"] = {"ours": 7.0, "eager": 0.1}
    head = {"cpu": "C", "threads": 2, "versions": {"torch": "2"}, "date": "d", "commit": "c"}
    (tmp_path / "bench_models.json").write_text(json.dumps({**head, "rows": {"net": row}}))
    monkeypatch.setattr(figures, "MEASURED", tmp_path)
    text = "<!-- figures: rows bench_models.json -->\n<!-- end of figures -->\n"
    made = figures.renewed(text)
    assert "| net | 2.00 | 1.00 | **0.500** |" in made
    assert figures.renewed(made) == made
    assert figures.renewed(made.replace("2.00", "1.00")) == made
    first = figures.renewed(text.replace("rows", "compile"))
    assert "| model | ours, s | PyTorch eager, s |" in first and "| net | 7.00 | 0.100 |" in first
    times = {"ms": {"ours": 2000.0, "inductor": 8000.0}, "warm_ms": {"ours": 500.0}}
    several = {
        f"net, training, {sizes}": {**times, "later_ms": {"ours": ours, "eager": 6.0}}
        for sizes, ours in (("static", 2.0), ("batch", 4.0))
    }
    (tmp_path / "bench_models.json").write_text(json.dumps({**head, "rows": several}))
    calls = figures.renewed(text.replace("rows", "first"))
    assert "| training, static | 2.00, 0.500 | 8.00, – | 1.00 | 1.00 | 3.00 | 3.00 |" in calls
    assert "| training, batch | 2.00, 0.500 | 8.00, – | 2.00 | 2.00 | 1.50 | 1.50 |" in calls
    row["gemm"] = {"8x4x8": [0.5, 0.625], "8x8x4": [0.25, 0.75]}
    (tmp_path / "bench_models.json").write_text(json.dumps({**head, "rows": {"net": row}}))
    products = figures.renewed(text.replace("rows", "gemm"))
    assert "| net | 8x4x8: 50%, 0.62; 8x8x4: 25%, 0.75 |" in products
    row.update(p50_ms={"ours": 3.0}, p99_ms={"ours": 4.5})
    later = {**row, "date": "e", "commit": "f"}
    rows = {"net, alone": row, "net, busy": later}
    (tmp_path / "bench_models.json").write_text(json.dumps({**head, "rows": rows}))
    busy = figures.renewed(text.replace("rows", "busy"))
    assert "| net, alone | 3.00, 4.50 | **0.500** |" in busy
    assert "; d, commit c; e, commit f.*" in busy
    (tmp_path / "bench_models.json").write_text(json.dumps({**head, "rows": {"net": row}}))
    summary = figures.renewed(text.replace("rows", "summary"))
    assert (
        "| whole models, `relax_ext.pipeline` | 1 | PyTorch eager | 0.500 | **0.500** |" in summary
    )


def test_history_has_a_figure_for_each_version(tmp_path: Path) -> None:
    """Two commits of a file give two figures, the oldest first; a removal gives none."""
    name = "bench_relay.json"
    options = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    figures_history.git(tmp_path, "init", "--quiet")
    for commit, best in (("first", (2.0, 8.0)), ("second", (3.0, 27.0))):
        rows = {f"model {i}": {"ms": {"ours": 1.0, "stock": ratio}} for i, ratio in enumerate(best)}
        version = {"date": "2026-11-28", "commit": commit, "cpu": "a processor", "rows": rows}
        (tmp_path / name).write_text(json.dumps(version))
        figures_history.git(tmp_path, "add", name)
        figures_history.git(tmp_path, *options, "commit", "--quiet", "-m", commit)
    figures_history.git(tmp_path, "rm", "--quiet", name)
    figures_history.git(tmp_path, *options, "commit", "--quiet", "-m", "removed")
    found = list(figures_history.figures(tmp_path, name))
    assert [(one.commit, one.models) for one in found] == [("first", 2), ("second", 2)]
    assert [one.mean for one in found] == pytest.approx([4.0, 9.0])
    figures_history.plot(found, tmp_path / "out" / "history.png")
    assert (tmp_path / "out" / "history.png").stat().st_size > 0
