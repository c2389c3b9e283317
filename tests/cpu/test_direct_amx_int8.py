# SPDX-License-Identifier: Apache-2.0
"""Kernels of int8 and uint8 for AMX, whether or not this processor has it, against exact sums."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import tvm

from helpers.amx import IS_ELSEWHERE, REASON, amx_target, check, compiled
from helpers.assembly import assembly, basic_blocks
from helpers.bfloat16 import CASES, packed, some_block
from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from helpers.kernels import free, problem_of
from helpers.profile import FUZZ
from topi_ext import backend
from topi_ext.cpu import kernels
from topi_ext.cpu.kernels import direct, direct_dot
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct import DirectPlan
from topi_ext.cpu.plan.direct_amx import TILE, DirectAmxPlan, direct_amx_candidates
from topi_ext.cpu.plan.estimate import cheapest
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.products import TILE_DOTS, tile_dot_of
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import Fused

pytestmark = pytest.mark.skipif(IS_ELSEWHERE, reason=REASON)

MACHINE = CpuMachine(vector_bytes=64, registers=32, threads=2, l2=2 << 20, amx_int8=True)

OPERANDS = [
    (("int8", "int8", "int32"), (-128, 0)),
    (("uint8", "int8", "int32"), (131, 0)),
    (("int8", "uint8", "int8"), (0, 0)),
    (("uint8", "uint8", "int32"), (3, 0)),
    (("uint8", "uint8", "int32"), (0, 128)),
    (("int8", "int8", "int32"), (7, -128)),
]
"""Dtypes and zero points with which weights are bytes."""

MORE = [
    Case("conv", (6, 5), (3, 3), 2, ins=67, outs=20, padding=(1,) * 4),
    Case("conv_transpose", (3, 4), (3, 3), 1, ins=130, outs=5, stride=(2, 2), padding=(1,) * 4),
    Case("conv", (9,), (3,), 1, ins=6, outs=8, groups=2, padding=(2, 2)),
]

LARGE = {
    "up": Case("conv_transpose", (12, 12), (4, 4), 1, ins=128, outs=32, stride=(2, 2),
               padding=(1,) * 4),
    "conv": Case("conv", (14, 14), (3, 3), 1, ins=130, outs=48, padding=(1,) * 4),
}  # fmt: skip


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the libraries of guard.c and of amx_emulator.c."""
    return compiled(tmp_path_factory.mktemp("libraries"))


def some_plan(problem: Convolution, dice: random.Random) -> DirectAmxPlan:
    """Blocks, tiles and splits that divide nothing."""
    window = Window.of(some_block(problem, dice), problem.accesses)
    channels, vectors = dice.choice([(TILE, 1), (TILE, 3), (2 * TILE, 1), (2 * TILE, 2)])
    nest = DirectPlan(
        window, TILE, channels, vectors,
        dice.randint(1, -(-problem.out_channels // channels)),
        dice.randint(1, -(-problem.in_channels // (4 * TILE))),
        parallel=dice.random() < 0.5, unrolled=dice.choice([1, 9]),
    )  # fmt: skip
    with_vectors = replace(MACHINE, vector_bytes=32, registers=16, int_dots=(("pmaddwd", 2.0),))
    other = dice.choice([with_vectors, replace(with_vectors, int_dots=())])
    refused = cheapest(direct_amx_candidates(problem, other))[1].refused
    first = dice.random() < 0.5
    return DirectAmxPlan(nest, refused, tile_dot_of(problem).name, tiles_first=first)


class Chosen:
    """Kernels, with their operands."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.kernels, self.operands, self.cases = rng, {}, {}, {}

    def add(self, face: FaceCase, problem: Convolution, kernel: object, plan: object) -> None:
        """A kernel for `problem`, which is `face` less its zero points."""
        name = f"f{len(self.cases)}"
        values = face.arrays(self.rng)
        arguments = [face.stored(role, value) for role, value in zip(face.roles, values)]
        if problem.prepacked:
            arguments[1] = packed(problem, plan, arguments[1])
        out = np.full(face.stored_shape(face.roles[2]), 77, face.dtypes[2])
        centred = [v.astype("float64") - z for v, z in zip(values, problem.zero_points)]
        self.cases[name] = face, centred, plan
        self.kernels[name], self.operands[name] = kernel, [*arguments, out]

    def check(self, libraries: tuple[Path, Path], where: Path, *, granted: bool = True) -> None:
        """Run and compare."""
        results = check(libraries, where, self.kernels, self.operands, granted=granted)
        for name, (face, values, plan) in self.cases.items():
            try:
                face.check(results[name], *values)
            except AssertionError as error:
                raise AssertionError(f"{face}, {plan}") from error


@pytest.mark.parametrize("linux", ["grants", "refuses"])
def test_any_plan(
    libraries: tuple[Path, Path],
    tmp_path: Path,
    linux: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the planner would have chosen; every fourth finds its weights packed."""
    some = {"grants": 2, "refuses": 5}[linux] if not FUZZ else 1
    if linux == "grants":  # what is done otherwise takes half of the time to build
        for kernel in (direct, direct_dot):
            monkeypatch.setattr(kernel, "emit_body", lambda *_: None)
    dice, operands = random.Random(int(rng.integers(1 << 30))), cycle(OPERANDS)
    chosen = Chosen(rng)
    for number, case in enumerate([*CASES.values(), *MORE][::some]):
        layouts = Layouts("NHWC", "HWIO", "NHWC") if number % 3 and case.rank == 2 else None
        dtypes, zeros = next(operands)
        face = FaceCase(case.op, geometry_of(case), case.n, layouts, dtypes)
        problem = replace(problem_of(face), zero_points=zeros, prepacked=number % 4 == 1)
        plan = some_plan(problem, dice)
        chosen.add(face, problem, kernels.build(problem, plan), plan)
    chosen.check(libraries, tmp_path, granted=linux == "grants")


@pytest.mark.parametrize("known", ["when compiled", "when run"])
def test_planned(
    libraries: tuple[Path, Path], tmp_path: Path, known: str, rng: np.random.Generator
) -> None:
    """The planner takes tiles where there are products enough; sizes may be symbolic."""
    chosen = Chosen(rng)
    cases = list(LARGE.values()) if known == "when compiled" else [LARGE["conv"]]
    for case, (dtypes, zeros) in zip(cases, OPERANDS):
        face = FaceCase(case.op, geometry_of(case), case.n, None, dtypes)
        problem = problem_of(face) if known == "when compiled" else free(face)
        problem = replace(problem, zero_points=zeros)
        plan = choose(problem, MACHINE)
        assert isinstance(plan, DirectAmxPlan)
        chosen.add(face, problem, kernels.build(problem, plan), plan)
    chosen.check(libraries, tmp_path)


def test_what_it_does_not_serve() -> None:
    """Weights that take nine bits, other integers, few output channels, other processors."""
    case = LARGE["conv"]
    face = FaceCase(case.op, geometry_of(case), case.n, None, ("uint8", "int8", "int32"))
    served = problem_of(face)
    assert cheapest(direct_amx_candidates(served, MACHINE))
    for problem in (
        replace(served, zero_points=(0, 3)),
        replace(served, dtypes=("uint8", "int16", "int32")),
        replace(served, dtypes=("uint8", "int8", "int64")),
        replace(served, geometry=replace(served.geometry, k=2)),
    ):
        assert cheapest(direct_amx_candidates(problem, MACHINE)) is None
    assert (
        cheapest(direct_amx_candidates(served, replace(MACHINE, amx_int8=False, amx=True))) is None
    )


@pytest.mark.parametrize("name", [name for name in TILE_DOTS if not TILE_DOTS[name].is_float])
def test_innermost_loop(name: str) -> None:
    """The innermost loop has as many products for each load as the four sums allow, on a processor
    with AMX."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
    dot, case = TILE_DOTS[name], LARGE["up"]
    face = FaceCase(case.op, geometry_of(case), case.n, None, (dot.data, dot.weights, "int32"))
    fused = Fused((), (3, 0))
    problem = Convolution.of(face.face, face.geometry, face.orders, face.n, face.dtypes, fused)
    func = backend.build(problem, target).with_attr("global_symbol", "main")
    text = assembly(tvm.compile(tvm.IRModule({"main": func}), target))
    hottest = max(basic_blocks(text), key=lambda block: sum(name in i for i in block))
    multiplied = sum(name in i for i in hottest)
    assert multiplied >= 4
    # One load for a product, and those of the sums.
    assert sum("tileload" in i for i in hottest) <= multiplied * 5 / 4
    assert not any("tilestore" in i and "rsp" in i for i in hottest), "a tile is spilt"


def test_targets() -> None:
    """Features decide, one by one."""
    assert backend.of_target(amx_target()).machine.amx_int8
    for processor, has in {"sapphirerapids": True, "icelake-server": False}.items():
        target = tvm.target.Target({"kind": "llvm", "mcpu": processor})
        assert backend.of_target(target).machine.amx_int8 == has
    assert not CpuMachine.of_features(frozenset({"avx2", "amx-tile", "amx-bf16"}), 2).amx_int8
