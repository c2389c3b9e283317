# SPDX-License-Identifier: Apache-2.0
"""Times whole models, in sizes that people run, by ``relax_ext.pipeline`` and by PyTorch.

::

    python benchmarks/bench_models.py --only Unet "UNet2DModel" --json out/bench_models.json

Each model, with random weights, is exported, imported, compiled, and compared with PyTorch in
float64.  Where torch's exporter to ONNX takes it, ONNX Runtime runs it too.  All run in turns, a
block of runs each, with a pause between blocks: the threads of either are asleep while another's
run.  Medians of all runs are compared.  The weakest link is the operator without a kernel of ours
that takes most of the time.

``make env-models`` installs the packages.  No weights are downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

BLOCKS = 7
PAUSE = 0.1
"""Seconds between blocks."""
BLOCK = 0.3
"""Seconds of a block, or two runs."""


@dataclass
class Row:
    """What was measured of a model; milliseconds."""

    model: str
    ours: float
    torch: float
    error: float
    torch_error: float
    compile_s: float
    share_of_ours: float
    weakest: tuple[str, float] | None
    onnxruntime: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast as PyTorch."""
        return self.torch / self.ours


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models, in this order")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--list", action="store_true", help="print the names")
    made.add_argument("--json", type=Path, help="write everything there; rows of other models stay")
    return made


def main() -> int:
    """Measure the models that were asked for."""
    options = parser().parse_args()
    prepare_environment(options.threads)
    from zoo.catalog import quiet

    quiet()
    from zoo.published import MODELS

    if options.list:
        print("\n".join(MODELS))
        return 0
    unknown = set(options.only or ()) - set(MODELS)
    if unknown:
        parser().error(f"no model is called {', '.join(sorted(unknown))}: see --list")
    rows = _known(options.json)
    for name in options.only or MODELS:
        rows[name] = measured(name, options.threads)
        print(line(rows[name]), flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            found = [asdict(row) for row in rows.values()]
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"geometric mean: {geometric_mean([row.ratio for row in rows.values()]):.2f}")
    return 0


def prepare_environment(threads: int) -> None:
    """What both read when they are imported: so many threads, which do not spin when they wait."""
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.update(
        {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "TVM_BIND_THREADS": "0"}
    )


def measured(name: str, threads: int) -> Row:
    """One model."""
    import torch
    import tvm
    from tvm import relax

    import relax_ext
    from benchmark.timing import in_blocks
    from conv_cli.profiling import Profile, entries_of
    from relax_ext.cli.instrument import KernelNames, calls_of
    from zoo import catalog, stages
    from zoo.published import MODELS

    torch.set_num_threads(threads)
    model, inputs = stages.prepare(catalog.Entry(name, "", MODELS[name], "float32"))
    target = relax_ext.host_target(num_cores=threads)
    module = stages.from_exported_program(stages.export(model, inputs))
    start, kernels = time.perf_counter(), KernelNames(target)
    executable = tvm.compile(module, target, relax_pipeline=kernels.pipeline)
    seconds = time.perf_counter() - start
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.from_dlpack(x.contiguous()) for x in inputs]
    results = machine["main"](*given)
    results = [results] if isinstance(results, tvm.runtime.Tensor) else results
    got = [torch.from_dlpack(one).clone() for one in results]
    with torch.no_grad():
        want, own = stages.exact(model, inputs), stages.tensors_of(model(*inputs))
        baseline = by_onnxruntime(model, inputs, want[0], threads)
        runs = [lambda: machine["main"](*given), lambda: model(*inputs)]
        runs += [baseline] if baseline else []
        ours, eager, *others = in_blocks(runs, BLOCKS, BLOCK, PAUSE)
    observed = []
    for _ in range(5):
        with calls_of(machine, tvm.cpu()) as calls:
            machine["main"](*given)
        observed.append(list(calls))
    profile = Profile("relax_ext", name, "torch", "", threads, entries_of(observed, kernels.names))
    errors = stages.error_of(got, want), stages.error_of(own, want)
    return Row(name, ours, eager, *errors, seconds, profile.ours, profile.weakest, *others)


def by_onnxruntime(model: Any, inputs: Any, want: Any, threads: int) -> Callable[[], Any] | None:
    """A session of ONNX Runtime; None where a model can't be exported, run, or is wrong there."""
    import io

    import onnxruntime
    import torch

    file = io.BytesIO()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        torch.onnx.export(model, tuple(inputs), file, dynamo=False, opset_version=17)
        session = onnxruntime.InferenceSession(file.getvalue(), options)
        names = [one.name for one in session.get_inputs()]
        given = {name: x.contiguous().numpy() for name, x in zip(names, inputs)}
        first = torch.tensor(session.run(None, given)[0]).double()
    except Exception as error:
        print(f"ONNX Runtime: {str(error).splitlines()[0][:150]}", file=sys.stderr)
        return None
    if first.shape != want.shape or (first - want).abs().max() > 1e-2 * want.abs().max():
        print("ONNX Runtime: another result", file=sys.stderr)
        return None
    return lambda: session.run(None, given)


def line(row: Row) -> str:
    """A row of a table in Markdown."""
    weakest = f"{row.weakest[0]} {100 * row.weakest[1]:.0f} %" if row.weakest else "-"
    ratio = f"{row.ratio:.2f}" if row.ratio >= 1 else f"**{row.ratio:.2f}**"
    other = f"{row.onnxruntime:.1f}" if row.onnxruntime else "–"
    return (
        f"| {row.model} | {row.torch:.1f} | {other} | {row.ours:.1f} | {ratio} | {row.error:.0e} "
        f"| {row.torch_error:.0e} | {100 * row.share_of_ours:.0f} % | {weakest} |"
    )


def _known(path: Path | None) -> dict[str, Row]:
    """Rows of an earlier run."""
    if path is None or not path.exists():
        return {}
    return {one["model"]: Row(**one) for one in json.loads(path.read_text())}


if __name__ == "__main__":
    sys.exit(main())
