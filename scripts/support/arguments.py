# SPDX-License-Identifier: Apache-2.0
"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from .cases import KINDS, Case, read_cases

PACKED_BASELINES = ("onnxruntime", "openvino", "inductor")
"""They know the weight when they are built, and are compared to ours with packed weights."""

BASELINES = ("torch", "stock", "symbolic", *PACKED_BASELINES)
"""``symbolic`` is ours again, for sizes that are known when it runs."""

IRS = ("relax", "relay")
DTYPES = ("float64", "float32", "float16", "bfloat16")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and the case file; one line and exit status 2 for what is invalid.

    The options are those of the command line; ``cases`` are read, ``source`` is the name of their
    file, and ``kinds`` has all of ``all``.
    """
    parser = argparse.ArgumentParser(
        prog="bench.py",
        description="Time convolutions of a case file in ours, PyTorch and stock TVM: one process, "
        "interleaved, medians, every result checked. Exit status 1 when one is incorrect.",
    )
    add = parser.add_argument
    add("--cases", type=Path, required=True, metavar="FILE.json", help="list of convolutions")
    add("--ir", choices=IRS, default="relax", help="TVM's IR (default: %(default)s)")
    kinds = (*KINDS, "all")
    add("--kind", choices=kinds, default=KINDS[0], help="of each geometry (default: %(default)s)")
    add(
        "--rivals",
        dest="baselines",
        type=_names,
        default=("torch", "stock"),
        metavar="NAME,...",
        help="torch, stock, symbolic: ours for any sizes; with constant weights onnxruntime, "
        "openvino, inductor: torch.compile (default: torch,stock)",
    )
    add("--threads", type=count, default=2, metavar="N", help="default: 2")
    add("--dtype", choices=DTYPES, default="float32", help="default: float32")
    add("--json", type=Path, metavar="OUT", help="write rows and summary here")
    add("--plot", type=Path, metavar="OUT.png", help="draw the ratios here")
    add("--only", type=_names, metavar="NAME,...", help="only these cases")
    add(
        "--time-budget",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds of timed runs per case and implementation (default: %(default)s); "
        "at least one run, whatever it takes",
    )
    given = parser.parse_args(argv)
    unknown = [name for name in given.baselines if name not in BASELINES]
    if unknown:
        parser.error(f"--rivals {','.join(unknown)}: must be of {', '.join(BASELINES)}")
    given.source = given.cases.name
    given.kinds = KINDS if given.kind == "all" else (given.kind,)
    given.cases = [given.cases]
    given.cases = cases_of(parser, given)
    return given


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """End the program with the exit status of its main function; one line if it is interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(f"{Path(sys.argv[0]).stem}: interrupted")


def count(text: str) -> int:
    """Return a number of at least 1, as ``argparse`` takes types."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def of_several_files(doc: str, default: Sequence[Path] = ()) -> argparse.ArgumentParser:
    """Return the command line of a program that measures cases of several files."""
    made = argparse.ArgumentParser(description=doc.split("\n")[0])
    made.add_argument(
        "--cases",
        type=Path,
        nargs="+",
        default=default,
        required=not default,
        metavar="FILE",
        help=f"lists of convolutions (default: {' '.join(one.name for one in default) or 'none'})",
    )
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these cases")
    made.add_argument("--threads", type=count, default=2, metavar="N", help="default: %(default)s")
    made.add_argument("--json", type=Path, metavar="OUT", help="write all there")
    made.add_argument("--plot", type=Path, metavar="OUT.png", help="draw it there")
    return made


def cases_of(made: argparse.ArgumentParser, given: argparse.Namespace) -> list[Case]:
    """Return the cases that such a command line asks for; one line and exit status 2 for others."""
    try:
        found = [case for path in given.cases for case in read_cases(path)]
    except (OSError, ValueError) as error:
        made.error(f"--cases {' '.join(map(str, given.cases))}: {error}")
    if missing := sorted(set(given.only or ()) - {case.name for case in found}):
        made.error(f"--only {' '.join(missing)}: not in {' '.join(map(str, given.cases))}")
    return [case for case in found if not given.only or case.name in given.only]
