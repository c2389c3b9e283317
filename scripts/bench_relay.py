# SPDX-License-Identifier: Apache-2.0
"""Times decoders by ``relay.build`` with relay_ext, by stock Relay and by ``relax_ext.pipeline``.

::

    python scripts/bench_relay.py --json out/bench_relay.json --plot out/bench_relay.png

Relay and Relax are two TVMs, so each engine runs in a process of its own.  The processes run in
turns, a block of runs each, with a pause between blocks.  Medians of all runs are compared.  Each
result is compared with PyTorch in float64 first.  Builds are timed with an empty cache, and again
in a second process.  ``make env env-relay`` installs both.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from support import steps
from support.steps import Row
from support.workers import empty_caches, in_turns, serve, started

ROOT = Path(__file__).parents[1]
ENGINES = {"ours": ".venv-relay", "stock": ".venv-relay", "relax": ".venv"}
"""By engine, the environment that has its TVM."""
TOLERANCE = 1e-4
"""Maximum error, relative to the largest value of a result; models have up to thirty layers of
float32."""


def main() -> int:
    """Run the command line."""
    sys.path.insert(0, str(ROOT / "examples"))
    given = steps.parser(__doc__).parse_args()
    steps.use_threads(given.threads)
    os.environ["TOPHUB_LOCATION"] = "NONE"
    import models

    if given.worker:
        work(given.worker, given.only[0])
        return 0

    def measure(name: str) -> dict[str, Row]:
        return {name: measured(name, given.threads)}

    labels = {"stock": "stock Relay"}
    others = {"relax": "relax_ext.pipeline"}
    return steps.run(given, models.DECODERS, measure, labels, "time of a run", others=others)


def measured(name: str, threads: int) -> Row:
    """Return the milliseconds of a model by each engine, its error and its seconds to build."""
    commands = {
        engine: steps.command(
            __file__, threads, engine, name, python=str(ROOT / environment / "bin" / "python")
        )
        for engine, environment in ENGINES.items()
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = started(stack, commands, empty_caches(folder), required=ENGINES, twice=True)
        warm = {engine: worker.ready for engine, worker in found.workers.items()}
        return {
            "build_s": {engine: ready["build_s"] for engine, ready in found.cold.items()},
            "second_build_s": {engine: ready["build_s"] for engine, ready in warm.items()},
            "error": {engine: ready["error"] for engine, ready in warm.items()},
            "ms": in_turns(found.workers),
        }


def work(engine: str, name: str) -> None:
    """Build a model, compare its result, and run it in this process."""
    import models
    import torch

    model, x = models.make(name)
    start = time.process_time()
    run, result = by_relax(model, x) if engine == "relax" else by_relay(model, x, engine == "stock")
    seconds = round(time.process_time() - start, 2)
    with torch.no_grad():
        exact = model.double()(x.double())
    error = float((result.double() - exact).abs().max() / exact.abs().max())
    if not error < TOLERANCE:
        raise SystemExit(f"{name}: {engine} is {error:.1e} off")
    serve(run, {"error": error, "build_s": seconds})


def by_relay(model: Any, x: Any, is_stock: bool) -> tuple[Callable[[], Any], Any]:
    """Return a run by the graph executor, and its result."""
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
    from tvm.relax.frontend.torch import from_exported_program

    from support import by_relax as relax

    mod = from_exported_program(torch.export.export(model, (x,)), unwrap_unit_return_tuple=True)
    function, data = relax.machine(mod, relax.host_target())["main"], relax.array(x)
    return lambda: function(data), relax.as_torch(function(data))


if __name__ == "__main__":
    sys.exit(main())
