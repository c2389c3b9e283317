# SPDX-License-Identifier: Apache-2.0
"""Kernels that multiply pairs of bfloat16, whether or not this processor has an instruction for it.

Where it has none, the instruction is replaced by what it is made of; what LLVM makes of the kernels
for a processor that has it is looked at in any case.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from helpers import guarded
from helpers.assembly import assembly, basic_blocks
from helpers.bfloat16 import BF16, CASES, LARGE, SomeKernels, some_block, stored
from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from helpers.kernels import STREAMS, problem_of
from helpers.profile import FUZZ
from helpers.targets import quickly_compiled
from topi_ext import backend, compat
from topi_ext.cpu.isa import dot_bf16
from topi_ext.cpu.isa.dot_bf16 import LANES
from topi_ext.cpu.kernels import build
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct import DirectPlan, read_through
from topi_ext.cpu.plan.direct_dot import DirectDotPlan
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.conv import Convolution
from topi_ext.target import host_target

MACHINE = CpuMachine(vector_bytes=64, registers=32, threads=2, l2=1 << 20, dots=1.0)
HAS_DOTS = CpuMachine.of_features(*compat.llvm_features(host_target())).dots

SUMS, PAIRS = f"<{LANES} x float>", f"<{LANES} x i32>"


def _all(number: int) -> str:
    return "<" + ", ".join([f"i32 {number}"] * LANES) + ">"


IN_FLOAT32 = f"""
define {SUMS} @topi_ext_dot({SUMS} %sum, {PAIRS} %a, {PAIRS} %b) {{
  %a0 = shl {PAIRS} %a, {_all(16)}
  %a1 = and {PAIRS} %a, {_all(-65536)}
  %b0 = shl {PAIRS} %b, {_all(16)}
  %b1 = and {PAIRS} %b, {_all(-65536)}
  %x0 = bitcast {PAIRS} %a0 to {SUMS}
  %x1 = bitcast {PAIRS} %a1 to {SUMS}
  %y0 = bitcast {PAIRS} %b0 to {SUMS}
  %y1 = bitcast {PAIRS} %b1 to {SUMS}
  %even = fmul {SUMS} %x0, %y0
  %odd = fmul {SUMS} %x1, %y1
  %some = fadd {SUMS} %sum, %even
  %result = fadd {SUMS} %some, %odd
  ret {SUMS} %result
}}
"""


@pytest.fixture(autouse=True)
def instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's, or what it is made of."""
    if not HAS_DOTS:
        monkeypatch.setattr(dot_bf16, "INSTRUCTION", IN_FLOAT32)


def some_plan(problem: Convolution, dice: random.Random) -> DirectDotPlan:
    """Blocks, tiles and splits that divide nothing."""
    block = some_block(problem, dice)
    plane_per_tap = problem.kind == "conv" and dice.random() < 0.5
    window = Window.of(block, read_through(problem, plane_per_tap=plane_per_tap))
    channels, vectors = dice.randint(1, min(problem.out_channels, 5)), dice.randint(1, 3)
    splits = dice.randint(1, min(3, -(-problem.out_channels // channels)))
    depth = dice.randint(1, problem.in_channels // 2)
    nest = DirectPlan(
        window, LANES, channels, min(vectors, -(-window.length // LANES)), splits, depth,
        parallel=dice.random() < 0.5, plane_per_tap=plane_per_tap,
        unrolled=dice.choice([1, 9]),
        streamed=STREAMS and problem.rows_are_runs and dice.random() < 0.3,
    )  # fmt: skip
    return DirectDotPlan(nest, "dpbf16ps")


def run(
    where: Path, kernels: dict[str, object], operands: dict[str, list]
) -> dict[str, np.ndarray]:
    """Results of kernels, with all memory between forbidden pages."""
    guard = guarded.compiled("guard.c", where)
    done, results = guarded.run(
        guard, where, kernels, operands, quickly_compiled(compat.host_target(2))
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return results


@pytest.mark.parametrize("weights", ["as stored", "packed"])
def test_any_plan(tmp_path: Path, weights: str, rng: np.random.Generator) -> None:
    """Whatever the planner would have chosen."""
    some = SomeKernels(some_plan, rng, weights, 2 if FUZZ else 1)
    some.check(run(tmp_path, some.kernels, some.operands))


@pytest.mark.parametrize("known", ["when compiled", "when run"])
def test_planned(tmp_path: Path, known: str, rng: np.random.Generator) -> None:
    """The planner takes them where there are products enough, and sizes may be symbolic."""
    kernels, operands, values = {}, {}, {}
    for name, case in LARGE.items():
        geometry, n = case.geometry, case.n
        if known == "when run":
            geometry, n = guarded.symbolic(case)
        problem = Convolution(case.face, geometry.as_rank3(), case.orders, n, case.dtypes)
        plan = choose(problem, MACHINE)
        assert isinstance(plan, DirectDotPlan)
        kernels[name] = build(problem, plan)
        values[name], operands[name] = stored(case, rng)
    results = run(tmp_path, kernels, operands)
    for name, case in LARGE.items():
        case.check(results[name], *values[name])


def test_an_odd_number_of_channels_has_no_pairs() -> None:
    for case in (Case("conv", (9, 9), (3, 3), ins=63, outs=64), CASES["DCGAN"].with_(ins=63)):
        one = FaceCase(case.op, geometry_of(case), case.n, dtypes=BF16)
        assert not isinstance(choose(problem_of(one), MACHINE), DirectDotPlan)


def test_a_slow_instruction_is_left_alone() -> None:
    """Intel's multiplies pairs at half the rate of float32, which then does it, widened."""
    one = Case("conv_transpose", (32, 32), (9, 9), ins=56, outs=1, stride=(2, 2), padding=(4,) * 4)
    narrow = FaceCase(one.op, geometry_of(one), 1, dtypes=BF16)
    for case in (*LARGE.values(), narrow):
        problem = Convolution(case.face, case.geometry.as_rank3(), case.orders, case.n, case.dtypes)
        assert isinstance(choose(problem, MACHINE), DirectDotPlan)
        assert not isinstance(choose(problem, replace(MACHINE, dots=0.5)), DirectDotPlan)


def test_innermost_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full vectors, and no sum on the stack, on a processor that has the instruction."""
    monkeypatch.undo()
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    for case in LARGE.values():
        func = backend.build(
            Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), target
        ).with_attr("global_symbol", "main")
        text = assembly(tvm.compile(tvm.IRModule({"main": func}), target))
        assert "topi_ext_dot" not in text, "called, not inlined"
        product = re.compile(r"vdpbf16ps.*%zmm")
        hottest = max(
            basic_blocks(text), key=lambda block: sum(map(bool, map(product.match, block)))
        )
        assert sum(map(bool, map(product.match, hottest))) >= 10
        assert not [i for i in hottest if re.match(r"vmov\w+ %zmm\d+, -?\d*\(%rsp\)", i)]


def test_targets() -> None:
    """Features decide, as for all that a machine can do."""
    rates = {"cooperlake": 0.5, "sapphirerapids": 0.5, "znver4": 1.0, "skylake-avx512": 0.0}
    for processor, has in rates.items():
        target = tvm.target.Target({"kind": "llvm", "mcpu": processor})
        assert CpuMachine.of_features(*compat.llvm_features(target)).dots == has
