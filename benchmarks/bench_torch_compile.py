# SPDX-License-Identifier: Apache-2.0
"""Times ``torch.compile`` with the backend ``tvm_conv``, PyTorch eager and inductor.

::

    python benchmarks/bench_torch_compile.py --json out/bench_torch_compile.json \\
        --plot out/bench_torch_compile.png

Each model infers (``eval()``, no gradients, frozen weights too) and trains (forward, backward,
SGD with momentum).  Each of the two is measured in a process of its own with empty caches, where
all engines run in turns, a block of calls each, with a pause between blocks.  Medians are compared.
A second process with the caches of the first gives the time of a warm compile.  Each engine also
runs alone, where PyTorch's threads may spin, as they do by default.  The ratio takes the better of
both times of a baseline, and ours in turns; ``ratio_alone`` takes all of them alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmark.steps import WAITING, header, plot, prepare_environment

BLOCKS, BLOCK, PAUSE = 7, 0.4, 0.1
"""Blocks of calls, seconds of one, and seconds between two."""
SECONDS_ALONE = 1.5
MODES = ("inference", "training")
ENGINES = {
    "inference": ("ours", "frozen", "eager", "inductor"),
    "training": ("ours", "eager", "inductor"),
}
BASELINES = {"eager": "PyTorch eager", "inductor": "torch.compile, inductor"}
CACHES = {"TVM_CONV_CACHE": "tvm_conv", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
"""Variables that name folders of compiled code, and folders for them."""


def main() -> int:
    """Run the command line."""
    given = parser().parse_args()
    prepare_environment(given.threads)
    if given.child:
        return child_main(given)
    from trainable.sized import MODELS

    if given.list:
        print("\n".join(MODELS))
        return 0
    unknown = set(given.only or ()) - set(MODELS)
    if unknown:
        parser().error(f"--only: {', '.join(sorted(unknown))} must be of --list")
    is_there = given.json is not None and given.json.exists()
    rows = json.loads(given.json.read_text())["rows"] if is_there else {}
    for name in given.only or MODELS:
        for mode in given.modes:
            rows[f"{name}, {mode}"] = row = measured(name, mode, given.threads)
            print(line(f"{name}, {mode}", row), flush=True)
            if given.json:
                given.json.parent.mkdir(parents=True, exist_ok=True)
                found = {**header(given.threads), "rows": rows}
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    for mode in given.modes:
        ratios = [row["ratio"] for name, row in rows.items() if name.endswith(mode)]
        print(f"{mode}: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    if given.plot:
        plot(rows, BASELINES, "time of a call", given.plot)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models, in this order")
    made.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--list", action="store_true", help="print the names")
    made.add_argument("--json", type=Path, help="write the rows there; rows of other models stay")
    made.add_argument("--plot", type=Path, help="draw the ratios there")
    made.add_argument("--child", metavar="ENGINES", help=argparse.SUPPRESS)
    made.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--spin", action="store_true", help=argparse.SUPPRESS)
    return made


def measured(name: str, mode: str, threads: int) -> dict[str, Any]:
    """Return milliseconds of a call of each engine, seconds of the first, and the ratio.

    Ratios are the time of the better baseline over that of ours with default options.
    """
    engines = ENGINES[mode]
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder, place)) for name, place in CACHES.items()}
        row = child(name, mode, threads, engines, caches)
        row["cold_s"] = row.pop("first_s")
        warm = child(name, mode, threads, engines, caches, "--first")
        row["warm_s"] = warm["first_s"]
        row["alone_ms"] = {
            engine: child(name, mode, threads, [engine], caches, "--spin")["ms"][engine]
            for engine in ("ours", *BASELINES)
            if engine in row["ms"]
        }
    alone_ms = dict(row["alone_ms"])
    ours = alone_ms.pop("ours")
    row["ratio_alone"] = min(alone_ms.values()) / ours
    for engine, ms in alone_ms.items():
        row["ms"][engine] = min(row["ms"][engine], ms)
    row["ratio"] = min(row["ms"][engine] for engine in alone_ms) / row["ms"]["ours"]
    return row


def child(
    name: str, mode: str, threads: int, engines: Sequence[str], caches: dict[str, str], *more: str
) -> dict[str, Any]:
    """Return what a process of its own measures."""
    command = [sys.executable, __file__, "--child", ",".join(engines), "--only", name]
    done = subprocess.run(
        [*command, "--modes", mode, "--threads", str(threads), *more],
        env={**os.environ, **caches},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}, {mode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def child_main(given: argparse.Namespace) -> int:
    """Measure in this process, and print the result as the last line."""
    if given.spin:
        for name in WAITING:
            os.environ.pop(name, None)
    import torch

    from benchmark.timing import in_blocks, timed
    from trainable.sized import MODELS

    torch.set_num_threads(given.threads)
    runs, first, failed = {}, {}, {}
    for engine in given.child.split(","):
        run = call_of(engine, given.modes[0], MODELS[given.only[0]])
        try:
            first[engine] = round(timed(run)[1], 2)
        except Exception as error:  # inductor refuses some models
            if engine != "inductor":
                raise
            failed[engine] = str(error).strip().splitlines()[-1][:200]
            continue
        runs[engine] = run
    found: dict[str, Any] = {"first_s": first, "failed": failed}
    if given.spin:
        found["ms"] = {engine: alone(run) for engine, run in runs.items()}
    elif not given.first:
        found["ms"] = dict(zip(runs, in_blocks(list(runs.values()), BLOCKS, BLOCK, PAUSE)))
        found["in_pytorch"] = in_pytorch()
    print(json.dumps(found))
    return 0


def call_of(engine: str, mode: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that infers once, or trains for one step."""
    import torch

    module, batch = make()
    if mode == "inference":
        forward = compiled(engine, module.net.eval())

        def infer() -> Any:
            with torch.no_grad():
                return forward(*batch[:-1])

        return infer
    forward = compiled(engine, module)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, 0.9)

    def train() -> Any:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return train


def compiled(engine: str, module: Any) -> Any:
    """Return a module as an engine runs it."""
    import torch

    if engine == "eager":
        return module
    if engine == "inductor":
        return torch.compile(module, dynamic=False)
    import relax_ext.torch  # noqa: F401 (registers the backend)

    options = {"freeze": engine == "frozen"}
    return torch.compile(module, backend="tvm_conv", dynamic=False, options=options)


def in_pytorch() -> list[str]:
    """Return the operators that our graphs leave to PyTorch."""
    report = sys.modules["relax_ext.torch"].report()
    return sorted({name for graph in report.graphs for name in graph.in_pytorch})


def alone(run: Callable[[], Any]) -> float:
    """Return the median of calls in milliseconds."""
    run()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < SECONDS_ALONE or len(times) < 3:
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return median(times)


def line(name: str, row: dict[str, Any]) -> str:
    """Return a row of a table in Markdown: milliseconds, both ratios, seconds of the first."""
    ms, cold, warm = row["ms"], row["cold_s"], row["warm_s"]
    engines = [engine for engine in ("eager", "inductor", "ours", "frozen") if engine in ms]
    times = ", ".join(f"{engine} {ms[engine]:.1f}" for engine in engines)
    ratios = f"{row['ratio']:.2f} | {row['ratio_alone']:.2f}"
    first = f"cold {cold['ours']:.0f} s, warm {warm['ours']:.0f} s"
    left = f", in PyTorch: {' '.join(row['in_pytorch'])}" if row["in_pytorch"] else ""
    return f"| {name} | {times} | {ratios} | {first}{left} |"


if __name__ == "__main__":
    sys.exit(main())
