# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of whole models beside PyTorch share: environment, header, plot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .environment import commit, processor_name

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
"""How PyTorch's threads wait while all are measured in one process; a process of its own has the
default."""


def prepare_environment(threads: int) -> None:
    """Set what is read at import: the number of threads, which do not spin while they wait."""
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.update({**WAITING, "TVM_BIND_THREADS": "0"})


def header(threads: int) -> dict[str, Any]:
    """Return when and where the rows were measured."""
    import torch
    import tvm

    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": commit(),
        "cpu": processor_name(),
        "threads": threads,
        "versions": {"torch": torch.__version__, "tvm": tvm.__version__},
    }


def plot(
    rows: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str], what: str, path: Path
) -> None:
    """Draw how many times as fast ours is as each baseline.

    Parameters
    ----------
    rows : mapping
        By name, each with milliseconds ``ms`` by engine, ``ours`` among them.
    labels : mapping
        Labels of the two baselines, by engine.
    what : str
        What took the time, for the axis.
    path : Path
    """
    import matplotlib as mpl

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for offset, engine, colour in zip((-0.2, 0.2), labels, ("#2a6f97", "#e07a1f")):
        ratios = [row["ms"].get(engine, 0) / row["ms"]["ours"] for row in rows.values()]
        bars = [place + offset for place in places]
        axes.barh(bars, ratios, 0.38, label=labels[engine], color=colour)
    axes.set_yticks(list(places), list(rows))
    axes.invert_yaxis()
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_xlabel(f"{what}, over ours")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
