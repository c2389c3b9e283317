# SPDX-License-Identifier: Apache-2.0
"""Times decoders by ``relay.build`` with relay_ext, by stock Relay and by ``relax_ext.pipeline``.

::

    python benchmarks/bench_relay.py --json out/bench_relay.json --plot out/bench_relay.png

Relay and Relax are two TVMs, so each engine runs in a process of its own.  The processes run in
turns, a block of runs each, with a pause between blocks.  Medians of all runs are compared.  Each
result is compared with PyTorch in float64 first.  ``make env env-relay`` installs both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).parents[1]
ENGINES = {"relay": ".venv-relay", "stock": ".venv-relay", "relax": ".venv"}
"""By engine, the environment that has its TVM."""
BLOCKS, BLOCK, PAUSE = 7, 0.3, 0.1
"""Blocks of runs, seconds of one, and seconds between two."""
TOLERANCE = 1e-4
"""Of the largest value of a result; models have up to thirty layers of float32."""


def main() -> int:
    """Run the command line."""
    sys.path.insert(0, str(ROOT / "examples"))
    given = parser().parse_args()
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(given.threads)
    os.environ.update({"TVM_BIND_THREADS": "0", "TOPHUB_LOCATION": "NONE"})
    if given.child:
        serve(given.child, given.only[0])
        return 0
    import models

    from benchmark.environment import commit, processor_name

    header = {"commit": commit(), "cpu": processor_name(), "threads": given.threads}
    rows = {}
    for name in given.only or models.DECODERS:
        rows[name] = measured(name)
        print(line(name, rows[name]), flush=True)
        if given.json:
            given.json.parent.mkdir(parents=True, exist_ok=True)
            found = {"date": time.strftime("%Y-%m-%d"), **header, "rows": rows}
            given.json.write_text(json.dumps(found, indent=1) + "\n")
    for engine in ("stock", "relax"):
        ratios = [row["ms"][engine] / row["ms"]["relay"] for row in rows.values()]
        print(f"{engine} over relay: geometric mean {geometric_mean(ratios):.2f}")
    if given.plot:
        plot(rows, given.plot)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models, in this order")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--json", type=Path, help="write the rows there")
    made.add_argument("--plot", type=Path, help="draw the ratios there")
    made.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    return made


def measured(name: str) -> dict[str, Any]:
    """Return the milliseconds of a model by each engine, its error and its seconds to build."""
    ready, times = {}, {engine: [] for engine in ENGINES}
    with ExitStack() as stack:
        children = {}
        for engine, environment in ENGINES.items():
            python = ROOT / environment / "bin" / "python"
            command = [str(python), "-W", "ignore", __file__, "--child", engine, "--only", name]
            command += ["--threads", os.environ["TVM_NUM_THREADS"]]
            pipe = subprocess.PIPE
            child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            children[engine] = stack.enter_context(child)
            ready[engine] = json.loads(child.stdout.readline())
        for _ in range(BLOCKS):
            for engine, child in children.items():
                time.sleep(PAUSE)
                child.stdin.write("run\n")
                child.stdin.flush()
                times[engine] += json.loads(child.stdout.readline())
        for child in children.values():
            child.stdin.close()
    return {
        "ms": {engine: median(taken) for engine, taken in times.items()},
        **{key: {engine: ready[engine][key] for engine in ENGINES} for key in ("error", "build_s")},
    }


def serve(engine: str, name: str) -> None:
    """Build a model, then time a block of runs for each line that is read."""
    import models
    import torch

    model, x = models.make(name)
    start = time.process_time()
    run, result = by_relax(model, x) if engine == "relax" else by_relay(model, x, engine == "stock")
    seconds = time.process_time() - start
    with torch.no_grad():
        exact = model.double()(x.double())
    error = float((result.double() - exact).abs().max() / exact.abs().max())
    if not error < TOLERANCE:
        raise SystemExit(f"{name}: {engine} is {error:.1e} off")
    print(json.dumps({"error": error, "build_s": seconds}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(block(run)), flush=True)


def block(run: Callable[[], Any]) -> list[float]:
    """Return the milliseconds of the runs of a block, the first left out."""
    from benchmark.timing import timed

    run()
    taken, start = [], time.perf_counter()
    while len(taken) < 2 or time.perf_counter() - start < BLOCK:
        taken.append(1e3 * timed(run)[1])
    return taken


def by_relay(model: Any, x: Any, is_stock: bool) -> tuple[Callable[[], Any], Any]:
    """Return a run by the graph executor, and its result."""
    from contextlib import nullcontext

    import torch
    import tvm
    from tvm import relay
    from tvm.contrib import graph_executor

    import relay_ext

    traced = torch.jit.trace(model, x)
    with relay_ext.stock() if is_stock else nullcontext():
        mod, params = relay.frontend.from_pytorch(traced, [("x", tuple(x.shape))])
        with tvm.transform.PassContext(opt_level=3):
            library = relay.build(mod, relay_ext.host_target(), params=params)
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.run(x=x.numpy())
    return executor.run, torch.from_numpy(executor.get_output(0).numpy())


def by_relax(model: Any, x: Any) -> tuple[Callable[[], Any], Any]:
    """Return a run by Relax's virtual machine, and its result."""
    import torch
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    import relax_ext

    mod = from_exported_program(torch.export.export(model, (x,)), unwrap_unit_return_tuple=True)
    target = relax_ext.host_target()
    executable = tvm.compile(mod, target, relax_pipeline=relax_ext.pipeline(target))
    function, data = (
        relax.VirtualMachine(executable, tvm.cpu())["main"],
        tvm.runtime.tensor(x.numpy()),
    )
    return lambda: function(data), torch.from_numpy(function(data).numpy())


def line(name: str, row: dict[str, Any]) -> str:
    """Return the row of a model as text."""
    times = ", ".join(f"{engine} {value:.2f} ms" for engine, value in row["ms"].items())
    return f"{name}: {times}"


def plot(rows: dict[str, Any], path: Path) -> None:
    """Draw the time of the other engines over that of Relay with relay_ext."""
    import matplotlib as mpl

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for offset, engine, label in (
        (-0.2, "stock", "stock Relay"),
        (0.2, "relax", "relax_ext.pipeline"),
    ):
        ratios = [row["ms"][engine] / row["ms"]["relay"] for row in rows.values()]
        axes.barh([place + offset for place in places], ratios, 0.38, label=label)
    axes.set_yticks(list(places), list(rows))
    axes.invert_yaxis()
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("time of a run, over relay.build with relay_ext")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
