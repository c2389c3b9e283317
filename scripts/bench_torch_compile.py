# SPDX-License-Identifier: Apache-2.0
"""Times ``torch.compile`` with the backend ``tvm_conv``, PyTorch eager and inductor.

::

    python scripts/bench_torch_compile.py --json out/bench_torch_compile.json \\
        --plot out/bench_torch_compile.png

Each model infers (``eval()``, no gradients) and trains (forward, backward, SGD with momentum).
Each engine runs in a process of its own, with the defaults that it has there, in turns with the
others, a block of calls each.  Medians are compared.  ``ours`` has no options; ``frozen`` is ours
with ``freeze``, and inductor has ``freezing`` where it infers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from support import steps
from support.steps import Row
from support.workers import Worker, WorkerError, empty_caches, in_turns, serve

ENGINES = {
    "inference": ("ours", "frozen", "eager", "inductor"),
    "training": ("ours", "eager", "inductor"),
}
BASELINES = {"eager": "PyTorch eager", "inductor": "torch.compile, inductor"}


def main() -> int:
    """Run the command line."""
    given = parser().parse_args()
    steps.use_threads(given.threads)
    models: dict[str, Callable[[], Any]] = import_module(f"support.trainable.{given.models}").MODELS
    if given.worker:
        work(given.worker, given.modes[0], models[given.only[0]], given.threads)
        return 0

    def measure(name: str) -> dict[str, Row]:
        command = [sys.executable, __file__, "--models", given.models, "--only", name]
        command += ["--threads", str(given.threads)]
        return {
            f"{name}, {mode}": measured([*command, "--modes", mode], mode) for mode in given.modes
        }

    return steps.run(given, models, measure, BASELINES, "time of a call", groups=given.modes)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = steps.parser(__doc__)
    modes = tuple(ENGINES)
    made.add_argument("--models", choices=("sized", "attention"), default="sized")
    made.add_argument("--modes", nargs="+", choices=modes, default=modes)
    return made


def measured(command: list[str], mode: str) -> Row:
    """Return milliseconds of a call of each engine."""
    row: Row = {"failed": {}}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = {}
        for engine in ENGINES[mode]:
            try:
                worker = Worker([*command, "--worker", engine], empty_caches(folder))
                workers[engine] = stack.enter_context(worker)
            except WorkerError as error:  # inductor refuses some models
                if engine not in BASELINES:
                    raise
                row["failed"][engine] = str(error)
        row["in_pytorch"] = workers["ours"].ready["in_pytorch"]
        row["ms"] = in_turns(workers)
    return row


def work(engine: str, mode: str, make: Callable[[], Any], threads: int) -> None:
    """Make calls in this process."""
    import torch

    torch.set_num_threads(threads)
    run = call_of(engine, mode, make)
    run()
    serve(run, {"in_pytorch": in_pytorch()})


def call_of(engine: str, mode: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that infers once, or trains for one step."""
    import torch

    module, batch = make()
    if mode == "inference":
        forward = compiled(engine, module.net.eval(), mode)

        def infer() -> Any:
            with torch.no_grad():
                return forward(*batch[:-1])

        return infer
    forward = compiled(engine, module, mode)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, 0.9)

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
        options = {"freezing": True} if mode == "inference" else None
        return torch.compile(module, dynamic=False, options=options)
    import relax_ext.torch  # noqa: F401 (registers the backend)

    options = {"freeze": engine == "frozen"}
    return torch.compile(module, backend="tvm_conv", dynamic=False, options=options)


def in_pytorch() -> list[str]:
    """Return the operators that our graphs leave to PyTorch."""
    backend = sys.modules.get("relax_ext.torch")
    graphs = backend.report().graphs if backend else ()
    return sorted({name for graph in graphs for name in graph.in_pytorch})


if __name__ == "__main__":
    sys.exit(main())
