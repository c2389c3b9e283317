# SPDX-License-Identifier: Apache-2.0
"""Files that scripts write: JSON and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#222222", "#e6e6e6"


def write_json(path: Path | None, found: Any) -> None:
    """Write `found` if a path is given: a long run writes what there is so far."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


@contextmanager
def picture(path: Path, width: float, height: float, font: int = 9) -> Iterator[Figure]:
    """Give a figure of these inches, and write it at the end."""
    import matplotlib as mpl

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": font}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
