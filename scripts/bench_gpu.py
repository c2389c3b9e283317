# SPDX-License-Identifier: Apache-2.0
"""Checks and times CUDA kernels on a GPU, against PyTorch with cuDNN and stock TVM.

::

    python scripts/bench_gpu.py --seconds 480 --json out/gpu.json --plot out/gpu.png

It compiles while it measures, with as many processes as there are cores, which needs TVM 0.27 and
nvcc.  Without these, or to save time on the GPU, compile on another machine first::

    python scripts/bench_gpu.py --prepare out/sm_90.zip --arch sm_90     # no GPU
    python scripts/bench_gpu.py --bundle out/sm_90.zip --json out/gpu.json --plot out/gpu.png

It measures the ceilings of the device, and checks each kernel and dtype against PyTorch in float64.
Then it times informative cases in all dtypes, and after that the other checks and cases,
interleaved: this package, this package with packed weights, stock TVM, cuDNN with ``benchmark`` and
without TF32 and, for float32, with it.  CUDA's driver launches the kernels on PyTorch's stream and
memory, in a separate process that is replaced when a kernel breaks it.  ``--through-tvm`` also
checks some by way of ``tvm.compile``, as users call them.  Each result is written at once as a line
of ``OUT.jsonl``.

Exit status: 0 if all results are correct, 1 if one is incorrect, 2 if the command line is, or if
the GPU or PyTorch with CUDA is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))  # a checkout that is not installed

from support.arguments import count, exit_with
from support.cases import CASES, KINDS, Case, read_cases
from support.environment import commit, today
from support.gpu.requests import (
    FORMATS,
    PLACES,
    Request,
    checked,
    machine_of,
    makers,
    spread,
    timed,
)

FIRST = ("bench.json", "bench_conv.json")
"""Files that are timed before the others."""

JOBS = max(1, (os.cpu_count() or 1) - 2)
"""Compiling processes; two cores are left for the launches and for other processes."""

DTYPES = tuple(dict.fromkeys(dtype for dtype, _ in FORMATS))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = made.add_argument
    add("--seconds", type=float, default=480, help="begin no row after so many (default: 480)")
    add("--cases", type=Path, nargs="+", metavar="FILE", help="all of scripts/cases if absent")
    add("--only", nargs="+", metavar="NAME", help="only these cases")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="all if absent")
    add("--dtypes", nargs="+", choices=(*DTYPES, "float64"), default=DTYPES, help="three if absent")
    add("--checks", type=count, default=10**9, metavar="N", help="check so many, at most")
    add("--no-check", action="store_true", help="time only")
    add("--no-time", action="store_true", help="check only")
    add("--most", type=count, default=10**9, metavar="N", help="rows to time, at most")
    plans = "other plans to time of each row, to see what the estimate loses"
    add("--plans", type=int, choices=range(len(PLACES) + 1), default=0, metavar="N", help=plans)
    add("--flush", type=int, default=256, metavar="MiB", help="written before a call; 0: nothing")
    jobs = "compile so many at once (default here: %(default)d)"
    add("--jobs", type=count, default=JOBS, metavar="N", help=jobs)
    add("--arch", metavar="sm_NN", help="that of the GPU if absent")
    add("--prepare", type=Path, metavar="OUT.zip", help="compile into this file, time nothing")
    add("--bundle", type=Path, metavar="FILE.zip", help="take kernels from this file")
    add(
        "--through-tvm",
        type=int,
        default=6,
        metavar="N",
        help="kernels to call by TVM (default: 6)",
    )
    add("--in-process", action="store_true", help="no process of its own for each 40 tasks")
    add("--summarize", type=Path, metavar="FILE.jsonl", help="of a run that was ended; no GPU")
    add("--json", type=Path, metavar="OUT", help="write rows and summary here")
    add("--plot", type=Path, metavar="OUT.png", help="draw them here")
    return made


def case_list(files: Iterable[Path] | None, only: Iterable[str] | None) -> list[Case]:
    """Return the cases of all files, informative ones first; a name in two files is one case.

    Raises
    ------
    ValueError, OSError
        If a file or a case cannot be used.
    """
    if files is None:
        names = sorted(path.name for path in CASES.glob("*.json"))
        files = [CASES / name for name in (*FIRST, *(n for n in names if n not in FIRST))]
    cases = {case.name: case for path in files for case in read_cases(path)}
    if only is not None:
        missing = sorted(set(only) - set(cases))
        if missing:
            raise ValueError(f"{' '.join(missing)}: in none of the files")
        cases = {name: case for name, case in cases.items() if name in set(only)}
    return list(cases.values())


def requests(given: argparse.Namespace, arch: str) -> tuple[list[Request], list[Request]]:
    """Return the requests that are checked, and those that are timed."""
    from support.gpu.bundle import Bundle

    cases = case_list(given.cases, given.only)
    to_check = [] if given.no_check else spread(checked(machine_of(arch), given.dtypes))
    to_time = [] if given.no_time else list(timed(cases, given.dtypes, given.kinds))
    if given.bundle is not None:
        known = Bundle(given.bundle)
        to_check = [one for one in to_check if one.code in known]
        to_time = [one for one in to_time if one.code in known]
    return to_check, to_time[: given.most]


def prepare(given: argparse.Namespace) -> int:
    """Compile all requests of a run on a GPU; those that an earlier call compiled are kept."""
    from support.gpu.bundle import Parts, prepare_all, write

    arch = given.arch or "sm_90"
    to_check, to_time = requests(given, arch)
    wanted = [*to_check, *chain.from_iterable(makers(one, given.plans) for one in to_time)]
    header = {"arch": arch, "commit": commit(), "date": today()}
    parts = Parts(given.prepare.with_suffix(".parts"), header)
    missing = [one for one in wanted if one.code not in parts]
    until = time.monotonic() + given.seconds
    for number, one in enumerate(prepare_all(missing, arch, given.jobs)):
        parts.add(one)
        if number % 50 == 0:
            print(f"{number} of {len(missing)}", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            break
    made = write(given.prepare, header, parts)
    size = given.prepare.stat().st_size / 2**20
    print(f"{given.prepare}: {made} of {len(wanted)} kernels for {arch}, {size:.1f} MiB")
    return 0


def main() -> int:
    """Run the command line."""
    made = parser()
    given = made.parse_args()
    try:
        if given.prepare:
            return prepare(given)
        from support.gpu.record import Record
        from support.gpu.session import LISTS, finish, opened, run

        if given.summarize:
            finish(Record.read(given.summarize, *LISTS), given.json, given.plot)
            return 0
        arch, runner = opened(given)
        return run(given, runner, arch, *requests(given, arch))
    except (ValueError, OSError) as error:
        print(f"bench_gpu: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    exit_with(main)
