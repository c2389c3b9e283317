# SPDX-License-Identifier: Apache-2.0
"""Hash every kernel that is emitted for all kinds of operators, to see that a change of the code
changes none.

::

    python scripts/dump_kernels.py BEFORE.json
    python scripts/dump_kernels.py AFTER.json --against BEFORE.json      # after the change

One row per module: the structural hash of each kernel, in which names of variables do not count.
Nothing is run, so targets may be other processors than this one.  Without ``--cases`` the
convolutions are those of ``cases/kinds.json``, which are small.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from support.arguments import count
from support.cases import CASES, Case, read_cases
from support.emission import TARGETS, kernels, of_case, others, target_of

Job = tuple[str, str, "Case | None"]
"""A prefix of keys, the name of a target, and a case; None for what is no convolution."""


def rows_of(job: Job) -> dict[str, dict[str, int]]:
    """Return the hashes of the kernels of every module of a job, by key."""
    warnings.simplefilter("ignore")  # of targets that are not this machine
    prefix, name, case = job
    target = target_of(name)
    modules = others() if case is None else of_case(case)
    return {f"{prefix}/{key}/{name}": kernels(build(), target) for key, build in modules}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line per row that is not the same, or is in one of the two only."""
    lines = [f"{key}: only before" for key in before.keys() - after.keys()]
    lines += [f"{key}: only after" for key in after.keys() - before.keys()]
    for key in before.keys() & after.keys():
        if changed := dict(before[key].items() ^ after[key].items()):
            lines.append(f"{key}: {', '.join(sorted(changed))}")
    return sorted(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="JSON file of an earlier run")
    parser.add_argument(
        "--cases", type=Path, nargs="+", help="case files; cases/kinds.json if absent"
    )
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    given = parser.parse_args()
    try:
        before = json.loads(given.against.read_text()) if given.against else None
        cases = [
            (file.stem, case)
            for file in given.cases or [CASES / "kinds.json"]
            for case in read_cases(file)
        ]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    jobs: list[Job] = [
        (f"{file}/{case.name}", target, case) for file, case in cases for target in given.targets
    ]
    jobs += [("others", target, None) for target in given.targets]
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, made in enumerate(pool.map(rows_of, jobs), 1):
            found.update(made)
            print(f"\r{number} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    given.out.write_text(json.dumps(found, indent=0, sort_keys=True))
    if before is None:
        print(f"{sum(map(len, found.values()))} kernels of {len(found)} modules")
        return 0
    lines = differences(before, found)
    print("\n".join([*lines, f"{len(found)} modules, {len(lines)} are not the same"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
