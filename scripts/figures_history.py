# SPDX-License-Identifier: Apache-2.0
"""Plot the figures of docs/measured over the commits that changed them.

::

    python scripts/figures_history.py --plot out/history.png

Each benchmark file keeps only its newest figures; git has the earlier ones.  The program prints a
table of the geometric means of the best baseline over ours, and plots them.  Rows of different
processors, or of different sets of models, are not comparable, so the table names both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from figures import MEASURED, MODES, WHAT
from support.output import picture
from support.tables import digits, table

BASELINES = ("eager", "compile", "inductor", "onnxruntime", "openvino", "stock")


class Figure(NamedTuple):
    """The summary of one version of a file.

    Attributes
    ----------
    what : str
        The benchmark, and the mode if it has two.
    date, commit, cpu : str
        When, on which commit and on which processor it was measured.
    models : int
        Number of models.
    mean : float
        Geometric mean of the best baseline over ours.
    time : int
        Seconds at which the version was committed.
    """

    what: str
    date: str
    commit: str
    cpu: str
    models: int
    mean: float
    time: int


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def versions(folder: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield time and content of the versions of a file that are in git, the oldest first."""
    for line in reversed(git(folder, "log", "--format=%ct %H", "--", name).splitlines()):
        time, commit = line.split()
        try:
            yield int(time), json.loads(git(folder, "show", f"{commit}:./{name}"))
        except subprocess.CalledProcessError:
            continue  # the commit removed the file


def best_over_ours(ms: dict[str, float]) -> float:
    """Return the shortest time of a baseline over ours."""
    return min(ms[engine] for engine in BASELINES if ms.get(engine)) / ms["ours"]


def figures(folder: Path, name: str) -> Iterator[Figure]:
    """Yield a figure for each version of a file and each of its modes; early ones have no
    ratios.
    """
    for time, version in versions(folder, name):
        rows = {model: best_over_ours(row["ms"]) for model, row in version["rows"].items()}
        for mode in sorted({model.rpartition(", ")[2] for model in rows} & set(MODES)) or [""]:
            ratios = [best for model, best in rows.items() if model.endswith(mode)]
            what = ", ".join(filter(None, (WHAT[name], mode)))
            where = (version["date"], version["commit"], version["cpu"])
            yield Figure(what, *where, len(ratios), geometric_mean(ratios), time)


def plot(found: list[Figure], path: Path) -> None:
    """Draw a line for each benchmark and processor, over the commits of its versions."""
    in_order = sorted(found, key=lambda one: one.time)
    labels = list(dict.fromkeys(f"{one.date}\n{one.commit}" for one in in_order))
    with picture(path, 8, 5) as figure:
        axes = figure.subplots()
        for what, cpu in dict.fromkeys((one.what, one.cpu) for one in in_order):
            line = [one for one in in_order if (one.what, one.cpu) == (what, cpu)]
            at = [labels.index(f"{one.date}\n{one.commit}") for one in line]
            means = [one.mean for one in line]
            axes.plot(at, means, marker="o", label=f"{what.replace('`', '')}; {cpu}")
        axes.set_xticks(range(len(labels)), labels)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("best baseline / ours")
        axes.axhline(1, color="grey", linestyle="--")
        figure.legend(loc="outside upper left", fontsize="small")


def main() -> None:
    """Print the table, and plot it if the command line names a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plot", type=Path, help="file to write the plot to")
    path = parser.parse_args().plot
    found = [one for name in WHAT for one in figures(MEASURED, name)]
    heads = ("", "date", "commit", "processor", "models", "best baseline / ours")
    print(table(heads, [(*one[:4], str(one.models), digits(one.mean)) for one in found]))
    if path is not None:
        plot(found, path)


if __name__ == "__main__":
    main()
