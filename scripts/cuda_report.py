# SPDX-License-Identifier: Apache-2.0
"""Report registers, instructions and bank conflicts of CUDA kernels without a GPU.

::

    pip install 'tvm-conv-ext[cuda-check]'          # where CUDA is not installed
    python scripts/cuda_report.py --json out/cuda.json

Plans are those that the backend chooses for each architecture, for shapes that meet every kernel;
and, for the first of ``--tile-archs``, every tile of every kernel's table.  nvcc compiles them with
TVM's flags, nvdisasm reads them; addresses are evaluated for the threads of one block each.

Exit status: 0, also when kernels break rules, which the last table lists; 1 when one does not
compile; 2 when the command or a tool is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

from figures import static_of
from support.arguments import exit_with
from support.environment import commit, today
from support.gpu import toolchain
from support.gpu_static import ceilings, static, tables
from support.gpu_static.shapes import ARCHS
from support.output import write_json
from topi_ext.cuda.registry import KERNELS


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = made.add_argument
    add("--archs", nargs="+", default=ARCHS, metavar="sm_NN", help="all if absent")
    tiles = "for which every tile is compiled too (default: sm_90)"
    add("--tile-archs", nargs="*", default=("sm_90",), metavar="sm_NN", help=tiles)
    add("--only", metavar="KERNEL", help="only this kernel's plans")
    add("--seconds", type=float, default=1e9, help="begin nothing after so many")
    add("--json", type=Path, metavar="OUT", help="write all rows here")
    add("--figures", type=Path, metavar="OUT", help="write the cells of the tables here")
    add("--shown", nargs="+", default=("sm_80", "sm_90"), help="architectures of the tables")
    return made


def collect(given: argparse.Namespace) -> tuple[list[static.Row], list[str]]:
    """Return all rows, and what does not compile."""
    spots = chain(
        (("chosen", spot) for spot in static.chosen_spots(tuple(given.archs))),
        (("tiles", spot) for spot in static.tile_spots(tuple(given.tile_archs))),
    )
    rows, failed, until = [], [], time.monotonic() + given.seconds
    for kind, spot in spots:
        name = KERNELS.of_plan(spot.plan).name
        if given.only not in (None, name) or time.monotonic() > until:
            continue
        try:
            found = static.rows_of(spot)
        except ValueError as error:
            failed.append(f"{spot.arch} {spot.shape.name} {spot.kind} {spot.plan}: {error}")
            continue
        rows += [{**row, "set": kind, "broken": list(ceilings.broken(row))} for row in found]
        print(f"{len(rows)} {spot.arch} {name} {spot.shape.name}", file=sys.stderr, flush=True)
    return rows, failed


def main() -> int:
    """Write the report."""
    given = parser().parse_args()
    try:
        for tool in ("nvcc", "cuobjdump", "nvdisasm"):
            toolchain.find(tool)
    except toolchain.MissingError as error:
        print(f"cuda_report: {error}", file=sys.stderr)
        return 2
    header: dict[str, Any] = {
        "date": today(),
        "nvcc": toolchain.release(),
        "flags": " ".join(toolchain.FLAGS),
        "commit": commit(),
        "archs": list(given.archs),
    }
    rows, failed = collect(given)
    cells = tables.cells(header, rows, [arch for arch in given.shown if arch in given.archs])
    write_json(given.json, {"header": header, "rows": rows})
    write_json(given.figures, cells)
    print(static_of(cells))
    for line in failed:
        print(f"cuda_report: {line}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    exit_with(main)
