# SPDX-License-Identifier: Apache-2.0
"""Kernels of int8 and uint8 by products within lanes, whether or not this processor has the
instruction: it is replaced by what it is made of, and what LLVM makes of the kernels for processors
that have it is looked at."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import tvm

from helpers.assembly import assembly, basic_blocks
from helpers.bfloat16 import CASES, some_block
from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from helpers.kernels import HOST, built, free, problem_of
from helpers.profile import FUZZ
from helpers.quantized import OPERANDS, run
from topi_ext import backend, compat
from topi_ext.backend import Packing
from topi_ext.cpu import kernels
from topi_ext.cpu.isa import dot_int8
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct import DirectPlan, read_through
from topi_ext.cpu.plan.direct_dot import DirectDotPlan, plan_direct_dot
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.products import DOTS, Product
from topi_ext.cpu.select.choose import choose
from topi_ext.kernel.registry import Refused
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts

MACHINE = CpuMachine(vector_bytes=32, registers=16, threads=2)
NATIVE = dict(CpuMachine.of_features(*compat.llvm_features(HOST)).int_dots)

MORE = [
    Case("conv", (9, 9), (3, 3), 1, ins=63, outs=10),
    Case("conv", (9, 8), (3, 3), 1, ins=12, outs=12, groups=4, padding=(2, 1, 0, 1)),
    Case("conv", (7, 8), (3, 2), 1, ins=5, outs=5, groups=5, stride=(1, 2), padding=(1,) * 4),
    Case("conv_transpose", (3, 9), (3, 4), 2, ins=3, outs=2, stride=(2, 2), padding=(1,) * 4),
    Case("conv_transpose", (11,), (5,), 1, ins=30, outs=6, groups=2, stride=(4,), padding=(1, 0)),
]

WEIGHTS = {"int8": 0, "uint8": 128}
"""Zero points with which weights are numbers of int8."""


def emulated(dot: Product, lanes: int) -> tuple[str, str]:
    """Return the name of an instruction, and IR that emulates it."""
    vector, width = f"<{lanes} x i32>", 32 // dot.size

    def every(number: int) -> str:
        return "<" + ", ".join([f"i32 {number}"] * lanes) + ">"

    lines, total = [], "%sum"
    for i in range(dot.size):
        for name, dtype in (("weights", dot.weights), ("data", dot.data)):
            shift = "lshr" if dtype.startswith("u") else "ashr"
            lines += [
                f"  %{name}a{i} = shl {vector} %{name}, {every(32 - width * (i + 1))}",
                f"  %{name}{i} = {shift} {vector} %{name}a{i}, {every(32 - width)}",
            ]
        result = "%result" if i == dot.size - 1 else f"%sum{i}"
        lines += [
            f"  %product{i} = mul {vector} %weights{i}, %data{i}",
            f"  {result} = add {vector} {total}, %product{i}",
        ]
        total = result
    return "\n".join(lines), ""


@pytest.fixture(params=[name for name in DOTS if not DOTS[name].is_float])
def dot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Product:
    """An instruction: the processor's, or what it is made of."""
    if request.param not in NATIVE:
        monkeypatch.setattr(dot_int8, "definition", emulated)
    return DOTS[request.param]


def some_plan(problem: Convolution, dot: Product, dice: random.Random) -> DirectDotPlan:
    """Blocks, tiles and splits that divide nothing."""
    block = some_block(problem, dice)
    plane_per_tap = problem.kind == "conv" and dice.random() < 0.5
    last = problem.accesses[-1]
    all_phases = 1 < last.out_step <= 4 and not last.has_empty_phase and dice.random() < 0.5
    window = Window.of(block, read_through(problem, plane_per_tap=plane_per_tap))
    channels, vectors = dice.randint(1, min(problem.out_channels, 5)), dice.randint(1, 3)
    splits = dice.randint(1, min(3, -(-problem.out_channels // channels)))
    lanes = 8 if dot.name in ("pmaddwd", "vpdpbusd") else 4
    nest = DirectPlan(
        window, lanes, channels, min(vectors, -(-window.length // lanes)), splits,
        dice.randint(1, -(-problem.in_channels // dot.size)), parallel=dice.random() < 0.5,
        plane_per_tap=plane_per_tap, unrolled=dice.choice([1, 9]), all_phases=all_phases,
    )  # fmt: skip
    return DirectDotPlan(nest, dot.name)


def served(dot: Product) -> list[tuple[FaceCase, tuple[int, int]]]:
    """Cases in both layouts, with dtypes and zero points in turns."""
    found, operands = [], cycle(OPERANDS)
    some = [*CASES.values(), *MORE]
    if not FUZZ:  # others of each instruction
        some = some[[*DOTS].index(dot.name) % 3 :: 3]
    for number, case in enumerate(some):
        dtypes, zeros = next(operands)
        if dot.weights == "int8":
            zeros = zeros[0], WEIGHTS[dtypes[1]]
        if dot.weights == "uint8":
            dtypes, zeros = (dtypes[0], "uint8", dtypes[2]), (zeros[0], 0)
        layouts = Layouts("NHWC", "HWIO", "NHWC") if number % 3 and case.rank == 2 else None
        found.append((FaceCase(case.op, geometry_of(case), case.n, layouts, dtypes), zeros))
    return found


def test_any_plan(dot: Product, rng: np.random.Generator) -> None:
    """Whatever the planner would have chosen, of weights as they are stored or packed."""
    seed = int(rng.integers(1 << 30))
    dice, made, packers, chosen = random.Random(seed), [], {}, []
    for number, (face, zeros) in enumerate(served(dot)):
        packed = dice.random() < 0.5
        problem = replace(problem_of(face), zero_points=zeros, prepacked=packed)
        plan = some_plan(problem, dot, dice)
        made.append(kernels.build(problem, plan))
        if packed:
            func = kernels.build_packing(problem, plan)
            packers[number] = func, Packing(func, *kernels.packed_weights(problem, plan))
        chosen.append((face, zeros, plan))
    functions = built([*made, *(func for func, _ in packers.values())])
    pack_of = dict(zip(packers, (functions[f"f{len(made) + i}"] for i in range(len(packers)))))
    for number, (face, zeros, plan) in enumerate(chosen):
        packed = (pack_of[number], packers[number][1]) if number in packers else None
        try:
            run(functions[f"f{number}"], face, zeros, rng, packed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {zeros}, {plan}") from error


@pytest.mark.parametrize("dot", ["pmaddwd", "vpdpbusd"], indirect=True)
def test_sizes_known_when_run(dot: Product, rng: np.random.Generator) -> None:
    machine = replace(MACHINE, int_dots=((dot.name, 2.0),))
    made, chosen = [], []
    for face, zeros in served(dot)[:: 5 if FUZZ else 3]:
        problem = replace(free(face), zero_points=zeros)
        made.append(kernels.build(problem, plan_direct_dot(problem, machine)[1]))
        chosen.append((face, zeros))
    functions = built(made)
    for number, one in enumerate(chosen):
        run(functions[f"f{number}"], *one, rng)


ON = {
    "pmaddwd": ({"mcpu": "haswell"}, r"vpmaddwd .*%ymm"),
    "vpdpbusd": ({"mcpu": "icelake-server"}, r"vpdpbusd .*%zmm"),
    "vpdpbusd of AVX-VNNI": ({"mcpu": "alderlake"}, r"({vex} )?vpdpbusd .*%ymm"),
    "pmaddwd of SSE2": ({"mcpu": "x86-64"}, r"pmaddwd %xmm"),
    "sdot": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, r"sdot v\d+\.4s"),
    "usdot": ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}, r"usdot v\d+\.4s"),
}


@pytest.mark.parametrize("name", ON)
def test_innermost_loop(name: str) -> None:
    """The instruction on full vectors, and no sum on the stack, on processors that have it."""
    options, pattern = ON[name]
    if "mtriple" not in options:
        options = {**options, "mtriple": "x86_64-linux-gnu"}
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **options})
    case = Case("conv", (28, 28), (3, 3), 1, ins=64, outs=64, padding=(1,) * 4)
    asked = "conv", geometry_of(case), FaceCase("conv", geometry_of(case)).orders, 1
    func = backend.build(Convolution.of(*asked, ("uint8", "int8", "int32")), target)
    module = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
    product = re.compile(pattern)
    found = [
        (sum(map(bool, map(product.match, block))), block)
        for block in basic_blocks(assembly(module))
    ]
    count, hottest = max(found, key=lambda one: one[0])
    assert count >= 10
    spilled = r"v?mov\w+ %[xyz]mm\d+, -?\d*\(%rsp\)|st[rp] q\d+.*\[sp"
    assert not [line for line in hottest if re.match(spilled, line)]


@pytest.mark.parametrize(
    ("processor", "has"),
    [
        ("x86-64", ["pmaddwd"]),
        ("haswell", ["pmaddwd"]),
        ("skylake-avx512", ["pmaddwd"]),
        ("icelake-server", ["vpdpbusd", "pmaddwd"]),
        ("alderlake", ["vpdpbusd", "pmaddwd"]),
        ("znver4", ["vpdpbusd", "pmaddwd"]),
    ],
)
def test_targets(processor: str, has: list[str]) -> None:
    """Features decide, as for all that a machine can do."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "mtriple": "x86_64-linux-gnu"})
    machine = CpuMachine.of_features(*compat.llvm_features(target))
    assert [name for name, _ in machine.int_dots] == has


@pytest.mark.parametrize(
    ("dtypes", "zeros", "name"),
    [
        (("uint8", "int8", "int32"), (128, 0), "vpdpbusd"),
        (("int8", "uint8", "int32"), (3, 128), "vpdpbusd"),
        (("uint8", "int8", "int32"), (0, 1), "pmaddwd"),
        (("uint8", "uint8", "int32"), (0, 0), "pmaddwd"),
    ],
)
def test_what_leaves_int8_goes_in_pairs(dtypes: tuple, zeros: tuple, name: str) -> None:
    """Weights less their zero point; what is wider than 8 bits has no kernel of these."""
    machine = replace(MACHINE, int_dots=(("vpdpbusd", 2.0), ("pmaddwd", 2.0)))
    case = Case("conv", (28, 28), (3, 3), 1, ins=64, outs=64)
    face = FaceCase("conv", geometry_of(case), 1, None, dtypes)
    problem = replace(problem_of(face), zero_points=zeros)
    assert choose(problem, machine).dot == name
    assert DOTS[name].fits(problem)
    wide = replace(problem, dtypes=("int16", "int8", "int32"), zero_points=(0, 0))
    with pytest.raises(Refused, match="bytes"):
        plan_direct_dot(wide, machine)
