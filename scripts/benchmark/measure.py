# SPDX-License-Identifier: Apache-2.0
"""One row of the benchmark: one face of one case, built, checked and timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from topi_ext import backend
from topi_ext.layout import Layouts

from . import by_torch
from .arguments import RIVALS, Options
from .cases import Case
from .default_malloc import TorchByDefault
from .engines import Built, UnavailableError
from .errors import allowed, finite, one_line, relative_error
from .peaks import Peaks
from .timing import Neighbours, interleaved, timed

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What all rows share: the choices, the engine, its target, and what the machine can do."""

    options: Options
    tvm: Any
    target: Any
    peaks: Peaks
    by_default: TorchByDefault | None = None


def measure(case: Case, face: str, bench: Bench) -> Row:
    """Measure ours and the rivals.

    Returns
    -------
    dict
        Times in milliseconds, ``ratio_*`` rival/ours, errors ``max |got - want| / max |want|``;
        None for what there is none of, for a reason that ``notes`` says.  ``wrong`` says whether
        ours failed or its error is above ``tolerance``.  ``share_*`` are of the machine's peaks.
    """
    options, tvm, target = bench.options, bench.tvm, bench.target
    dtype = options.dtype
    tensors = by_torch.operands(case, dtype)
    want = by_torch.reference(case, face, tensors)
    notes: list[str] = []
    runs: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    builds: dict[str, float] = {}

    def tvm_run(build: Callable[..., Built]) -> Callable[[], Any]:
        built = build(case, face, dtype, target)
        builds[name] = built.seconds
        return built.bound(tensors)

    makers = {
        "ours": lambda: tvm_run(tvm.build_ours),
        "prepacked": lambda: tvm_run(partial(tvm.build_prepacked, weight=tensors["w"])),
        "torch": lambda: by_torch.rival(case, face, tensors),
        "stock": lambda: tvm_run(tvm.build_stock),
        "symbolic": lambda: tvm_run(tvm.build_symbolic),
    }
    tolerance = allowed(case.terms(face), dtype)
    for name, make in makers.items():
        if name in RIVALS and name not in options.rivals:
            continue
        if name == "torch" and not by_torch.states(case, face):
            notes.append("torch cannot state this padding: it checks, but is not timed")
            continue
        try:
            run = make()
            found, first[name] = timed(run)
            got = found if name == "torch" else tvm.as_torch(found)
            errors[name] = error = relative_error(got, want)
        except UnavailableError as reason:
            if name in RIVALS:
                notes.append(str(reason))
        except Exception as failure:  # a rival that fails is a result
            notes.append(f"{name} fails: {one_line(failure)}")
        else:
            if error is None:
                notes.append(f"{name} has shape {tuple(got.shape)}, want {tuple(want.shape)}")
                continue
            runs[name] = run
            if not error <= tolerance:
                notes.append(f"{name} is off by {error:.1e}")

    with Neighbours() as neighbours:
        times = interleaved(runs, first, options.time_budget)
    ms = {name: found.ms for name, found in times.items()}
    if "torch" in ms and bench.by_default:
        ms["torch_default"] = bench.by_default.ms(case, face, dtype)
    ours, error = ms.get("ours"), errors.get("ours")
    found_errors = [error, errors.get("prepacked", 0.0), errors.get("symbolic", 0.0)]
    flops = 2 * case.products
    moved = sum(math.prod(case.shape(role)) for role in "xwy") * tensors["w"].element_size()
    return {
        "name": case.name,
        "face": face,
        "dtype": dtype,
        "op": case.op,
        "configuration": str(case),
        "torch_ms": ms.get("torch"),
        "torch_default_ms": ms.get("torch_default"),
        "ours_ms": ours,
        "ours_prepacked_ms": ms.get("prepacked"),
        "stock_ms": ms.get("stock"),
        "symbolic_ms": ms.get("symbolic"),
        "ratio_torch": ratio(ms.get("torch"), ours),
        "ratio_torch_prepacked": ratio(ms.get("torch"), ms.get("prepacked")),
        "ratio_torch_default": ratio(ms.get("torch_default"), ours),
        "ratio_stock": ratio(ms.get("stock"), ours),
        "ratio_symbolic": ratio(ms.get("symbolic"), ours),
        "torch_best_ms": times["torch"].best_ms if "torch" in times else None,
        "ours_best_ms": times["ours"].best_ms if "ours" in times else None,
        "max_rel_error": finite(error),
        "torch_error": finite(errors.get("torch")),
        "stock_error": finite(errors.get("stock")),
        "tolerance": tolerance,
        "wrong": any(found is None or not found <= tolerance for found in found_errors),
        "gflops": flops / ours / 1e6 if ours else None,
        "share_of_peak": flops / ours / 1e6 / bench.peaks.gflops if ours else None,
        "share_of_bandwidth": moved / ours / 1e6 / bench.peaks.copy_gbs if ours else None,
        "build_s": builds.get("ours"),
        "workspace_bytes": workspace(case, face, dtype, target, options.threads),
        "operand_bytes": moved,
        "stock_build_s": builds.get("stock"),
        "symbolic_build_s": builds.get("symbolic"),
        "others_cores": neighbours.cores,
        "reference": str(want.dtype).removeprefix("torch."),
        "notes": notes,
    }


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """How many times as fast ours is."""
    return theirs / ours if theirs and ours else None


def workspace(case: Case, face: str, dtype: str, target: Any, threads: int) -> int | None:
    """Bytes that our kernel allocates beside its operands; None where it has none to state."""
    geometry = case.geometry_of(face)
    layouts = Layouts.canonical(geometry.rank)
    func = backend.prim_func(face, geometry, layouts, case.n, (dtype,) * 3, target)
    return None if func is None else backend.workspace_bytes(func, threads)
