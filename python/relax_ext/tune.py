# SPDX-License-Identifier: Apache-2.0
"""Plans of a model's convolutions, measured on the machine that runs them."""

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
from topi_ext.cpu.measured import entry, measured
from topi_ext.cpu.plan.shortlist import shortlist
from topi_ext.cpu.plan.window import Plan
from topi_ext.cpu.registry import kernel_of
from topi_ext.plan_database import AnyPath, machine_name, merge, opened, problem_name, read, using
from topi_ext.race import Timed, race

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
        What it computes.
    kernel : str
        Of the fastest plan.
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


Say = Callable[[str], None]


def tune(
    module: Any,
    target: Any,
    database: AnyPath = "plans.json",
    *,
    candidates: int = MOST,
    again: bool = False,
    say: Say | None = None,
) -> list[Tuned]:
    """Measure plans of the convolutions of a model here, and keep the fastest of each.

    Kernels are those that :func:`relax_ext.pipeline` would build, with what is fused and packed.
    Each plan runs on random operands, in turns with the others; clear losers are left out early.
    Another plan than the estimate's is kept only where it is 2 % faster, and agrees with it.  The
    file is written after every kernel, so what was interrupted goes on where it was.

    Parameters
    ----------
    module : tvm.IRModule
        With or without constant weights.  It is left as it is.
    target : str, dict or tvm.target.Target
        Of this machine; threads as TVM's runtime has them.
    database : str or path
        It is made, or plans are added to it.
    candidates : int
        Plans of a kernel that are measured, at most.
    again : bool
        Whether kernels are measured that the database has.
    say : callable, optional
        What takes lines of progress; standard error if left out.

    Returns
    -------
    list of Tuned
        Of the kernels that were measured.

    Raises
    ------
    ValueError
        For a target that is not this machine's processor; for a file that is something else.

    Examples
    --------
    >>> relax_ext.tune(module, target, database="plans.json")
    >>> pipeline = relax_ext.pipeline(target, database="plans.json")
    >>> tvm.compile(module, target, relax_pipeline=pipeline)
    """
    target = tvm.target.Target(target)
    _check(target)
    read(database)  # refuses what is no database, before anything is measured
    say = say or _to_stderr
    works = [work for work in _works(module, target) if isinstance(work.backend, CpuBackend)]
    known = [work for work in works if work.problem.is_static]
    if len(known) < len(works):
        say(f"tune: {len(works) - len(known)} kernels of symbolic sizes are left to the estimate")
    left = known if again else [work for work in known if not _is_known(work, database)]
    if len(left) < len(known):
        say(f"tune: {len(known) - len(left)} kernels are in {database} already")
    done, start = [], time.monotonic()
    for number, work in enumerate(left, 1):
        problem, (machine, processor) = work.problem, (work.backend.machine, work.backend.processor)
        plan, tuned = _fastest(work, target, candidates)
        found = {problem_name(problem): entry(plan, tuned.ms, tuned.estimate_ms)}
        merge(database, {machine_name(processor, machine): found})
        done.append(tuned)
        say(f"tune: {number} of {len(left)}, {time.monotonic() - start:.0f} s: {_told(tuned)}")
    return done


def _check(target: Any) -> None:
    """Refuse a target whose kernels do not run here."""
    found = backend.of_target(target)
    if isinstance(found, Unsupported):
        raise ValueError(f"tune: {found.reason}")
    if not isinstance(found, CpuBackend):
        kind = target.kind.name
        raise ValueError(f"tune: target kind {kind}: plans are measured on processors only")
    if not compat.is_for_this_machine(target) or compat.missing_vectors(target):
        raise ValueError("tune: the target must be one whose kernels run on this machine")


def _works(module: Any, target: Any) -> Sequence[Work]:
    """The kernels that the pipeline would build."""
    passes = [*first_passes(module), R.transform.LegalizeOps()]
    with using(None), backend.recording() as works, target:
        tvm.transform.Sequential(passes)(module)
    return list(dict.fromkeys(works))


def _is_known(work: Work, database: AnyPath) -> bool:
    found = work.backend
    if machine_name(found.processor, found.machine) not in read(database):
        return False
    return measured(work.problem, found.machine, found.processor, opened(database)) is not None


def _fastest(work: Work, target: Any, most: int) -> tuple[Plan, Tuned]:
    """The fastest plan of those that agree with the estimate's."""
    plans = shortlist(work.problem, work.backend.machine, most)
    operands = _Operands()
    timed: dict[int, Timed] = {}
    for number, plan in enumerate(plans):
        run, result = _ready(work, plan, target, operands)
        if number == 0:
            wanted = result
        elif not _agree(result, wanted):
            continue
        timed[number] = run
    best, seconds = race(timed)
    name = kernel_of(plans[best]).name
    times = seconds[best] * 1e3, seconds[0] * 1e3
    return plans[best], Tuned(problem_name(work.problem), name, *times, len(timed))


class _Operands:
    """Random arrays by shape and dtype, in the order in which a kernel takes them."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, tuple[int, ...], str], Any] = {}

    def get(self, place: int, shape: tuple[int, ...], dtype: str) -> Any:
        key = (place, shape, dtype)
        if key not in self.made:
            rng = np.random.default_rng(place)
            array = tvm.runtime.empty(shape, dtype)
            if dtype.startswith(("float", "bfloat")):
                values = rng.uniform(0.5, 1.5, shape) * rng.choice((-1.0, 1.0), shape)
            else:
                values = rng.integers(0, 100, shape)
            array.copyfrom(values.astype(array.numpy().dtype))
            self.made[key] = array
        return self.made[key]


def _ready(work: Work, plan: Plan, target: Any, operands: _Operands) -> tuple[Timed, Any]:
    """What times a plan's kernel, and the result of its first call."""
    func = work.backend.build(work.problem, plan)
    functions = {"kernel": func}
    packing = work.backend.build_packing(work.problem, plan) if work.problem.prepacked else None
    if packing:
        functions["pack"] = packing[0]
    named = {name: one.with_attr("global_symbol", name) for name, one in functions.items()}
    library = tvm.compile(tvm.IRModule(named), target=target)
    kinds = compat.parameters_of(func)
    arrays = [operands.get(place, *kind) for place, kind in enumerate(kinds[:-1])]
    arrays.append(tvm.runtime.empty(*kinds[-1]))
    if packing:
        arrays[1] = tvm.runtime.empty(*kinds[1])
        stored = operands.get(1, *compat.parameters_of(packing[0])[0])
        library["pack"](stored, arrays[1])
    library["kernel"](*arrays)
    module = getattr(library, "mod", library)

    def timed(calls: int) -> float:
        evaluator = module.time_evaluator("kernel", tvm.cpu(), number=calls, repeat=1)
        return float(evaluator(*arrays).mean)

    return timed, arrays[-1].numpy().copy()


def _agree(result: Any, wanted: Any) -> bool:
    """Whether two plans compute the same."""
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
