# SPDX-License-Identifier: Apache-2.0
"""Rate the planners' estimates on this machine: time other plans beside the chosen one.

::

    python scripts/evaluate_cost_model.py --cases scripts/cases/bench.json --json out/rate.json \\
        --plot out/rate.png

Of every case and kind, every kernel's plans whose estimate is within ``--within`` times the best
one are candidates; of each kernel at most ``--most`` are built, spread evenly over the logarithm of
the estimate, the lowest and the highest among them (the JSON says how many there were).  The chosen
plan is always one.  All are checked, then timed in turns in one process on the same threads; the
chosen one and the two fastest are timed once more, for longer, so that luck does not name a winner.
Regret is what the choice costs: time of the chosen plan / time of the fastest, 1 at best.

Exit status: 0 when every result is correct, 1 when one is incorrect, 2 for an invalid command.
"""

from __future__ import annotations

import argparse

from support.arguments import DTYPES, cases_of, count, exit_with, of_several_files
from support.cases import CASES, KINDS
from support.environment import prepare


def kinds(text: str) -> tuple[str, ...]:
    """Return the names of kinds, as ``argparse`` takes types."""
    names = tuple(text.split(","))
    if not set(names) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"{text} must be of {', '.join(KINDS)}")
    return names


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = of_several_files(__doc__, [CASES / "bench.json", CASES / "bench_conv.json"])
    add = made.add_argument
    add("--kinds", type=kinds, default=KINDS, metavar="NAME,...", help="of each; all if absent")
    add("--dtype", choices=DTYPES, default="float32", help="default: float32")
    within = "times the best estimate (default: %(default)g)"
    add("--within", type=float, default=2.0, metavar="F", help=within)
    most = "plans of a kernel (default: %(default)d)"
    add("--most", type=count, default=4, metavar="N", help=most)
    add("--seconds", type=float, metavar="S", help="begin no shape after so many")
    budget = "seconds of timed runs of each plan (default: %(default)g)"
    add("--time-budget", type=float, default=0.2, metavar="S", help=budget)
    return made


def main() -> int:
    """Rate what the command line asks for."""
    made = parser()
    given = made.parse_args()
    cases = cases_of(made, given)
    prepare(given.threads)  # TVM and torch read the environment when they are imported
    from support.rating import run

    return run(cases, given)


if __name__ == "__main__":
    exit_with(main)
