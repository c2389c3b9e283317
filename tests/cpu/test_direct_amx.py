# SPDX-License-Identifier: Apache-2.0
"""Kernels for AMX, whether or not this processor has it: by an emulator of its instructions.

The code is what LLVM makes for a processor that has them.  It runs in a process into which
``amx_emulator.c`` is preloaded, with all memory between forbidden pages.
"""

from __future__ import annotations

import pickle
import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import relax_ext
from helpers import build, guarded
from helpers.amx import HAS_AMX, IS_ELSEWHERE, REASON, amx_target, check, compiled, products
from helpers.assembly import assembly, basic_blocks
from helpers.bfloat16 import BF16, LARGE, SomeKernels, some_block, stored
from helpers.cases import Case, geometry_of
from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.kernels import problem_of
from helpers.profile import FUZZ, thinned
from topi_ext import backend, compat
from topi_ext.cpu import kernels
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct import DirectPlan
from topi_ext.cpu.plan.direct_amx import TILE, DirectAmxPlan
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.conv import Convolution

pytestmark = pytest.mark.skipif(IS_ELSEWHERE, reason=REASON)

T, C = "conv_transpose", "conv"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the libraries of guard.c and of amx_emulator.c."""
    return compiled(tmp_path_factory.mktemp("libraries"))


def some_plan(problem: Convolution, dice: random.Random) -> DirectAmxPlan:
    """Blocks, tiles and splits that divide nothing."""
    block = some_block(problem, dice)
    window = Window.of(block, problem.accesses)
    channels, vectors = dice.choice([(TILE, 1), (TILE, 3), (2 * TILE, 1), (2 * TILE, 2)])
    splits = dice.randint(1, -(-problem.out_channels // channels))
    depth = dice.randint(1, -(-problem.in_channels // (2 * TILE)))
    nest = DirectPlan(
        window, TILE, channels, vectors, splits, depth, parallel=dice.random() < 0.5,
        unrolled=dice.choice([1, 9]),
    )  # fmt: skip
    refused = DirectPlan(window, 8, 2, 1, 1, problem.in_channels)
    return DirectAmxPlan(nest, refused, "tdpbf16ps", tiles_first=dice.random() < 0.5)


@pytest.mark.parametrize("weights", ["as stored", "packed"])
@pytest.mark.parametrize("linux", ["grants", "refuses"])
def test_any_plan(
    libraries: tuple[Path, Path], tmp_path: Path, linux: str, weights: str, rng: np.random.Generator
) -> None:
    """Whatever the planner would have chosen."""
    # The sums that are taken without the unit have tests of their own.
    some = SomeKernels(some_plan, rng, weights, 2 if FUZZ and linux == "grants" else 1)
    some.check(check(libraries, tmp_path, some.kernels, some.operands, granted=linux == "grants"))


def test_tiles_of_positions_before_blocks_of_channels(
    libraries: tuple[Path, Path], tmp_path: Path, rng: np.random.Generator
) -> None:
    """Several tiles, blocks and splits, in one chunk of channels and in two: the sums of all blocks
    of a split are kept."""
    made, operands, chosen = {}, {}, {}
    for case in (
        Case(C, (13, 11), (3, 2), ins=40, outs=50, padding=(1,) * 4),
        Case(T, (13, 11), (2, 3), ins=40, outs=50, stride=(2, 2)),
    ):
        face = FaceCase(case.op, geometry_of(case), case.n, dtypes=BF16)
        problem = problem_of(face)
        window = Window.of((1, 1, 5, 11), problem.accesses)
        refused = DirectPlan(window, 8, 2, 1, 1, problem.in_channels)
        for splits, depth in thinned(product((1, 2), (1, 2)), 2, len(made) and 1):
            nest = DirectPlan(window, TILE, TILE, 2, splits, depth)
            name = f"{case.op}_{splits}_{depth}"
            plan = DirectAmxPlan(nest, refused, "tdpbf16ps", tiles_first=True)
            made[name] = kernels.build(problem, plan)
            values, operands[name] = stored(face, rng)
            chosen[name] = face, values
    results = check(libraries, tmp_path, made, operands)
    for name, (face, values) in chosen.items():
        face.check(results[name], *values)


@pytest.mark.parametrize("known", ["when compiled", "when run"])
def test_planned(
    libraries: tuple[Path, Path], tmp_path: Path, known: str, rng: np.random.Generator
) -> None:
    kernels, operands, values = {}, {}, {}
    for name, case in LARGE.items():
        sizes = (case.geometry, case.n) if known == "when compiled" else guarded.symbolic(case)
        kernels[name] = backend.build(
            Convolution.of(case.face, sizes[0], case.orders, sizes[1], case.dtypes), amx_target()
        )
        values[name], operands[name] = stored(case, rng)
    results = check(libraries, tmp_path, kernels, operands)
    for name, case in LARGE.items():
        case.check(results[name], *values[name])


@pytest.mark.parametrize("pipeline", ["TVM's", "ours"])
def test_model(
    libraries: tuple[Path, Path], tmp_path: Path, pipeline: str, rng: np.random.Generator
) -> None:
    """Compile, export and run a model as a user does: constant weights, a bias, and relu."""
    case = LARGE["up"]
    values = case.arrays(rng)
    bias = rng.standard_normal((1, case.geometry.c, 1, 1)).astype(numpy_dtype("bfloat16"))

    def body(data: relax.Expr) -> relax.Expr:
        window = dict(strides=(2, 2), padding=(1,) * 4)
        up = relax.op.nn.conv2d_transpose(data, constant(values[1]), **window)
        return relax.op.nn.relu(relax.op.add(up, constant(bias)))

    mod = build.module(body, values[0])
    ours = {"relax_pipeline": relax_ext.pipeline(amx_target())} if pipeline == "ours" else {}
    library, given, made = (tmp_path / name for name in ("model.so", "operands", "result"))
    tvm.compile(mod, amx_target(), **ours).export_library(str(library))
    given.write_bytes(pickle.dumps([values[0]]))
    more = {} if HAS_AMX else {"LD_PRELOAD": str(libraries[1])}
    done = guarded.python("vm_run.py", library, given, made, **more)
    assert done.returncode == 0, done.stderr[-2000:]
    assert HAS_AMX or products(done) > 0
    got = pickle.loads(made.read_bytes()).astype("float64")
    convolved = case.want(*values)
    biased = convolved + bias.astype("float64")
    # bfloat16 rounds by at most 2^-8 of a number: the sum, and that with the bias. What float32
    # errs while adding 512 products is less than a hundredth of it.
    limit = 1.01 * 2.0**-8 * (abs(convolved) + abs(biased)) + 1e-3
    assert (abs(got - np.maximum(biased, 0)) <= limit).all()


def constant(array: np.ndarray) -> relax.Expr:
    return relax.const(tvm.runtime.tensor(array))


def test_innermost_loop() -> None:
    """The innermost loop has as many products for each load as the four sums allow, on a processor
    with AMX."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
    for case in LARGE.values():
        func = backend.build(
            Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), target
        ).with_attr("global_symbol", "main")
        text = assembly(tvm.compile(tvm.IRModule({"main": func}), target))
        hottest = max(basic_blocks(text), key=lambda block: sum("tdpbf16ps" in i for i in block))
        multiplied = sum("tdpbf16ps" in i for i in hottest)
        assert multiplied >= 4
        # One load for a product, and the sums.
        assert sum("tileload" in i for i in hottest) <= multiplied + 4
        assert not any("tilestore" in i and "rsp" in i for i in hottest), "a tile is spilt"


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_nearly_empty_tiles_are_left_to_vectors(channels: int) -> None:
    """Tiles of 16 rows are used from three rows on."""
    machine = CpuMachine(vector_bytes=64, registers=32, threads=2, amx=True)
    some = Case(T, (64, 64), (9, 9), ins=56, outs=channels, stride=(2, 2), padding=(4,) * 4)
    plan = choose(problem_of(FaceCase(T, geometry_of(some), 1, dtypes=BF16)), machine)
    assert isinstance(plan, DirectAmxPlan) == (channels == 3)


def test_other_targets_have_no_matrix_unit() -> None:
    """AMX is asked for by a call of Linux."""
    for triple, has in (("x86_64-pc-linux-gnu", True), ("x86_64-pc-windows-msvc", False)):
        target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "mtriple": triple})
        assert CpuMachine.of_features(*compat.llvm_features(target)).amx == has


def test_the_matrix_unit_needs_no_other_vectors() -> None:
    """Features are named one by one, here over those of a processor without AVX-512."""
    machine = CpuMachine.of_features(frozenset({"avx2", "amx-tile", "amx-bf16"}), 2)
    assert machine.amx and machine.vector_bytes == 32
