# SPDX-License-Identifier: Apache-2.0
"""Times ``torch.compile`` with the backend ``tvm_conv``, ``relax_ext.training`` and PyTorch.

::

    python scripts/bench_torch_compile.py --json out/bench_torch_compile.json \\
        --step-json out/bench_training.json --plot out/bench_torch_compile.png

Modes of each model are

``inference``
    ``eval()``, no gradients;
``training``
    forward, backward, SGD with momentum, of one batch;
``step``
    the same by ``relax_ext.training``.

Baselines are PyTorch eager and inductor.  Each engine runs in a process of its own, with the
defaults that it has there, in turns with the others, a block of calls each.  Medians are compared.
``ours`` has no options; ``frozen`` is ours with ``freeze``, and inductor has ``freezing`` where it
infers.  Rows of ``training`` and ``step`` are of the same turns; those of ``step`` have a file
of their own, with peaks of memory of the processes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from support import steps
from support.steps import Row
from support.workers import empty_caches, in_turns, serve, started

MODES = ("inference", "training", "step")
BASELINES = {"eager": "PyTorch eager", "inductor": "torch.compile, inductor"}
OURS = {"inference": ("ours", "frozen"), "training": ("ours",), "step": ("step",)}
"""Engines of this package for each mode."""
IN_STEP = {"step": "ours", "eager": "eager", "inductor": "compile"}
"""Names of engines in the rows of ``step``."""
STEPS_FOR_PEAK = 3


def main() -> int:
    """Run the command line."""
    given = parser().parse_args()
    steps.use_threads(given.threads)
    models: dict[str, Callable[[], Any]] = import_module(f"support.trainable.{given.models}").MODELS
    if given.worker:
        work(given, *models[given.only[0]]())
        return 0
    baselines = {**BASELINES, "compile": BASELINES["inductor"]}
    files = dict.fromkeys(models, given.step_json) if given.step_json else {}
    groups = [mode for mode in given.modes if mode != "step"] or [""]
    measure = partial(measured, given)
    return steps.run(
        given, models, measure, baselines, "time of a call", groups=groups, files=files
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = steps.parser(__doc__)
    made.add_argument("--models", choices=("sized", "attention"), default="sized")
    made.add_argument("--modes", nargs="+", choices=MODES, default=MODES[:2])
    made.add_argument("--step-json", type=Path, help="write the rows of `step` there")
    made.add_argument("--bfloat16", action="store_true", help="train by torch.autocast")
    return made


def measured(given: argparse.Namespace, name: str) -> dict[str, Row]:
    """Return the rows of a model."""
    rows: dict[str, Row] = {}
    if "inference" in given.modes:
        rows[f"{name}, inference"], _ = turns(given, name, "inference", OURS["inference"])
    trains = [mode for mode in given.modes if mode != "inference"]
    if not trains:
        return rows
    ours = [engine for mode in trains for engine in OURS[mode]]
    row, ready = turns(given, name, "training", ours)
    row["bfloat16"] = given.bfloat16
    if "training" in trains:
        kept = {key: without(row[key], "step") for key in ("ms", "failed")}
        rows[f"{name}, training"] = {**row, **kept}
    if "step" in trains:
        kept = {key: named(row[key]) for key in ("ms", "failed")}
        for key in ("first_step_s", "peak_mib", "step_mib"):
            kept[key] = named({engine: told[key] for engine, told in ready.items()})
        rows[name] = {"bfloat16": given.bfloat16, **kept}
    return rows


def without(found: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """Return what there is of other engines."""
    return {name: value for name, value in found.items() if name != engine}


def named(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rows of ``step`` have, by its names of engines."""
    return {IN_STEP[engine]: found[engine] for engine in IN_STEP if engine in found}


def turns(
    given: argparse.Namespace, name: str, mode: str, ours: Any
) -> tuple[Row, dict[str, dict[str, Any]]]:
    """Return the row of a mode, and what the worker of each engine told."""
    more = ["--models", given.models, "--modes", mode, *["--bfloat16"] * given.bfloat16]
    commands = {
        engine: steps.command(__file__, given.threads, engine, name, *more)
        for engine in (*ours, *BASELINES)
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        # inductor refuses some models
        workers, failed, _ = started(stack, commands, empty_caches(folder), required=ours)
        ready = {engine: worker.ready for engine, worker in workers.items()}
        row: Row = {"failed": failed}
        if "ours" in ready:
            row["in_pytorch"] = ready["ours"]["in_pytorch"]
        row["ms"] = in_turns(workers)
    return row, ready


def work(given: argparse.Namespace, module: Any, batch: Any) -> None:
    """Make calls in this process.

    Compiling is over when the peak of memory is read; Linux forgets the peak before on request.  Of
    the peak, a call takes what was not resident before the first: gradients, the optimizer's state,
    activations.  ``torch.compile`` compiles within that one, so that this says nothing of its call.
    """
    import torch

    torch.set_num_threads(given.threads)
    start = time.perf_counter()
    if given.bfloat16 and given.modes != ["inference"]:
        from support.trainable.losses import InBfloat16

        module = InBfloat16(module)
    call = call_of(given.worker, given.modes[0], module, batch)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    call()
    first = round(time.perf_counter() - start, 1)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS_FOR_PEAK):
        call()
    peak = resident("VmHWM")
    told = {"first_step_s": first, "peak_mib": peak, "step_mib": round(peak - before, 1)}
    serve(call, {**told, "in_pytorch": in_pytorch()})


def call_of(engine: str, mode: str, module: Any, batch: Any) -> Callable[[], Any]:
    """Return a call that infers once, or trains for one step."""
    import torch

    if mode == "inference":
        forward = compiled(engine, module.net.eval(), mode)

        def infer() -> Any:
            with torch.no_grad():
                return forward(*batch[:-1])

        return infer
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, 0.9)
    if engine == "step":
        import relax_ext

        step = relax_ext.training(module, batch, optimizer)
        return lambda: step(*batch)
    forward = compiled(engine, module, mode)

    def train() -> Any:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return train


def compiled(engine: str, module: Any, mode: str) -> Any:
    """Return a module as an engine runs it."""
    import torch

    if engine == "eager":
        return module
    if engine == "inductor":
        options: Any = {"freezing": True} if mode == "inference" else None
        return torch.compile(module, dynamic=False, options=options)
    import relax_ext.torch  # noqa: F401 (registers the backend)

    options = {"freeze": engine == "frozen"}
    return torch.compile(module, backend="tvm_conv", dynamic=False, options=options)


def in_pytorch() -> list[str]:
    """Return the operators that our graphs leave to PyTorch."""
    backend = sys.modules.get("relax_ext.torch")
    graphs = backend.report().graphs if backend else ()
    return sorted({name for graph in graphs for name in graph.in_pytorch})


def resident(field: str) -> float:
    """Return a size of this process in MiB."""
    text = Path("/proc/self/status").read_text()
    kib = next(one.split()[1] for one in text.splitlines() if one.startswith(field))
    return round(int(kib) / 1024, 1)


if __name__ == "__main__":
    sys.exit(main())
