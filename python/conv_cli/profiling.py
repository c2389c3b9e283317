# SPDX-License-Identifier: Apache-2.0
"""Profile a model operator by operator, and find its slowest operator without a kernel of ours."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from topi_ext.notices import one_line

from .adapter import Adapter, Ran
from .check import Progress, target_text
from .errors import CliError
from .measure import Protocol, timed_torch
from .model import Model, Options, load
from .targets import parse_target

WEAK = 0.05
"""Share of the time from which on an operator that is not ours is worth a word."""


@dataclass(frozen=True)
class Entry:
    """Calls of one operator on tensors of the same shapes.

    Attributes
    ----------
    operator : str
    shapes : tuple of tuple of int
    count : int
        Calls in a run.
    ms : float
        Time of all of them together, median of the runs.
    share : float
        Fraction of the time of a run.
    is_ours : bool
        Whether a kernel of this package computes it.
    kernel : str
        Name of that kernel; empty where TVM computes it.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    count: int
    ms: float
    share: float
    is_ours: bool
    kernel: str = ""


@dataclass
class Profile:
    """The profile of one model.

    Attributes
    ----------
    package, model, framework, target : str
    threads : int
    entries : list of Entry
        The slowest first.
    ms : float
        Time of the calls of a run, without the time between them.
    reference_ms : float or None
        Time of PyTorch, if it is the model's framework; otherwise None.
    """

    package: str
    model: str
    framework: str
    target: str
    threads: int
    entries: list[Entry] = field(default_factory=list)
    ms: float = 0.0
    reference_ms: float | None = None

    @property
    def weakest(self) -> tuple[str, float] | None:
        """The operator, of whatever shapes, that takes most of the time and is not ours, and its
        share; None where that is little."""
        shares: dict[str, float] = defaultdict(float)
        for entry in self.entries:
            if not entry.is_ours:
                shares[entry.operator] += entry.share
        name = max(shares, key=lambda one: shares[one], default="")
        return (name, shares[name]) if shares.get(name, 0.0) >= WEAK else None

    ok = True  # nothing is compared

    @property
    def ours(self) -> float:
        """The share of this package's kernels."""
        return sum(entry.share for entry in self.entries if entry.is_ours)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "ours": self.ours, "weakest": self.weakest}


def profile(
    adapter: Adapter, path: Path, options: Options, progress: Progress | None = None
) -> Profile:
    """Compile a model by the adapter's pipeline, run it, and time every call.

    Parameters
    ----------
    adapter : Adapter
    path : pathlib.Path
        A file that the adapter reads.
    options : Options
        Options of the command line.
    progress : Progress, optional

    Returns
    -------
    Profile

    Raises
    ------
    CliError
        For an error that the user can correct, or if the model does not compile.
    """
    progress = progress or Progress()
    target = parse_target(options.target, options.threads)
    protocol = Protocol(target, options.repeat, options.budget)
    model = load(path, adapter.loaders, options)
    found = Profile(
        adapter.package, model.name, model.framework, target_text(target), options.threads
    )
    progress.start(2)
    progress.step(f"whole model, {adapter.pipeline}")
    runs, ours = _runs(model, adapter, protocol)
    found.entries = entries_of(runs, ours)
    found.ms = sum(entry.ms for entry in found.entries)
    if model.framework == "torch" and model.reference:
        progress.step("PyTorch")
        found.reference_ms = timed_torch(model.reference, protocol)
    return found


def _runs(
    model: Model, adapter: Adapter, protocol: Protocol
) -> tuple[list[list[Ran]], Mapping[str, str]]:
    """Return the calls of each run, and the kernels of functions that are ours."""
    try:
        compiled = adapter.compile_observed(model.mod, protocol.target, "main")
        with closing(compiled):
            return compiled.observed(compiled.put(list(model.inputs.values())), protocol)
    except CliError:
        raise
    except Exception as error:
        raise CliError(f"{model.name}: does not compile or run: {one_line(error)}") from error


def entries_of(runs: Sequence[Sequence[Ran]], ours: Mapping[str, str]) -> list[Entry]:
    """Calls by operator and shapes, the slowest first.

    Parameters
    ----------
    runs : sequence
        The calls of each run of the same model.
    ours : mapping of str to str
        Name of the kernel by symbol, of functions that are this package's kernels.
    """
    sums: dict[tuple[str, Any, str], list[int]] = defaultdict(list)
    counts: Counter[tuple[str, Any, str]] = Counter()
    for number, run in enumerate(runs):
        of_run: dict[tuple[str, Any, str], int] = defaultdict(int)
        for call in run:
            name = operator_name(call.symbol)
            key = name, () if name == MEMORY else call.shapes, ours.get(call.symbol, "")
            of_run[key] += call.ns
            counts[key] += number == 0
        for key, ns in of_run.items():
            sums[key].append(ns)
    times = {key: median(values) / 1e6 for key, values in sums.items()}
    total = sum(times.values()) or 1.0
    made = [
        Entry(name, shapes, counts[name, shapes, kernel], ms, ms / total, bool(kernel), kernel)
        for (name, shapes, kernel), ms in times.items()
    ]
    return sorted(made, key=lambda entry: -entry.ms)


MEMORY = "memory and shapes"
"""Operations of the virtual machine itself."""


def operator_name(symbol: str) -> str:
    """Return the operator that a compiled function computes: its name without compiler suffixes."""
    if symbol.startswith("vm.builtin."):
        return MEMORY
    return re.sub(r"_?\d*$", "", symbol.removeprefix("fused_")) or symbol
