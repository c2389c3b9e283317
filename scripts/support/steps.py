# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of whole models: command line, loop over models, header, plot."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from .environment import LARGE_MALLOC, commit, processor_name, today
from .output import INK, picture, write_json

FILES = ("onnxruntime", "openvino")
"""Engines that run the ONNX file of a model."""
LINEAR = 10
"""Ratio beyond which a plot's axis is logarithmic."""
Row = dict[str, Any]
"""Measurements of a model: milliseconds ``ms`` by engine, ``ours`` among them, and more."""


def parser(documentation: str) -> argparse.ArgumentParser:
    """Return the options of every benchmark of models."""
    made = argparse.ArgumentParser(description=documentation.split("\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models, in this order")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--list", action="store_true", help="print the names")
    made.add_argument("--json", type=Path, help="write the rows there; rows of other models stay")
    made.add_argument("--plot", type=Path, help="draw the ratios there")
    made.add_argument("--worker", metavar="ENGINE", help=argparse.SUPPRESS)
    return made


def command(
    script: str, threads: int, engine: str, name: str, *more: str, python: str = sys.executable
) -> list[str]:
    """Return the command of a worker: a script that prepares a model for an engine."""
    made = [python, "-W", "ignore", script, "--worker", engine, "--only", name]
    return [*made, "--threads", str(threads), *more]


def command_in(folder: str, script: str, threads: int, engine: str, name: str) -> list[str]:
    """Return the command of a worker that finds files in a folder."""
    # OpenVINO has an environment of its own, since it asks for another NumPy.
    environment = ".venv-rivals" if engine == "openvino" else ".venv-models"
    python = str(Path(script).parents[1] / environment / "bin" / "python")
    return command(script, threads, engine, name, "--folder", folder, python=python)


def work(
    given: argparse.Namespace,
    on_file: Callable[[str, Path, int], None],
    export: Callable[[str, Path], None],
    on_module: Callable[[str, str, int], None],
) -> bool:
    """Do the work of a worker of :func:`command_in`; return whether this process is one.

    ``export`` writes the ONNX file of a model, which the engines of :data:`FILES` run.
    """
    if given.worker in FILES:
        on_file(given.worker, given.folder, given.threads)
    elif given.worker:
        from .zoo.catalog import quiet

        quiet()
        (name,) = given.only
        if given.worker == "export":
            export(name, given.folder)
        else:
            on_module(given.worker, name, given.threads)
    return bool(given.worker)


def use_threads(threads: int) -> None:
    """Set what workers read when they start: threads, and thresholds of malloc.

    A ``GLIBC_TUNABLES`` that is already set is left alone.
    """
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("GLIBC_TUNABLES", LARGE_MALLOC)


def run(
    given: argparse.Namespace,
    models: Iterable[str],
    measure: Callable[[str], Mapping[str, Row]],
    labels: Mapping[str, str],
    what: str,
    packages: Iterable[str] = ("torch", "apache-tvm"),
    groups: Iterable[str] = ("",),
    others: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
) -> int:
    """Do what the command line asks for, and return the exit status.

    Parameters
    ----------
    models : iterable of str
        Names of all models.
    measure, packages
        As :func:`measure_all` has them.
    labels : mapping
        Labels of the baselines, by engine.
    what : str
        What takes the time, for the plot.
    groups : iterable of str
        Ends of the names of rows whose means are printed together.
    others : mapping, optional
        Labels of engines that are drawn too, but are no baselines.
    files : mapping, optional
        As :func:`measure_all` has them; the picture of such a file is beside it.
    """
    known = list(models)
    if given.list:
        print("\n".join(known))
        return 0
    if unknown := set(given.only or ()) - set(known):
        print(f"--only: {', '.join(sorted(unknown))} must be of --list", file=sys.stderr)
        return 2
    written = measure_all(given.only or known, measure, given, labels, packages, files)
    rows = written[given.json]
    for group in groups:
        show_means(group, {name: row for name, row in rows.items() if name.endswith(group)})
    if given.plot:
        more = {path: path.with_suffix(given.plot.suffix) for path in (files or {}).values()}
        for path, place in {given.json: given.plot, **more}.items():
            plot(written[path], {**labels, **(others or {})}, what, place)
    return 0


def measure_all(
    names: Iterable[str],
    measure: Callable[[str], Mapping[str, Row]],
    given: argparse.Namespace,
    baselines: Iterable[str],
    packages: Iterable[str],
    files: Mapping[str, Path] | None = None,
) -> dict[Path | None, dict[str, Row]]:
    """Measure models, print a line for each row, and write all rows after each model.

    Parameters
    ----------
    measure : callable
        Rows of a model, by name.
    baselines : iterable of str
        Engines that ours is compared with.
    packages : iterable of str
        Distributions whose versions the file states.
    files : mapping, optional
        Files of rows, by name, that do not belong to ``--json``.

    Returns
    -------
    dict
        Rows by name, those of an earlier run on the same processor included, for each file.
    """
    head = header(given.threads, packages)
    paths = {given.json, *(files or {}).values()}
    written = {path: _earlier_rows(path, head["cpu"]) for path in paths}
    for name in names:
        for row_name, row in measure(name).items():
            row["ratios"] = ratios(row["ms"], baselines)
            rows = written[(files or {}).get(row_name, given.json)]
            rows[row_name] = {**row, "date": head["date"], "commit": head["commit"]}
            print(line(row_name, row), flush=True)
        for path, rows in written.items():
            write_json(path, {**head, "rows": rows})
    return written


def header(threads: int, packages: Iterable[str]) -> dict[str, Any]:
    """Return when, where and with what rows are measured."""
    return {
        "date": today(),
        "commit": commit(),
        "cpu": processor_name(),
        "threads": threads,
        "versions": {name: version(name) for name in packages},
    }


def ratios(ms: Mapping[str, float], baselines: Iterable[str]) -> dict[str, float]:
    """Return the time of each baseline over ours; ``best`` is the least of them."""
    found = {name: ms[name] / ms["ours"] for name in baselines if name in ms}
    return {**found, "best": min(found.values())} if found else {}


def line(name: str, row: Row) -> str:
    """Return a row of a table in Markdown: milliseconds by engine, and the least ratio."""
    times = ", ".join(f"{engine} {its:.2f}" for engine, its in row["ms"].items())
    failed = "".join(f", {engine} failed: {why}" for engine, why in row.get("failed", {}).items())
    return f"| {name} | {times}{failed} | {row['ratios'].get('best', 0):.2f} |"


def show_means(group: str, rows: Mapping[str, Row]) -> None:
    """Print the geometric mean and the minimum of the ratios to the best baseline of each row."""
    best = [row["ratios"]["best"] for row in rows.values() if row["ratios"]]
    if best:
        mean = f"geometric mean {geometric_mean(best):.2f}, least {min(best):.2f}"
        print(f"{group}{': ' if group else ''}best baseline over ours: {mean}")


def plot(rows: Mapping[str, Row], labels: Mapping[str, str], what: str, path: Path) -> None:
    """Draw how many times as fast ours is as each other engine.

    Parameters
    ----------
    labels : mapping
        Labels of the others, by engine.
    what : str
        What took the time, for the axis.
    """
    labels = {e: text for e, text in labels.items() if any(e in row["ms"] for row in rows.values())}
    with picture(path, 8, (0.2 + 0.15 * len(labels)) * len(rows) + 1.2) as figure:
        axes = figure.subplots()
        height = 0.8 / len(labels)
        for number, (engine, label) in enumerate(labels.items()):
            bars = [place + (number - (len(labels) - 1) / 2) * height for place in range(len(rows))]
            found = [row["ms"].get(engine, 0) / row["ms"]["ours"] for row in rows.values()]
            axes.barh(bars, found, height, label=label)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_xlabel(f"{what}, over ours")
        if max(row["ratios"]["best"] for row in rows.values()) > LINEAR:
            axes.set_xscale("log")
        axes.legend()


def _earlier_rows(path: Path | None, cpu: str) -> dict[str, Row]:
    """Return the rows of an earlier run; none of another processor, which would be mixed up."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text())
    when = {name: found[name] for name in ("date", "commit")}
    rows = found["rows"] if found["cpu"] == cpu else {}
    return {name: {**when, **row} for name, row in rows.items()}
