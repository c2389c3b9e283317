# SPDX-License-Identifier: Apache-2.0
"""One row of the benchmark: one kind of operator on one case, built, checked and timed."""

from __future__ import annotations

import math
from argparse import Namespace as Options
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from topi_ext import backend
from topi_ext.notices import one_line
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts

from . import baselines, by_torch
from .arguments import BASELINES, PACKED_BASELINES
from .baselines import Call
from .cases import Case
from .default_malloc import TorchByDefault
from .engines import Built, UnavailableError
from .errors import allowed, finite, relative_error
from .peaks import Peaks
from .timing import Neighbours, interleaved, timed

Row = dict[str, Any]
TIMED = ("torch", "torch_default", "stock", "symbolic")
"""Baselines that are compared to ours without packed weights."""


@dataclass(frozen=True)
class Bench:
    """State that all rows share: the options, the engine, its target, and the peaks of the
    machine."""

    options: Options
    tvm: Any
    target: Any
    peaks: Peaks
    by_default: TorchByDefault | None = None


class _Made:
    """Implementations of one operator, as far as they could be built.

    Attributes
    ----------
    runs, first, errors, builds : dict
        By name: a call, seconds of its first, its error, seconds of building it.
    notes : list of str
        Why there is none, or how it fails.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Callable[[], Any]] = {}
        self.first: dict[str, float] = {}
        self.errors: dict[str, float | None] = {}
        self.builds: dict[str, float] = {}
        self.notes: list[str] = []

    def add(self, name: str, make: Callable[[], Call], want: Tensor, tolerance: float) -> None:
        """Build one, call it once, and compare what it gives."""
        try:
            made = make()
            found, self.first[name] = timed(made.run)
            got = made.read(found)
            self.errors[name] = error = relative_error(got, want)
        except UnavailableError as reason:
            if name in BASELINES:
                self.notes.append(str(reason))
            return
        except Exception as failure:  # a baseline that fails is a result
            self.notes.append(f"{name} fails: {one_line(failure)}")
            return
        if error is None:
            self.notes.append(f"{name} has shape {tuple(got.shape)}, want {tuple(want.shape)}")
            return
        self.runs[name] = made.run
        if not error <= tolerance:
            self.notes.append(f"{name} is off by {error:.1e}")


def _makers(
    case: Case,
    kind: str,
    bench: Bench,
    tensors: Mapping[str, Tensor],
    builds: dict[str, float],
) -> dict[str, Callable[[], Call]]:
    """By name, what builds an implementation; TVM's say in `builds` how long they took."""
    options, tvm, target = bench.options, bench.tvm, bench.target

    def by_tvm(name: str, build: Callable[..., Built]) -> Call:
        built = build(case, kind, options.dtype, target)
        builds[name] = built.seconds
        return Call(built.bound(tensors), tvm.as_torch)

    def by_pytorch() -> Call:
        if not by_torch.states(case, kind):
            raise UnavailableError("torch cannot state this padding: it checks, but is not timed")
        return Call(by_torch.baseline(case, kind, tensors), lambda found: found)

    return {
        "ours": lambda: by_tvm("ours", tvm.build_ours),
        "prepacked": lambda: by_tvm("prepacked", partial(tvm.build_prepacked, weight=tensors["w"])),
        "torch": by_pytorch,
        "stock": lambda: by_tvm("stock", tvm.build_stock),
        "symbolic": lambda: by_tvm("symbolic", tvm.build_symbolic),
        **{
            name: partial(baselines.call, name, case, kind, tensors, options.threads)
            for name in PACKED_BASELINES
        },
    }


def measure(case: Case, kind: str, bench: Bench) -> Row:
    """Measure ours and the baselines.

    Returns
    -------
    dict
        Times in milliseconds, ``ratio_*`` baseline/ours, errors ``max |got - want| / max |want|``;
        None for what there is none of, for a reason that ``notes`` says.  ``incorrect`` says
        whether ours failed or its error is above ``tolerance``.  ``share_*`` are of the machine's
        peaks.
    """
    options, target = bench.options, bench.target
    dtype = options.dtype
    tensors = by_torch.operands(case, dtype)
    want = by_torch.reference(case, kind, tensors)
    tolerance = allowed(case.terms(kind), dtype)
    made = _Made()
    for name, make in _makers(case, kind, bench, tensors, made.builds).items():
        if name not in BASELINES or name in options.baselines:
            made.add(name, make, want, tolerance)
    runs, first, errors, builds = made.runs, made.first, made.errors, made.builds
    with Neighbours() as neighbours:
        times = interleaved(runs, first, options.time_budget)
    ms = {name: found.ms for name, found in times.items()}
    if "torch" in ms and bench.by_default:
        ms["torch_default"] = bench.by_default.ms(case, kind, dtype)
    ours, packed, error = ms.get("ours"), ms.get("prepacked"), errors.get("ours")
    found_errors = [error, errors.get("prepacked", 0.0), errors.get("symbolic", 0.0)]
    flops = 2 * case.products
    moved = sum(math.prod(case.shape(role)) for role in "xwy") * tensors["w"].element_size()
    return {
        "name": case.name,
        "kind": kind,
        "dtype": dtype,
        "op": case.op,
        "configuration": str(case),
        **{f"{name}_ms": ms.get(name) for name in TIMED},
        "ours_ms": ours,
        "ours_prepacked_ms": packed,
        **{f"ratio_{name}": ratio(ms.get(name), ours) for name in TIMED},
        "ratio_torch_prepacked": ratio(ms.get("torch"), packed),
        **against_packed(ms, packed),
        "torch_best_ms": times["torch"].best_ms if "torch" in times else None,
        "ours_best_ms": times["ours"].best_ms if "ours" in times else None,
        "max_rel_error": finite(error),
        "torch_error": finite(errors.get("torch")),
        "stock_error": finite(errors.get("stock")),
        "tolerance": tolerance,
        "incorrect": any(found is None or not found <= tolerance for found in found_errors),
        "gflops": flops / ours / 1e6 if ours else None,
        "share_of_peak": flops / ours / 1e6 / bench.peaks.gflops if ours else None,
        "share_of_bandwidth": moved / ours / 1e6 / bench.peaks.copy_gbs if ours else None,
        "build_s": builds.get("ours"),
        "workspace_bytes": workspace(case, kind, dtype, target, options.threads),
        "operand_bytes": moved,
        "stock_build_s": builds.get("stock"),
        "symbolic_build_s": builds.get("symbolic"),
        "others_cores": neighbours.cores,
        "reference": str(want.dtype).removeprefix("torch."),
        "notes": made.notes,
    }


def against_packed(ms: Mapping[str, float], packed: float | None) -> Row:
    """Compare baselines with constant weights to ours with packed ones, and name the best of each
    row.

    PyTorch counts among these, but there is no best without another one.
    """
    found = {name: ms[name] for name in ("torch", *PACKED_BASELINES) if name in ms}
    best = min(found, key=lambda name: found[name]) if set(found) - {"torch"} else None
    return {
        **{f"{name}_ms": ms.get(name) for name in PACKED_BASELINES},
        **{f"ratio_{name}": ratio(ms.get(name), packed) for name in PACKED_BASELINES},
        "best_rival": best,
        "ratio_best": None if best is None else ratio(found[best], packed),
    }


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """Return how many times as fast ours is."""
    return theirs / ours if theirs and ours else None


def workspace(case: Case, kind: str, dtype: str, target: Any, threads: int) -> int | None:
    """Return the bytes that our kernel allocates beside its operands; None where it has none to
    state.
    """
    geometry = case.geometry_of(kind)
    layouts = Layouts.canonical(geometry.rank)
    func = backend.build(Convolution.of(kind, geometry, layouts, case.n, (dtype,) * 3), target)
    return None if func is None else backend.workspace_bytes(func, threads)
