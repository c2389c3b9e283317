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

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from support.arguments import cases_of, of_several_files
from support.summary import ratios_of

BLOCKS, BLOCK, PAUSE = 5, 0.08, 0.02
"""Turns; seconds of each; seconds between them."""

BASELINES = ("float32", "onnxruntime", "openvino")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = of_several_files(__doc__)
    made.add_argument(
        "--rivals", dest="baselines", default=",".join(BASELINES), help="of %(default)s"
    )
    return made


def main() -> int:
    """Measure the cases that were asked for."""
    options = parser().parse_args()
    baselines = [name for name in options.baselines.split(",") if name]
    if set(baselines) - set(BASELINES):
        parser().error(f"--rivals {options.baselines}: must be of {', '.join(BASELINES)}")
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ.update(
        {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "TVM_BIND_THREADS": "0"}
    )
    from support.steps import header

    cases = cases_of(options)
    for case in cases:
        if case.geometry.pad_before != case.geometry.pad_after:
            parser().error(
                f"{case.name}: padding={case.geometry.padding} must be equal on both sides"
            )
    rows = []
    for number, case in enumerate(cases, 1):
        rows.append(measured(case, baselines, options.threads))
        print(f"{number}/{len(cases)} {line(rows[-1])}", flush=True)
    found = {
        "header": {
            **header(options.threads, ["apache-tvm", *(set(baselines) - {"float32"})]),
            "cases": ", ".join(path.name for path in options.cases),
        },
        "rows": rows,
        "summary": summary(rows, baselines),
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot:
        from support.plot import draw

        draw(rows, found["header"], options.plot)
    print("\n".join(said(found["summary"])))
    return 0 if all(row["steps"] <= 1 for row in rows) else 1


def measured(case: Any, baselines: list[str], threads: int) -> dict[str, Any]:
    """One case."""
    import numpy as np

    from support.quantized import Layer
    from support.timing import in_blocks

    layer = Layer.of(case, np.random.default_rng(0))
    model, real = layer.integers(), layer.fractions()
    data, fractions = layer.data, layer.data.astype("float32")
    run, read = ours(model, data, threads)
    runs, reasons = {"ours": run}, {}
    for name in baselines:
        try:
            if name == "float32":
                runs[name] = ours(real, fractions, threads)[0]
            else:
                runs[name] = {"onnxruntime": onnxruntime, "openvino": openvino}[name](
                    model, data, threads
                )
        except Exception as error:
            reasons[name] = str(error).split("\n")[0]
    times = dict(zip(runs, in_blocks(list(runs.values()), BLOCKS, BLOCK, PAUSE)))
    run()
    steps = int(np.abs(read().astype("int64") - layer.want()).max())
    row: dict[str, Any] = {"name": case.name, "kind": case.op, "dtype": "uint8", "steps": steps}
    row.update({f"{name}_ms": ms for name, ms in times.items()})
    row.update({f"ratio_{name}": times[name] / times["ours"] for name in times if name != "ours"})
    return {**row, "case": str(case), "unavailable": reasons}


def ours(model: bytes, data: Any, threads: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a call, and what reads its result."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    import relax_ext

    target = relax_ext.host_target(num_cores=threads)
    module = from_onnx(onnx.load_from_string(model))
    executable = tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))
    main_function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    given = tvm.runtime.tensor(data)
    return lambda: main_function(given), lambda: main_function(given).numpy()


def onnxruntime(model: bytes, data: Any, threads: int) -> Callable[[], Any]:
    """Its session, of operands that are bound to it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("data", ort.OrtValue.ortvalue_from_numpy(data))
    binding.bind_output("result")
    return lambda: session.run_with_iobinding(binding)


def openvino(model: bytes, data: Any, threads: int) -> Callable[[], Any]:
    """Its request, of an operand that is shared."""
    import openvino as ov

    core = ov.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_NUM_THREADS": threads,
    }
    request = core.compile_model(core.read_model(model), "CPU", settings).create_infer_request()
    request.set_input_tensor(ov.Tensor(data, shared_memory=True))
    return lambda: request.infer(share_outputs=True)


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
