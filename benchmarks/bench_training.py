# SPDX-License-Identifier: Apache-2.0
"""Times training steps: ``relax_ext.training``, PyTorch eager and ``torch.compile``.

::

    python benchmarks/bench_training.py --json out/bench_training.json --plot out/bench_training.png

A step is forward, backward and the update by SGD with momentum, of one batch.  All run in turns, a
block of steps each, with a pause between blocks: the threads of one are asleep while another's run.
Medians are compared.  PyTorch also runs in a process of its own, where its threads may spin; the
better of the two counts.  ``--memory`` reads the peak of such processes.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmark.steps import WAITING, header, plot, prepare_environment

BLOCKS, BLOCK, PAUSE = 7, 0.4, 0.1
"""Blocks of steps, seconds of one, and seconds between two."""
ENGINES = ("ours", "eager", "compile")
STEPS_FOR_PEAK = 3
SECONDS_ALONE = 1.5
LABELS = {"eager": "PyTorch eager", "compile": "torch.compile"}


def main() -> int:
    """Run the command line."""
    given = parser().parse_args()
    if given.child:
        for name in WAITING:
            os.environ.pop(name, None)
    else:
        prepare_environment(given.threads)
    from trainable.losses import InBfloat16
    from trainable.sized import MODELS

    def in_bfloat16(make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            module, batch = make()
            return InBfloat16(module), batch

        return made

    models = {name: in_bfloat16(make) if given.bfloat16 else make for name, make in MODELS.items()}
    if given.list:
        print("\n".join(models))
        return 0
    unknown = set(given.only or ()) - set(models)
    if unknown:
        parser().error(f"--only: {', '.join(sorted(unknown))} must be of --list")
    if given.child:
        import torch

        torch.set_num_threads(given.threads)
        print(json.dumps(measured_alone(given.child, models[given.only[0]])))
        return 0
    rows = json.loads(given.json.read_text())["rows"] if exists(given.json) else {}
    for name in given.only or models:
        rows[name] = measured(name, models[name], given)
        print(line(name, rows[name]), flush=True)
        if given.json:
            given.json.parent.mkdir(parents=True, exist_ok=True)
            found = {**header(given.threads), "bfloat16": given.bfloat16, "rows": rows}
            given.json.write_text(json.dumps(found, indent=1) + "\n")
    ratios = [row["ratio"] for row in rows.values()]
    print(f"geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    if given.plot:
        plot(rows, LABELS, "time of a training step", given.plot)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models, in this order")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--list", action="store_true", help="print the names")
    made.add_argument("--memory", action="store_true", help="measure the peak of each too")
    made.add_argument("--bfloat16", action="store_true", help="by torch.autocast, all engines")
    made.add_argument("--json", type=Path, help="write the rows there; rows of other models stay")
    made.add_argument("--plot", type=Path, help="draw the ratios there")
    made.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    return made


def exists(path: Path | None) -> bool:
    """Return whether there is a file of an earlier run."""
    return path is not None and path.exists()


def measured(name: str, make: Callable[[], Any], given: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds of a step of each engine, and the better baseline over ours."""
    import torch

    from benchmark.timing import in_blocks

    torch.set_num_threads(given.threads)
    steps, seconds, failed = {}, {}, {}
    for engine in ENGINES:
        start = time.perf_counter()
        step = step_of(engine, make)
        try:
            step()
        except Exception as error:  # torch.compile refuses some models
            if engine != "compile":
                raise
            failed[engine] = str(error).strip().splitlines()[-1][:200]
            continue
        steps[engine], seconds[engine] = step, round(time.perf_counter() - start, 1)
    ms = dict(zip(steps, in_blocks(list(steps.values()), BLOCKS, BLOCK, PAUSE)))
    row: dict[str, Any] = {"ms": ms, "first_step_s": seconds, "failed": failed}
    # Threads that spin are faster in short layers, and slow down whatever runs beside them.
    alone = {one: child(one, name, given)["ms"] for one in ms if one != "ours"}
    row["alone_ms"] = alone
    for one, its in alone.items():
        ms[one] = min(ms[one], its)
    row["ratio"] = min(ms[one] for one in alone) / ms["ours"]
    if given.memory:
        found = {one: child(one, name, given) for one in steps}
        row["peak_mib"] = {one: sizes["peak_mib"] for one, sizes in found.items()}
        row["step_mib"] = {one: found[one]["step_mib"] for one in ("ours", "eager")}
    return row


def step_of(engine: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that trains a module for one step."""
    import torch

    module, batch = make()
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, 0.9)
    if engine == "ours":
        import relax_ext

        step = relax_ext.training(module, batch, optimizer)
        return lambda: step(*batch)
    forward = module
    if engine == "compile":
        # Models of one class share what was compiled: another shape would make sizes symbolic.
        torch._dynamo.reset()
        forward = torch.compile(module, dynamic=False)

    def step_of_torch() -> Any:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step_of_torch


def child(engine: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return what a process of its own measures."""
    command = [sys.executable, __file__, "--child", engine, "--only", name]
    command += ["--threads", str(given.threads)] + ["--bfloat16"] * given.bfloat16
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured_alone(engine: str, make: Callable[[], Any]) -> dict[str, float]:
    """Return the peak of a process that trains, and milliseconds of a step.

    Compiling is over by then; Linux forgets the peak before on request.  Of the peak, a step takes
    what was not resident before the first: gradients, the optimizer's state, activations.
    ``torch.compile`` compiles within that one, so that this says nothing of its step.
    """
    step = step_of(engine, make)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    ready = resident("VmRSS")
    step()
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS_FOR_PEAK):
        step()
    peak = round(resident("VmHWM") / 1024, 1)
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < SECONDS_ALONE:
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return {"peak_mib": peak, "step_mib": round(peak - ready / 1024, 1), "ms": median(times)}


def resident(field: str) -> int:
    """Return a size of this process in KiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(one.split()[1] for one in text.splitlines() if one.startswith(field)))


def line(name: str, row: dict[str, Any]) -> str:
    """Return a row of a table in Markdown."""
    ms = row["ms"]
    shown = {engine: f"{ms[engine]:.1f}" if engine in ms else "fails" for engine in ENGINES}
    numbers = " | ".join(shown[engine] for engine in ("eager", "compile", "ours"))
    return f"| {name} | {numbers} | {row['ratio']:.2f} |"


if __name__ == "__main__":
    sys.exit(main())
