# SPDX-License-Identifier: Apache-2.0
"""Times whole models on a GPU, by ``relax_ext.pipeline`` and by PyTorch.

::

    python scripts/bench_gpu_models.py --prepare out/models_sm_90 --arch sm_90     # no GPU
    python scripts/bench_gpu_models.py --bundle out/models_sm_90 --json out/gpu_models.json

``--prepare`` needs TVM 0.27 and nvcc.  It compiles each model ahead, with and without a CUDA graph,
and copies TVM's runtime, so ``--bundle`` needs a GPU and a PyTorch with CUDA 13 only.  Both may be
called again, and continue.

PyTorch runs with ``cudnn.benchmark`` and without TF32: eager, with channels last, both also in a
CUDA graph, and by ``torch.compile``.  Results are compared with PyTorch in float64.  Times are
medians of milliseconds, with launches and Python, and with a wait for the results after each block
of calls.  A process that breaks costs one row.  Each row is written at once as a line of
``OUT.jsonl``.

Exit status: 0 if all results of this package are correct, 1 if one is not, 2 if the command line
is, or if the GPU or PyTorch with CUDA is missing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))  # a checkout that is not installed

from support.arguments import count, exit_with
from support.environment import commit
from support.gpu.model_bundle import CPU, RUNTIME, Bundle, Model, add_all
from support.gpu.record import Record
from support.gpu.session import arch_of, header, torch_of_cuda
from support.output import write_json
from support.processes import TaskError, Workers

TASK_SECONDS = 120.0
"""Maximum seconds of a row, which ``torch.compile`` needs."""
DTYPES = ("float32", "float16")
PROTOCOL = "wall clock, blocks of calls with a wait at the end, median of 9 blocks; no TF32"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = made.add_argument
    to_do = made.add_mutually_exclusive_group(required=True)
    to_do.add_argument("--prepare", type=Path, metavar="FOLDER", help="compile into this folder")
    bundle = "run the models of this folder"
    to_do.add_argument("--bundle", type=Path, metavar="FOLDER", help=bundle)
    add("--arch", default="sm_90", help="sm_NN, or llvm for a trial on this CPU (default: sm_90)")
    add("--python", default="3.12", help="version on the machine with the GPU (default: 3.12)")
    add("--only", nargs="+", metavar="NAME", help="only these models")
    add("--batch", type=count, nargs="+", default=[1, 16], metavar="N", help="default: 1 16")
    add("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="both if absent")
    jobs = os.cpu_count() or 1
    add("--jobs", type=count, default=jobs, metavar="N", help="compile so many at once")
    add("--seconds", type=float, default=math.inf, help="begin no row after so many")
    add("--json", type=Path, metavar="OUT", help="write rows and summary here")
    return made


def wanted(given: argparse.Namespace) -> list[Model]:
    """Return the models, smallest first; raise ValueError for an unknown name."""
    from support.gpu.models import MODELS

    names = given.only or list(MODELS)
    for name in names:
        if name not in MODELS:
            raise ValueError(f"--only {name!r} must be one of {', '.join(MODELS)}")
    return [
        Model(name, batch, dtype)
        for name in names
        for batch in given.batch
        for dtype in given.dtypes
    ]


def prepare(given: argparse.Namespace) -> int:
    """Compile all models; those that an earlier call compiled are kept."""
    from support.gpu import runtime

    about = {"arch": given.arch, "commit": commit(), "python": given.python}
    bundle = Bundle(given.prepare, about)
    runtime.copy_into(bundle.folder / RUNTIME, given.python)
    missing = [one for one in wanted(given) if one not in bundle]
    failures = 0
    for said in add_all(bundle, missing, given.jobs):
        failures += ": " in said
        print(said, file=sys.stderr, flush=True)
    print(f"{given.prepare}: {len([*bundle])} models, {bundle.mebibytes:.1f} MiB")
    return int(failures > 0)


def tasks(given: argparse.Namespace, bundle: Bundle) -> Iterator[list[tuple[Model, str]]]:
    """Yield models and engines by process: first all models by this package."""
    from support.gpu.engines import baselines

    models = [one for one in wanted(given) if one in bundle]
    by_name = [list(some) for _, some in groupby(models, key=attrgetter("name"))]
    for engines in (lambda _: bundle.engines, *baselines(bundle.device)):
        for some in by_name:
            yield [(one, name) for one in some for name in engines(one)]


def run(given: argparse.Namespace) -> int:
    """Run the models of a bundle; return the exit status."""
    import torch

    from support.gpu.engines import Device, key, row_of
    from support.gpu.model_summary import is_ours, text

    bundle, begun = Bundle(given.bundle), time.monotonic()
    arch = bundle.header["arch"]
    if arch != CPU and arch_of(torch_of_cuda()) != arch:
        raise ValueError(f"--bundle {given.bundle} is for {arch}, not {arch_of(torch)}")
    about = header(torch, arch, given.bundle, PROTOCOL)
    record = Record(given.json, about, "rows", resumes=True)
    done = {row["key"] for row in record.found["rows"]}
    runner = Workers(partial(Device.opened, given.bundle), TASK_SECONDS)
    for group in tasks(given, bundle):
        for model, engine in group:
            if key(model, engine) in done or time.monotonic() - begun > given.seconds:
                continue
            try:
                row = runner.result("model", model, engine)
            except TaskError as failure:
                row = row_of(model, engine, note=str(failure))
            record.add("rows", row)
            print(row["key"], row["ms"], row["error"], row["note"], file=sys.stderr, flush=True)
        runner.close()
    write_json(given.json, record.found)
    print(said := text(record.found))
    if given.json:
        given.json.with_suffix(".md").write_text(said)
    return int(not all(row["ok"] for row in record.found["rows"] if is_ours(row)))


def main() -> int:
    """Run the command line."""
    given = parser().parse_args()
    try:
        return prepare(given) if given.prepare else run(given)
    except (ValueError, OSError) as error:
        print(f"bench_gpu_models: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    exit_with(main)
