# SPDX-License-Identifier: Apache-2.0
"""Times the first patch for TVM: its definition of conv_transpose against the one that TVM has.

::

    python scripts/bench_topi.py --json out/bench_topi.json

Both are legalized as TVM does for a target without kernels, built for the CPU without a schedule,
and run on one thread: milliseconds of processor time.  ``products`` counts their multiplications,
from the loops of the reductions.  ``rule`` names the rule of TVM's dlight that schedules the
reduction for CUDA.  The cases are those of ``cases/bench.json``.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from math import prod
from statistics import median
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.s_tir import Schedule, dlight

import relax_ext
from support.by_relax import array, as_torch, forward, host_target
from support.cases import CASES, Case, read_cases
from support.steps import Row, parser, run, use_threads

SECONDS, REPEATS = 2.0, 5
"""Maximum seconds and runs of a definition: no run starts after these seconds."""
RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")
"""Rules of dlight, in the order in which TVM's pipeline for CUDA tries them."""


def main() -> int:
    """Run the command line."""
    given = parser(__doc__).parse_args()
    given.threads = 1
    use_threads(given.threads)
    cases = {case.name: case for case in read_cases(CASES / "bench.json")}

    def measure(name: str) -> dict[str, Row]:
        return {name: measured(cases[name])}

    return run(given, cases, measure, {"main": "TVM's definition"}, "time", ("apache-tvm",))


def measured(case: Case) -> Row:
    """Return processor time, products and rules of both definitions.

    Raises
    ------
    AssertionError
        Their results differ.
    """
    row: Row = {"ms": {}, "products": {}, "rule": {}}
    torch.manual_seed(0)
    operands = [torch.randn(case.shape(role)) for role in ("y", "w")]
    results = []
    for engine, context in (("ours", nullcontext()), ("main", relax_ext.stock())):
        module = forward(case, "conv_transpose", "float32")
        with context, tvm.target.Target({"kind": "opencl"}, host="llvm"):
            module = relax.transform.LegalizeOps()(module)
        row["products"][engine], row["rule"][engine] = reductions(module)
        result, row["ms"][engine] = timed(module, operands)
        results.append(result)
    first, second = (result.numpy() for result in results)
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5 * float(results[0].abs().max()))
    return row


def reductions(module: Any) -> tuple[int, str]:
    """Return the number of products of a module's reductions, and the rule for the last one."""
    count, name = 0, ""
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            continue
        schedule = Schedule(function)
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            iterators = schedule.get(block).iter_vars
            if any(one.iter_type == one.CommReduce for one in iterators):
                count += prod(int(one.dom.extent) for one in iterators)
                name = rule(function)
    return count, name


def rule(function: Any) -> str:
    """Return the first rule of dlight that schedules a function for CUDA."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        return next(
            name for name in RULES if getattr(dlight.gpu, name)().apply(function, target, False)
        )


def timed(module: Any, operands: list[torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return the result of a module, and the median of its processor time in milliseconds."""
    with relax_ext.stock():
        machine = relax.VirtualMachine(tvm.compile(module, host_target(1)), tvm.cpu())
    arrays, times, result = list(map(array, operands)), list[float](), None
    while len(times) < REPEATS and sum(times) < SECONDS:
        begin = time.process_time()
        result = machine["main"](*arrays)
        times.append(time.process_time() - begin)
    return as_torch(result), 1e3 * median(times)


if __name__ == "__main__":
    sys.exit(main())
