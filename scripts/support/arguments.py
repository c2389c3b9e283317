# SPDX-License-Identifier: Apache-2.0
"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .cases import KINDS, Case, read_cases

PACKED_BASELINES = ("onnxruntime", "openvino", "inductor")
"""They know the weight when they are built, and are compared to ours with packed weights."""

BASELINES = ("torch", "stock", "symbolic", *PACKED_BASELINES)
"""``symbolic`` is ours again, for sizes that are known when it runs."""

IRS = ("relax", "relay")
DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    cases: list[Case]
    source: str
    ir: str
    kinds: tuple[str, ...]
    baselines: tuple[str, ...]
    threads: int
    dtype: str
    time_budget: float
    json: Path | None
    plot: Path | None


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line and the case file; one line and exit status 2 for what is invalid."""
    parser = argparse.ArgumentParser(
        prog="bench.py",
        description="Time convolutions of a case file in ours, PyTorch and stock TVM: one process, "
        "interleaved, medians, every result checked. Exit status 1 when one is incorrect.",
    )
    parser.add_argument(
        "--cases", type=Path, required=True, metavar="FILE.json", help="list of convolutions"
    )
    parser.add_argument(
        "--ir", choices=IRS, default="relax", help="TVM's IR (default: %(default)s)"
    )
    parser.add_argument(
        "--kind",
        choices=(*KINDS, "all"),
        default="conv_transpose",
        help="what to compute of each geometry (default: %(default)s)",
    )
    parser.add_argument(
        "--rivals",
        dest="baselines",
        type=_names,
        default=("torch", "stock"),
        metavar="NAME,...",
        help="torch, stock, symbolic: ours for any sizes; with constant weights onnxruntime, "
        "openvino, inductor: torch.compile (default: torch,stock)",
    )
    parser.add_argument("--threads", type=count, default=2, metavar="N", help="default: 2")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: float32")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write rows and summary here")
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="draw the ratios here")
    parser.add_argument("--only", type=_names, metavar="NAME,...", help="only these cases")
    parser.add_argument(
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
    try:
        cases = read_cases(given.cases)
    except (OSError, ValueError) as error:
        parser.error(f"--cases {given.cases}: {error}")
    if given.only:
        missing = sorted(set(given.only) - {case.name for case in cases})
        if missing:
            parser.error(f"--only {','.join(missing)}: not in {given.cases}")
        cases = [case for case in cases if case.name in given.only]
    kinds = KINDS if given.kind == "all" else (given.kind,)
    same = ("ir", "baselines", "threads", "dtype", "time_budget", "json", "plot")
    rest = {name: getattr(given, name) for name in same}
    return Options(cases=cases, source=given.cases.name, kinds=kinds, **rest)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


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
        made.error(f"--cases: {error}")
    if missing := sorted(set(given.only or ()) - {case.name for case in found}):
        made.error(f"--only {' '.join(missing)}: in none of the files")
    return [case for case in found if not given.only or case.name in given.only]
