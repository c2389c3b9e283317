# SPDX-License-Identifier: Apache-2.0
"""Plans of a model's convolutions, measured on the machine that is to run them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm

from topi_ext import backend, compat
from topi_ext.backend import Unsupported, Work
from topi_ext.compat import relax
from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.registry import KERNELS
from topi_ext.cpu.select.lookup import entry, measured
from topi_ext.cpu.select.shortlist import shortlist
from topi_ext.interrupts import keep_interrupts
from topi_ext.kernel.database import AnyPath, machine_name, merge, opened, read, using
from topi_ext.spec.conv import OPERANDS
from topi_ext.tuning.interleaved import Timed, race
from topi_ext.tuning.rpc import Board
from topi_ext.tuning.runner import PlanRuns, built, here, on_board

from .pipeline import first_passes

R = relax()

MOST = 10
"""Plans of a kernel that are measured."""

AGREES = {"float16": 2e-2, "bfloat16": 1e-1}
"""By dtype of the result, how far plans may be apart, of the largest result: they add in other
orders.  1e-3 of other floats, where sums of tens of thousands of terms stay below 1e-4."""


class Tuned(NamedTuple):
    """One kernel of a model.

    Attributes
    ----------
    problem : str
        The problem that it computes.
    kernel : str
        Kernel of the fastest plan.
    ms, estimate_ms : float
        Milliseconds by that plan, and by the one that is taken without a measurement.
    plans : int
        How many were measured.
    """

    problem: str
    kernel: str
    ms: float
    estimate_ms: float
    plans: int


TUNED = (*OPERANDS, "matmul", "attention")
"""Kinds of operators that have more than one plan."""

Say = Callable[[str], None]


class Progress:
    """Progress of :func:`tune`, as lines; a subclass may show more."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def start(self, total: int) -> None:
        """Take the number of kernels that will be measured."""

    def step(self, what: str) -> None:
        """Take the kernel that is measured next."""


@keep_interrupts()
def tune(
    module: Any,
    target: Any,
    database: AnyPath = "plans.json",
    *,
    candidates: int = MOST,
    again: bool = False,
    say: Say | Progress | None = None,
    board: Board | None = None,
) -> list[Tuned]:
    """Measure plans of a model's convolutions, matrix products and attention; keep the fastest.

    Kernels are those that :func:`relax_ext.pipeline` would build, with post-ops and packed weights.
    Each plan runs on random operands, in turns with the others; clear losers are excluded early.
    A plan replaces the estimated one only if it is 2 % faster and gives the same result.  The file
    is written after every kernel, so that an interrupted run can continue.

    Parameters
    ----------
    module : tvm.IRModule
        With or without constant weights.  It is not changed.
    target : str, dict or tvm.target.Target
        Target of this machine or of the board, with the number of threads of TVM's runtime there.
    database : str or path
        The file is created, or plans are added to it.
    candidates : int
        Maximum number of plans of a kernel that are measured.
    again : bool
        Whether to measure kernels that are already in the database.
    say : callable or Progress, optional
        Takes lines of progress; they are printed to standard error by default.
    board : topi_ext.tuning.rpc.Board, optional
        The board that runs the plans, behind TVM's RPC tracker; this machine builds them.  Each
        kernel is one session.  A target that names no ``num-cores`` gets the board's, as the
        command line has it.

    Returns
    -------
    list of Tuned
        Results for the measured kernels.

    Raises
    ------
    ValueError
        For a target that is not this processor, or a file that is not a database.
    topi_ext.tuning.rpc.BoardError
        If the board or its tracker fails.

    Examples
    --------
    >>> relax_ext.tune(module, target, database="plans.json")
    >>> pipeline = relax_ext.pipeline(target, database="plans.json")
    >>> tvm.compile(module, target, relax_pipeline=pipeline)
    """
    target = _checked(tvm.target.Target(target), board)
    read(database)  # raises for another kind of file before anything is measured
    progress = say if isinstance(say, Progress) else Progress(say or _to_stderr)
    say = progress.say
    works = [work for work in _works(module, target) if isinstance(work.backend, CpuBackend)]
    known = [work for work in works if work.problem.is_static]
    if len(known) < len(works):
        say(f"tune: {len(works) - len(known)} kernels of symbolic sizes are left to the estimate")
    left = known if again else [work for work in known if not _is_known(work, database)]
    if len(left) < len(known):
        say(f"tune: {len(known) - len(left)} kernels are in {database} already")
    done, start = [], time.monotonic()
    progress.start(len(left))
    for number, work in enumerate(left, 1):
        progress.step(f"{work.problem.kind}, {number} of {len(left)}")
        plan, tuned = _fastest(work, target, candidates, board)
        plans = {work.problem.signature: entry(plan, tuned.ms, tuned.estimate_ms)}
        name = machine_name(*_processor(work))
        merge(database, {name: plans})
        done.append(tuned)
        say(f"tune: {number} of {len(left)}, {time.monotonic() - start:.0f} s: {_told(tuned)}")
    return done


def _checked(target: Any, board: Board | None) -> Any:
    """Return the target with the board's threads; raise if its kernels do not run there."""
    found = backend.of_target(target)
    if isinstance(found, Unsupported):
        raise ValueError(f"tune: {found.reason}")
    if not isinstance(found, CpuBackend):
        kind = target.kind.name
        raise ValueError(f"tune: target kind {kind}: plans are measured on processors only")
    if board:
        session = board.connect()
        try:
            session.check_target(target)
            return session.planned(target)
        finally:
            session.close()
    if not compat.is_for_this_machine(target) or compat.missing_vectors(target):
        raise ValueError("tune: the target must be one whose kernels run on this machine")
    return target


def _works(module: Any, target: Any) -> Sequence[Work]:
    """Return the kernels that the pipeline would build."""
    passes = [*first_passes(module), R.transform.LegalizeOps()]
    with using(None), backend.recording() as works, target:
        tvm.transform.Sequential(passes)(module)
    return list(dict.fromkeys(work for work in works if work.problem.kind in TUNED))


def _is_known(work: Work, database: AnyPath) -> bool:
    processor, machine = _processor(work)
    if machine_name(processor, machine) not in read(database):
        return False
    return measured(work.problem, machine, processor, opened(database)) is not None


def _processor(work: Work) -> tuple[str, CpuMachine]:
    """Return the processor of a kernel, by name and as planners know it."""
    if not isinstance(work.backend, CpuBackend):
        raise TypeError(f"tune: {work.problem.kind}: plans are measured on processors only")
    return work.backend.processor, work.backend.machine


def _fastest(work: Work, target: Any, most: int, board: Board | None) -> tuple[Plan, Tuned]:
    """Return the fastest plan of those that agree with the estimate's."""
    plans = shortlist(work.problem, _processor(work)[1], most)
    library = built(work, plans, target)
    with on_board(library, board, target) if board else here(library) as opened:
        runs = PlanRuns(work, plans, opened)
        timed: dict[int, Timed] = {}
        for number in range(len(plans)):
            run, result = runs.ready(number)
            if number == 0:
                wanted = result
            elif not _agree(result, wanted):
                continue
            timed[number] = run
        best, seconds = race(timed)
    name = KERNELS.of_plan(plans[best]).name
    times = seconds[best] * 1e3, seconds[0] * 1e3
    return plans[best], Tuned(work.problem.signature, name, *times, len(timed))


def _agree(result: Any, wanted: Any) -> bool:
    """Return whether two plans compute the same."""
    name = str(result.dtype)
    if not name.startswith(("float", "bfloat")):
        return bool((result == wanted).all())
    exact = wanted.astype("float64")
    apart = np.abs(result.astype("float64") - exact).max(initial=0.0)
    return bool(apart <= AGREES.get(name, 1e-3) * np.abs(exact).max(initial=0.0))


def _told(tuned: Tuned) -> str:
    gain = tuned.estimate_ms / tuned.ms
    faster = f"{gain:.2f} times as fast as" if gain > 1 else "the choice of"
    return f"{tuned.ms:.3g} ms by {tuned.kernel}, {faster} the estimate"


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
