# SPDX-License-Identifier: Apache-2.0
r"""Times quantized layers against ONNX Runtime, OpenVINO and our own float32, and checks them.

::

    .venv-rivals/bin/python scripts/bench_int8.py --cases scripts/cases/bench.json \
        --json out/int8.json --plot out/int8.png

Each case is a layer of uint8 by int8, a scale for each channel, with bias, relu and requantization,
as a model of ONNX.  All run in turns, a block of calls each, with a pause between blocks: the
threads of either are asleep while another's run.  Medians are compared.  A result is correct if it
is one step at most from sums of integers, scaled in float64.

Exit status: 0 when every result is correct, 1 when one is incorrect, 2 for an invalid command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from support.arguments import cases_of, of_several_files
from support.output import write_json
from support.summary import ratios_of

BLOCKS, BLOCK, PAUSE = 5, 0.08, 0.02
"""Turns; seconds of each; seconds between them."""

BASELINES = ("float32", "onnxruntime", "openvino")


def main() -> int:
    """Measure the cases that were asked for."""
    made = of_several_files(__doc__)
    made.add_argument("--rivals", default=",".join(BASELINES), help="of %(default)s")
    options = made.parse_args()
    baselines = [name for name in options.rivals.split(",") if name]
    if set(baselines) - set(BASELINES):
        made.error(f"--rivals {options.rivals}: must be of {', '.join(BASELINES)}")
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "TVM_BIND_THREADS": "0"}
    from support.steps import header

    cases = cases_of(made, options)
    for case in cases:
        if case.geometry.pad_before != case.geometry.pad_after:
            padding = case.geometry.padding
            made.error(f"{case.name}: padding={padding} must be equal on both sides")
    rows = []
    for number, case in enumerate(cases, 1):
        rows.append(measured(case, baselines, options.threads))
        print(f"{number}/{len(cases)} {line(rows[-1])}", flush=True)
    head = header(options.threads, ["apache-tvm", *(set(baselines) - {"float32"})])
    head["cases"] = ", ".join(path.name for path in options.cases)
    summaries = summary(rows, baselines)
    write_json(options.json, {"header": head, "rows": rows, "summary": summaries})
    if options.plot:
        from support.plot import draw

        draw(rows, head, options.plot)
    print("\n".join(said(summaries)))
    return 0 if all(row["steps"] <= 1 for row in rows) else 1


def measured(case: Any, baselines: list[str], threads: int) -> dict[str, Any]:
    """One case."""
    import numpy as np

    from support import onnx_models
    from support.quantized import Layer
    from support.timing import block, in_turns

    layer = Layer.of(case, np.random.default_rng(0))
    model, data = layer.integers(), layer.data
    run, read = ours(model, data, threads)
    runs, reasons = {"ours": run}, {}
    for name in baselines:
        try:
            if name == "float32":
                runs[name], _ = ours(layer.fractions(), data.astype("float32"), threads)
            elif name == "onnxruntime":
                runs[name], _ = onnx_models.by_onnxruntime(model, data, threads)
            else:
                runs[name], _ = onnx_models.by_openvino(model, [data], threads, precision="")
        except Exception as error:
            reasons[name] = str(error).split("\n")[0]
    blocks = {name: partial(block, run, BLOCK) for name, run in runs.items()}
    times = in_turns(blocks, BLOCKS, PAUSE)
    steps = int(np.abs(read().astype("int64") - layer.want()).max())
    row: dict[str, Any] = {"name": case.name, "kind": case.op, "dtype": "uint8", "steps": steps}
    row.update({f"{name}_ms": ms for name, ms in times.items()})
    row.update({f"ratio_{name}": times[name] / times["ours"] for name in times if name != "ours"})
    return {**row, "case": str(case), "unavailable": reasons}


def ours(model: bytes, data: Any, threads: int) -> tuple[Any, Any]:
    """Return a call, and what reads its result."""
    import onnx
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    from support import by_relax

    target = by_relax.host_target(num_cores=threads)
    module = from_onnx(onnx.load_from_string(model))
    function = by_relax.machine(module, target)["main"]
    given = tvm.runtime.tensor(data)
    return lambda: function(given), lambda: function(given).numpy()


def line(row: dict[str, Any]) -> str:
    """One case for the terminal."""
    ratios = ", ".join(
        f"{name[6:]} {value:.2f}" for name, value in row.items() if name.startswith("ratio_")
    )
    incorrect = "" if row["steps"] <= 1 else f"  INCORRECT by {row['steps']} steps"
    return f"{row['name']:<24} {row['ours_ms']:9.3f} ms  {ratios}{incorrect}"


def summary(rows: list[dict[str, Any]], baselines: list[str]) -> dict[str, dict[str, Any]]:
    """Summarize the ratios to each baseline by kind."""
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row for row in rows if row["kind"] == kind]
        ratios = {name: ratios_of(some, f"ratio_{name}") for name in baselines}
        found[kind] = {"cases": len(some), **ratios}
    return found


def said(summaries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each baseline and kind."""
    for kind, one in summaries.items():
        for name, found in one.items():
            if isinstance(found, dict):
                least = f"{found['worst']['value']:.2f} ({found['worst']['name']})"
                mean = f"{found['geomean']:.2f} of {found['cases']}"
                yield f"{name} / ours, {kind}: {mean}, least {least}"


if __name__ == "__main__":
    sys.exit(main())
