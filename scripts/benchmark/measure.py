# SPDX-License-Identifier: Apache-2.0
"""One row of the benchmark: one face of one case, built, checked and timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from topi_ext.dtypes import accumulator

from . import by_torch
from .arguments import Options
from .cases import Case
from .engines import Built, UnavailableError
from .timing import Neighbours, interleaved, timed

Row = dict[str, Any]


def measure(case: Case, face: str, options: Options, tvm: Any, target: Any) -> Row:
    """Measure ours and the rivals, ours and stock by the engine `tvm`.

    Returns
    -------
    dict
        Times in milliseconds, ``ratio_*`` rival/ours, errors ``max |got - want| / max |want|``;
        None for what there is none of, for a reason that ``notes`` says.  ``wrong`` says whether
        ours failed or its error is above ``tolerance``.
    """
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
        "torch": lambda: by_torch.rival(case, face, tensors),
        "stock": lambda: tvm_run(tvm.build_stock),
    }
    tolerance = allowed(case.terms(face), dtype)
    for name, make in makers.items():
        if name != "ours" and name not in options.rivals:
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
    ours, error = ms.get("ours"), errors.get("ours")
    return {
        "name": case.name,
        "face": face,
        "dtype": dtype,
        "op": case.op,
        "configuration": str(case),
        "torch_ms": ms.get("torch"),
        "ours_ms": ours,
        "stock_ms": ms.get("stock"),
        "ratio_torch": ms["torch"] / ours if ours and "torch" in ms else None,
        "ratio_stock": ms["stock"] / ours if ours and "stock" in ms else None,
        "torch_best_ms": times["torch"].best_ms if "torch" in times else None,
        "ours_best_ms": times["ours"].best_ms if "ours" in times else None,
        "max_rel_error": finite(error),
        "torch_error": finite(errors.get("torch")),
        "stock_error": finite(errors.get("stock")),
        "tolerance": tolerance,
        "wrong": error is None or not error <= tolerance,
        "gflops": 2 * case.products / ours / 1e6 if ours else None,
        "build_s": builds.get("ours"),
        "stock_build_s": builds.get("stock"),
        "others_cores": neighbours.cores,
        "reference": str(want.dtype).removeprefix("torch."),
        "notes": notes,
    }


def relative_error(got: Tensor, want: Tensor) -> float | None:
    """``max |got - want| / max |want|``; None where the shapes differ."""
    if got.shape != want.shape:
        return None
    scale = want.abs().max().item() or 1.0
    return (got.to(want.dtype) - want).abs().max().item() / scale


def allowed(terms: int, dtype: str) -> float:
    """The error that rounding explains: of the result, and of a sum of `terms` products.

    Independent roundings of the sum add up like ``sqrt(terms)``; one missing product of normally
    distributed numbers stands out as about ``1 / (4.5 sqrt(terms))``.
    """
    accumulating = getattr(torch, accumulator("bench", dtype, dtype, dtype))
    eps = torch.finfo(getattr(torch, dtype)).eps
    return 2 * eps + 2 * math.sqrt(terms) * torch.finfo(accumulating).eps


def finite(value: float | None) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if value is not None and math.isfinite(value) else None


def one_line(error: BaseException) -> str:
    """The last line of a message that says something: TVM puts its traceback first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160]
