# SPDX-License-Identifier: Apache-2.0
"""The scheduled kernels themselves: every plan, target and number of threads, against PyTorch.

Operands lie between guards: NaN around what is read, marks around what is written, so that an
element too many shows as well as one too few.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from helpers.cases import Case, any_case, cases, geometry_of
from helpers.faces import OPERANDS, FaceCase
from helpers.kernels import HOST, STREAMS, built, free, kernel_of, problem_of, run, run_all
from helpers.profile import FUZZ, compiling, thinned
from topi_ext import backend, compat
from topi_ext.cpu import emit
from topi_ext.cpu.emit import ATTRIBUTES
from topi_ext.cpu.kernels import build_packing, packed_weights
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.parts.panel import fitted_splits
from topi_ext.cpu.plan.direct import DirectPlan, plan_direct, read_through
from topi_ext.cpu.plan.dot_product import DotProductPlan
from topi_ext.cpu.plan.gemm_col2im import GemmCol2imPlan
from topi_ext.cpu.plan.phase_lanes import PhaseLanesPlan
from topi_ext.cpu.plan.runtime_dispatch import RuntimeDispatchPlan
from topi_ext.cpu.plan.valid_taps import ValidTapsPlan
from topi_ext.cpu.plan.wgrad_channels import WgradChannelsPlan
from topi_ext.cpu.plan.wgrad_im2col import WgradIm2colPlan
from topi_ext.cpu.plan.wgrad_positions import WgradPositionsPlan
from topi_ext.cpu.plan.wgrad_winograd import WgradWinogradPlan
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.plan.winograd import WinogradPlan
from topi_ext.cpu.plan.winograd_rows import COMBINED
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import SPATIAL, Layouts
from topi_ext.spec.post_ops import PostOp
from topi_ext.spec.reference import Reference

FACES = list(OPERANDS)
seeds = st.integers(0, 2**32 - 1)


def selected(case: FaceCase, target: tvm.target.Target) -> object:
    """Return the PrimFunc that an adapter gets."""
    return backend.build(
        Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), target
    )


def planned(case: FaceCase, machine: CpuMachine) -> object:
    """The kernel for a machine that need not be this one."""
    problem = problem_of(case)
    return kernel_of(problem, choose(problem, machine))


def check(
    cases: list[FaceCase],
    seed: int = 0,
    target: tvm.target.Target = HOST,
    machine: CpuMachine | None = None,
) -> None:
    """Build all in one module, run one by one; planned for the target unless for a machine."""
    made = [planned(c, machine) if machine else selected(c, target) for c in cases]
    run_all(made, cases, seed, target)


def faces_of(case: Case, **changes: object) -> list[FaceCase]:
    return [FaceCase(face, geometry_of(case), case.n, **changes) for face in FACES]


# ------------------------------------------------------------------------------ geometries

wide = st.one_of(
    *(
        cases(op, rank, channels=(1, 3, 7, 8, 16, 17), groups=(1, 1, 2, 5), size=size)
        for op in ("conv", "conv_transpose")
        for rank, size in ((1, 60), (2, 17), (3, 7))
    )
)


@compiling(3)
@given(some=st.lists(any_case, min_size=4, max_size=4), seed=seeds)
def test_any_geometry(some: list[Case], seed: int) -> None:
    check([face for case in some for face in faces_of(case)], seed)


@compiling(2)
@given(some=st.lists(wide, min_size=3, max_size=3), seed=seeds)
def test_any_geometry_as_wide_as_vectors(some: list[Case], seed: int) -> None:
    check([face for case in some for face in faces_of(case)], seed)


# ------------------------------------------------------------------------------ plans

MACHINES = {
    "sse": CpuMachine(vector_bytes=16, registers=16, threads=2),
    "avx-512": CpuMachine(vector_bytes=64, registers=32, threads=4),
    "one thread": CpuMachine(vector_bytes=32, registers=16, threads=1),
    "64 threads": CpuMachine(vector_bytes=32, registers=16, threads=64),
    "small caches": CpuMachine(vector_bytes=32, registers=16, threads=3, l1=1 << 10, l2=8 << 10),
    "few registers": CpuMachine(vector_bytes=16, registers=6, threads=2, l2=16 << 10),
}

SHAPES = [
    Case("conv_transpose", (13, 11), (4, 4), ins=9, outs=10, stride=(2, 2), padding=(1,) * 4),
    Case("conv_transpose", (9, 21), (3, 2), ins=8, outs=12, groups=2, stride=(2, 3),
         dilation=(1, 2), padding=(0, 2, 1, -1), output_padding=(1, 2)),
    Case("conv_transpose", (17, 18), (3, 3), ins=6, outs=6, groups=6, stride=(2, 2)),
    Case("conv", (70,), (5,), ins=3, outs=18, stride=(3,), padding=(2, 4), dilation=(2,)),
    Case("conv", (5, 6, 9), (3, 2, 3), n=3, ins=5, outs=7, padding=(1, 0, 1) * 2),
    Case("conv_transpose", (7, 19), (2, 2), ins=64, outs=40, stride=(2, 2)),
]  # fmt: skip


def rotated(shapes: list[Case], start: int) -> list[FaceCase]:
    """One face of each shape, another with every start; in a long run all of them."""
    if FUZZ:
        return [face for case in shapes for face in faces_of(case)]
    return [faces_of(case)[(start + i) % len(FACES)] for i, case in enumerate(shapes)]


@pytest.mark.parametrize("machine", MACHINES)
def test_plans_for_any_machine(machine: str) -> None:
    start = list(MACHINES).index(machine)
    check(rotated(SHAPES, start) + rotated(SHAPES, start + 1), machine=MACHINES[machine])


@pytest.mark.parametrize(
    "options",
    [{}, {"mcpu": "x86-64-v3"}, {"mcpu": "x86-64-v2", "num-cores": 1}],
    ids=["no mcpu", "x86-64-v3", "x86-64-v2, one core"],
)
def test_targets_of_this_machine(options: dict) -> None:
    target = tvm.target.Target({"kind": "llvm", **options})
    check(faces_of(SHAPES[0]) + rotated(SHAPES[1:], len(options)), target=target)


BORDERLESS = (
    Case("conv_transpose", (1, 1), (4, 4), 3, ins=2, outs=5),
    Case("conv_transpose", (2, 3, 2), (2, 3, 2), ins=3, outs=4, stride=(2, 3, 2)),
    Case("conv_transpose", (3, 3), (2, 4), ins=2, outs=3, stride=(1, 4), padding=(1, 0, 1, 0)),
    Case("conv_transpose", (1, 1), (4, 4), 2, ins=4, outs=6, groups=2, padding=(1, 0, 1, 1)),
    Case("conv_transpose", (1, 1), (3, 3), 2, ins=3, outs=4, stride=2, padding=1, output_padding=1),
    Case("conv_transpose", (1, 1), (2, 2), 2, ins=3, outs=4, stride=3, output_padding=1),
)
"""Small images of which nothing is cut off, or nothing at the ends of rows, or whose columns are
what is written."""


def small_image_plan(problem: Convolution) -> GemmCol2imPlan:
    """Lanes over weights."""
    g = problem.geometry
    room = problem.n * math.prod(g.y_size), GemmCol2imPlan.elements_held(g)
    return GemmCol2imPlan(problem.n, *room, 4, g.c_per_group, g.k_per_group, 2, 1, parallel=False)


@pytest.mark.parametrize("layout", ["NCHW", "NCWH", "NHWC", "HWNC"])
def test_images_without_a_border(layout: str) -> None:
    """Rows that follow each other in every layout in which they do are written as one."""
    chosen = []
    for case in BORDERLESS:
        order = layout if len(case.size) == 2 else layout.replace("H", "DH")
        layouts = Layouts(order, "OI" + "DHW"[-len(case.size) :], order)
        chosen.append(FaceCase(case.op, geometry_of(case), case.n, layouts=layouts))
    run_all([kernel_of(problem_of(c), small_image_plan(problem_of(c))) for c in chosen], chosen)


@pytest.mark.parametrize("varies", ["C", "H", "CW", "NCHW"])
def test_steps_of_images_without_a_border(varies: str) -> None:
    """Each element meets the element of the operand that is its own."""
    case = FaceCase("conv_transpose", geometry_of(BORDERLESS[0]), 3)
    steps = (PostOp("multiply", "NCHW", varies), PostOp("add", value=1.0))
    problem = replace(problem_of(case), epilogue=steps)
    rng = np.random.default_rng(0)
    data, weight = case.arrays(rng)
    want = case.want(data, weight)
    sizes = dict(zip("NCHW", want.shape))
    factor = rng.standard_normal([sizes[a] if a in varies else 1 for a in "NCHW"])
    kernel = built([kernel_of(problem, small_image_plan(problem))])["f0"]
    out = tvm.runtime.empty(want.shape, "float32")
    kernel(*map(tvm.runtime.tensor, (data, weight, factor.astype("float32"))), out)
    # Two products of float32.
    np.testing.assert_allclose(out.numpy(), want * factor + 1, rtol=1e-5, atol=1e-5)


def may_stream(problem: Convolution) -> bool:
    """Return True if the result may be written by non-temporal stores."""
    return STREAMS and problem.rows_are_runs


@st.composite
def plans(draw: st.DrawFn, problem: Convolution) -> object:
    """Any plan that makes sense for a problem, good or bad."""

    def number(most: int) -> int:
        return draw(st.integers(1, max(1, most)))

    g, lanes = problem.geometry, draw(st.sampled_from([2, 4, 8, 16]))
    parallel = draw(st.booleans())
    if problem.kind == "conv_weight_grad" and draw(st.booleans()):
        c_block = number(g.c_per_group)
        vectors = number(min(4, -(-c_block * g.taps // lanes)))
        k_tile = number(min(g.k_per_group, 4))
        splits = number(min(3, -(-g.k_per_group // k_tile)))
        images = draw(st.sampled_from([i for i in range(1, problem.n + 1) if problem.n % i == 0]))
        return WgradIm2colPlan(images, lanes, c_block, splits, k_tile, vectors, parallel)
    if problem.kind == "conv_transpose" and draw(st.booleans()):
        images = draw(st.sampled_from([i for i in range(1, problem.n + 1) if problem.n % i == 0]))
        c_block, k_block = number(g.c_per_group), number(g.k_per_group)
        m_tile = number(min(4, images * math.prod(g.y_size)))
        vectors = number(min(3, -(-c_block * g.taps // lanes)))
        room = images * math.prod(g.y_size), GemmCol2imPlan.elements_held(g)
        plan = GemmCol2imPlan(images, *room, lanes, c_block, k_block, m_tile, vectors, parallel)
        return replace(plan, ahead=draw(st.integers(0, 2)))
    few = problem.kind == "conv" and problem.weights_are_runs and math.prod(problem.y_sizes) > 0
    if few and draw(st.booleans()):
        m_tile = number(min(3, math.prod(problem.y_sizes)))
        return DotProductPlan(lanes, number(g.k_per_group), number(4), m_tile, parallel)
    no_zeros = max(g.dilation) == 1 and not any(k % s for k, s in zip(g.kernel, g.stride))
    by_phases = problem.kind == "conv_transpose" and g.stride[-1] >= lanes and no_zeros
    if by_phases and min(problem.x_sizes) and draw(st.booleans()):
        c_block = number(g.c_per_group)
        whole, rest = divmod(g.stride[-1], lanes)
        splits = number(whole) if c_block == 1 and not rest else 1
        splits = math.gcd(whole, splits)
        vectors = number(min(3, c_block * -(-g.stride[-1] // (lanes * splits))))
        images, has_one_row = number(problem.n), math.prod(problem.x_sizes[1:-1]) == 1
        chunks = number(min(3, g.k_per_group)) if images == 1 and has_one_row else 1
        streamed = may_stream(problem) and splits == 1 and draw(st.booleans())
        return PhaseLanesPlan(
            images, lanes, c_block, number(4), vectors, parallel, streamed, splits, chunks
        )
    is_plain = all(access.is_plain for access in problem.accesses)
    if problem.kind != "conv_weight_grad" and is_plain and draw(st.booleans()):
        rows = number(problem.positions[1]), number(problem.positions[2])
        vectors = number(min(3, -(-problem.out_channels // lanes)))
        splits = number(min(3, -(-problem.out_channels // (vectors * lanes))))
        depth = number(problem.in_channels)
        return ValidTapsPlan(rows, lanes, vectors, number(4), depth, splits, parallel)
    # Outer axes are cut first; what is cut leaves blocks that are not full.
    block = [1, 1, 1, 1]
    for axis in (3, 2, 1, 0):
        block[axis] = number(problem.positions[axis])
        if block[axis] < problem.positions[axis]:
            break
    plane_per_tap = problem.kind == "conv" and draw(st.booleans())
    no_gaps = not any(access.has_empty_phase for access in problem.accesses)
    if no_gaps and draw(st.booleans()):
        of_face = weight_tiles_plans if problem.kind == "conv_weight_grad" else winograd_plans
        plan = draw(of_face(problem, lanes, parallel))
        kinds = itertools.product(*plan.filters(problem))
        if sum(math.prod(len(f.terms) for f in filters) for filters in kinds) < 99:
            return plan
    window = Window.of(block, read_through(problem, plane_per_tap=plane_per_tap))
    if problem.kind == "conv_weight_grad":
        k_block, c_block = number(g.k_per_group), number(g.c_per_group)
        if draw(st.booleans()):
            vectors = number(min(3, -(-k_block // lanes)))
            c_tile = number(min(c_block, 3))
            tile = c_tile, vectors
            return WgradChannelsPlan(
                window, lanes, k_block, c_block, *tile, parallel, clipped=draw(st.booleans())
            )
        tiles = number(min(k_block, 3)), number(min(c_block, 2)), number(min(g.kernel[-1], 3))
        return WgradPositionsPlan(window, lanes, k_block, c_block, *tiles, parallel)
    channels = number(min(problem.out_channels, 5))
    vectors = number(min(3, -(-window.length // lanes)))
    splits = number(min(3, -(-problem.out_channels // channels)))
    depth, packed = number(problem.in_channels), not problem.weights_are_rows or draw(st.booleans())
    all_phases = problem.transposed and draw(st.booleans())
    return DirectPlan(
        window, lanes, channels, vectors, splits, depth, packed, parallel, plane_per_tap,
        streamed=may_stream(problem) and draw(st.booleans()),
        all_phases=all_phases, shared=number(3),
    )  # fmt: skip


@st.composite
def winograd_plans(
    draw: st.DrawFn, problem: Convolution, lanes: int, parallel: bool
) -> WinogradPlan:
    """Any plan of the kernel that saves products, without a way out by a direct sum."""
    tile = tuple(draw(st.sampled_from(outputs)) for outputs in ((1, 2), (1, 2), (1, 2, 4)))
    channels = draw(st.integers(1, min(problem.out_channels, 5)))
    parts = draw(st.integers(1, min(2, -(-problem.out_channels // channels))))
    blocks = -(-problem.out_channels // (channels * parts))
    vectors, splits, passes = (draw(st.integers(1, most)) for most in (3, min(3, blocks), blocks))
    shares = draw(st.integers(0, 3))
    by_slice = shares > 0 and draw(st.booleans())
    plan = WinogradPlan(
        tile, (1,) * 4, lanes, channels, vectors, 1 if shares else splits, passes, None, parallel,
        parts, shares, by_slice=by_slice, streamed=may_stream(problem) and draw(st.booleans()),
    )  # fmt: skip
    tiles = plan.tiles(problem)
    if shares == 1 and draw(st.booleans()):
        parts = draw(st.integers(1, -(-problem.out_channels // channels)))
        per_task = draw(st.integers(1, parts))
        block = tuple(max(1, count) for count in tiles)
        return replace(plan, block=block, channel_parts=parts, per_task=per_task)
    # Chunks whose taps are combined at once, or some at a time.
    chunks = [
        n
        for n in (1, 2, 3)
        if problem.in_channels % n == 0 and problem.in_channels // n <= COMBINED
    ]
    block = tuple(draw(st.integers(1, max(1, min(n, 9)))) for n in tiles)
    return replace(plan, block=block, chunks=draw(st.sampled_from(chunks or [1])))


@st.composite
def weight_tiles_plans(
    draw: st.DrawFn, problem: Convolution, lanes: int, parallel: bool
) -> WgradWinogradPlan:
    """Yield plans of weight gradients by tiles."""
    tile = tuple(draw(st.sampled_from(outputs)) for outputs in ((1, 2), (1, 2), (1, 2, 4)))
    c, k = problem.geometry.c_per_group, problem.geometry.k_per_group
    c_block, vectors = draw(st.integers(1, c)), draw(st.integers(1, min(3, -(-k // lanes))))
    parts = draw(st.integers(1, min(5, -(-c // c_block) + 1)))
    plan = WgradWinogradPlan(
        tile, (1,) * 4, lanes, c_block, draw(st.integers(1, min(3, c_block))), vectors, None,
        parallel, parts, draw(st.integers(1, 3)),
    )  # fmt: skip
    tiles = plan.tiles(problem)
    return replace(plan, block=tuple(draw(st.integers(1, max(1, min(n, 9)))) for n in tiles))


def layouts_of(rank: int) -> st.SearchStrategy[Layouts]:
    """Rows that are runs, rows that are far apart, channels that are neighbours."""
    spatial, orders = SPATIAL[rank], Layouts.canonical(rank)
    data = st.sampled_from([orders.x, "NC" + spatial[::-1], "N" + spatial + "C"])
    return st.builds(Layouts, data, st.just(orders.w), data)


@pytest.mark.parametrize("face", FACES)
@compiling(3)
@given(data=st.data(), some=st.lists(st.one_of(any_case, wide), min_size=8, max_size=8), seed=seeds)
def test_any_plan(face: str, data, some: list[Case], seed: int) -> None:
    """Blocks, tiles and splits that divide nothing, whatever the planner would have chosen."""
    orders = [data.draw(layouts_of(case.rank)) for case in some]
    chosen = [FaceCase(face, geometry_of(c), c.n, order) for c, order in zip(some, orders)]
    made = [kernel_of(problem_of(c), data.draw(plans(problem_of(c)))) for c in chosen]
    run_all(made, chosen, seed, tiled=True)


@pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3, 3), (2, 2, 2)), ((7, 4, 5), (3, 2, 2)), ((5, 2, 3), (2, 3, 2))]
)
def test_phases_that_lack_taps_of_others(kernel: tuple, stride: tuple) -> None:
    """They share code: along depth where products are saved, along any axis of a direct sum."""
    case = Case("conv_transpose", (4, 5, 6), kernel, ins=5, outs=6, stride=stride, padding=(1,) * 6)
    one = FaceCase("conv_transpose", geometry_of(case), 2)
    problem = problem_of(one)
    window = Window.of((1, 2, 3, 4), problem.accesses)
    plan: list[object] = [DirectPlan(window, 4, 4, 2, 1, 3, shared=n) for n in (1, 2, 3)]
    if not any(access.has_empty_phase for access in problem.accesses):
        of_tiles = WinogradPlan((1, 2, 2), (1, 2, 2, 2), 4, 3, 1, 1, 1, None)
        (depth,), *_ = of_tiles.filters(problem)
        assert len(set(depth.missing)) > 1, "phases along depth have equally many taps"
        shares = replace(of_tiles, position_splits=2, by_slice=True)
        first = replace(
            of_tiles, block=tuple(of_tiles.tiles(problem)), position_splits=1, channel_parts=2
        )
        chunks = replace(of_tiles, chunks=5)
        plan += [of_tiles, shares, first, replace(first, per_task=2), chunks]
    # LLVM takes a second for each plan of 140 taps: every other one, since 27 taps have all.
    plan = thinned(plan, 2) if kernel == (7, 4, 5) else plan
    run_all([kernel_of(problem, each) for each in plan], [one] * len(plan), tiled=True)


def test_chunks_of_input_channels() -> None:
    """Each of some steps in which taps are combined: those of all phases, or of a slice."""
    made, chosen = [], []
    for op, kernel, stride in (("conv", (3, 3), (1, 1)), ("conv_transpose", (4, 3), (2, 2))):
        ins = 2 * 4 * COMBINED
        case = Case(
            op, (6, 7), kernel, 2, ins=ins, outs=10, groups=2, stride=stride, padding=(1,) * 4
        )
        one = FaceCase(op, geometry_of(case), case.n)
        plan = WinogradPlan((1, 2, 2), (1, 1, 2, 3), 8, 3, 1, 1, 1, None)
        for chunks in (2, 4):
            for shares, by_slice in ((0, False), (2, False), (2, True)):
                some = replace(plan, chunks=chunks, position_splits=shares, by_slice=by_slice)
                made.append(kernel_of(problem_of(one), some))
                chosen.append(one)
    run_all(made, chosen)


@pytest.mark.parametrize("tile", [(1, 2, 2), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NCWH", "NHWC"])
def test_tiles_of_a_dilation(layout: str, tile: tuple) -> None:
    """Only those inputs of a row are copied that a phase reads: neighbours in memory or not, near
    enough to read vectors of all or not, of half precision or not."""
    made, chosen = [], []
    for dilation, dtype in itertools.product((2, 3, 5), ("float32", "float16")):
        case = Case(
            "conv", (9, 41), (3, 4), 2, ins=8, outs=9, padding=(2, dilation + 1, 1, 2),
            dilation=(2, dilation),
        )  # fmt: skip
        layouts = Layouts(layout, "OIHW", layout)
        one = FaceCase("conv", geometry_of(case), 2, layouts=layouts, dtypes=(dtype,) * 3)
        plan = WinogradPlan(tile, (1, 1, 2, 3), 8, 3, 1, 1, 1, None)
        made.append(kernel_of(problem_of(one), plan))
        chosen.append(one)
    run_all(made, chosen)


CLIPPED = [
    # Blocks of rows that divide nothing; rows and columns that no tap, or one alone, meets.
    Case("conv", (13, 14), (3, 3), 2, ins=10, outs=44, groups=2, padding=(5, 6, 5, 6),
         dilation=(5, 6)),
    Case("conv", (9, 21), (3, 5), ins=7, outs=19, stride=(2, 3), padding=(4, 9, 3, 12),
         dilation=(4, 7)),
    Case("conv_transpose", (11, 12), (3, 4), 2, ins=9, outs=20, padding=(7, 5, 6, 3),
         dilation=(6, 5), output_padding=(2, 1)),
    Case("conv", (5, 6, 7), (3, 2, 3), ins=6, outs=33, padding=(3, 1, 2) * 2, dilation=(3, 2, 2)),
    Case("conv", (37,), (3,), 2, ins=12, outs=17, padding=(20, 20), dilation=(20,)),
    Case("conv", (3, 3), (3, 3), ins=4, outs=16, padding=(9,) * 4, dilation=(9, 9)),
]  # fmt: skip
"""Much of what their taps reach is padding."""


def clipped_plans(case: FaceCase) -> list[object]:
    """Plans that leave it out: of whole images, and of parts that divide nothing."""
    g, problem = case.geometry, problem_of(case)
    if case.face == "conv_weight_grad":
        window = Window.of((1, *(-(-size // 2) for size in problem.y_sizes[1:])), problem.accesses)
        return [WgradChannelsPlan(window, 8, g.k_per_group, g.c_per_group, 2, 2, clipped=True)]
    _, depth, height, _ = problem.positions
    whole = ValidTapsPlan((depth, height), 8, 1, 3, problem.in_channels, 1)
    return [whole, ValidTapsPlan((-(-depth // 2), -(-height // 3)), 8, 2, 4, 3, 2)]


@pytest.mark.parametrize("prepacked", [False, True], ids=["weights as stored", "packed weights"])
def test_taps_that_meet_only_padding_have_no_effect(prepacked: bool) -> None:
    """Not even where weights are infinite or NaN: no zero of the padding is multiplied."""
    made, rng = [], np.random.default_rng(0)
    for case in CLIPPED:
        one = FaceCase(case.op, geometry_of(case), case.n)
        made += [(one, plan) for plan in clipped_plans(one)]
    problems = [replace(problem_of(one), prepacked=prepacked) for one, _ in made]
    functions = [kernel_of(problem, plan) for problem, (_, plan) in zip(problems, made)]
    if prepacked:
        functions += [build_packing(p, plan) for p, (_, plan) in zip(problems, made)]
    kernels = built(functions)
    for number, (case, plan) in enumerate(made):
        data, weight = case.arrays(rng)
        weight.flat[3], weight.flat[-1] = np.nan, np.inf
        given = weight
        if prepacked:
            packed = packed_weights(problems[number], plan)
            given = np.full(packed.elements, 77, packed.dtype)
            filled = tvm.runtime.tensor(given)
            kernels[f"f{len(made) + number}"](tvm.runtime.tensor(weight), filled)
            given = filled.numpy()
        out = tvm.runtime.tensor(np.zeros(case.shape(case.roles[2]), "float32"))
        kernels[f"f{number}"](tvm.runtime.tensor(data), tvm.runtime.tensor(given), out)
        known = np.isfinite(weight)
        wide = data.astype("float64"), np.where(known, weight, 0).astype("float64")
        want = getattr(Reference(), case.face)(*wide, case.geometry)
        meets = np.ones(data.shape, np.int64), (~known).astype(np.int64)
        is_lost = getattr(Reference(), case.face)(*meets, case.geometry) > 0
        assert not is_lost.all()
        np.testing.assert_array_equal(~np.isfinite(out.numpy()), is_lost)
        # Sums of at most 100 products of float32.
        np.testing.assert_allclose(
            out.numpy()[~is_lost], want[~is_lost], rtol=1e-5, atol=1e-5 * np.abs(want).max()
        )


@pytest.mark.parametrize("layout", ["NCHW", "NCWH", "NHWC"])
def test_clipped_layouts_and_dtypes(layout: str) -> None:
    made, chosen = [], []
    every = itertools.product(CLIPPED[:3], FACES, ("float32", "float64", "float16", "bfloat16"))
    for case, face, dtype in thinned(every, 3, ["NCHW", "NCWH", "NHWC"].index(layout)):
        if face == "conv_transpose" and any(s > 1 for s in geometry_of(case).stride):
            continue
        layouts = Layouts(layout, "HWIO" if layout == "NHWC" else "OIHW", layout)
        one = FaceCase(face, geometry_of(case), case.n, layouts, (dtype,) * 3)
        for plan in clipped_plans(one):
            made.append(kernel_of(problem_of(one), plan))
            chosen.append(one)
    run_all(made, chosen)


@pytest.mark.parametrize("backward", [False, True])
def test_clipped_images_of_any_size(backward: bool) -> None:
    """Tasks of one row, of some and of whole images; images smaller than a dilation; gradients.
    Rows that are runs, and such as NCWH, whose elements a symbolic size lies between."""
    made, runs = [], []
    every = itertools.product(CLIPPED, (1, 2, 40, 10**4))
    for case, room in thinned(every, 3, int(backward)):
        face = case.op if room > 1 or case.transposed else "conv_weight_grad"
        order = "NC" + SPATIAL[case.rank][:: -1 if backward else 1]
        layouts = Layouts(order, Layouts.canonical(case.rank).w, order)
        problem = free(FaceCase(face, geometry_of(case), case.n, layouts))
        plan: object = ValidTapsPlan((1, 1), 8, 1 + room % 3, 3, 5, 2, room=room)
        if face == "conv_weight_grad":
            g, window = problem.geometry, Window.of((1, 2, 3, 5), problem.accesses)
            plan = WgradChannelsPlan(window, 8, g.k_per_group, g.c_per_group, 2, 2, clipped=True)
        made.append(kernel_of(problem, plan))
        for size in (case.size, tuple(max(1, s - 7) for s in case.size), (22, 19, 17)[: case.rank]):
            sized = geometry_of(case.with_(size=size))
            name = f"f{len(made) - 1}"
            runs += [(name, FaceCase(face, sized, n, layouts)) for n in (case.n + 1, 0)]
    kernels, rng = built(made), np.random.default_rng(0)
    for name, case in runs:
        run(kernels[name], case, rng)


@pytest.mark.parametrize("order", ["NCHW", "NCWH", "NHWC"])
def test_weight_gradients_by_channels_of_any_size(order: str) -> None:
    """Blocks of many planes, of whole rows and of parts of one, longer and shorter than squares."""
    made, runs = [], []
    layouts = Layouts(order, "OIHW", order)
    for outs, groups, room in ((11, 1, 400), (6, 3, 60), (19, 1, 12)):
        case = Case("conv", (9, 9), (3, 3), ins=6, outs=outs, groups=groups, padding=(1,) * 4)
        one = FaceCase("conv_weight_grad", geometry_of(case), case.n, layouts)
        problem, g = free(one), one.geometry
        window = Window((1, 1, 1, 1), (1, 1, 1, room))
        plan = WgradChannelsPlan(window, 8, g.k_per_group, g.c_per_group, 2, 2)
        made.append(kernel_of(problem, plan))
        for size in ((2, 2), (1, 5), (3, 3), (7, 4), (5, 8), (4, 13), (9, 17)):
            if room >= 9 * (size[1] + 2):
                sized = FaceCase(one.face, geometry_of(case.with_(size=size)), 2, layouts)
                runs.append((f"f{len(made) - 1}", sized))
    kernels, rng = built(made), np.random.default_rng(0)
    for name, case in runs:
        run(kernels[name], case, rng)


def test_clipped_images_without_positions() -> None:
    """Padded data may be a window's length less one: the rows of a task divide by neither size."""
    case = Case("conv", (15, 14), (3, 3), ins=4, outs=6, padding=(10,) * 4, dilation=(12, 12))
    plan = ValidTapsPlan((1, 1), 8, 1, 3, 4, 1, room=40)
    kernel = built([kernel_of(free(FaceCase("conv", geometry_of(case), case.n)), plan)])["f0"]
    for size in ((4, 9), (9, 4), (4, 4)):
        shapes = (2, 4, *size), (6, 4, 3, 3), (2, 6, *(s - 4 for s in size))
        kernel(*(tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes))


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_gradients_of_taps_that_meet_only_padding_are_zero(what: float) -> None:
    """Whatever y holds where they do."""
    some = [FaceCase("conv_weight_grad", geometry_of(c), c.n) for c in CLIPPED if c.op == "conv"]
    kernels = built([kernel_of(problem_of(one), *clipped_plans(one)) for one in some])
    rng = np.random.default_rng(0)
    for number, case in enumerate(some):
        x, y = case.arrays(rng)
        y.flat[0] = what
        out = tvm.runtime.tensor(np.zeros(case.shape("w"), "float32"))
        kernels[f"f{number}"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), out)
        meets = np.ones(x.shape, np.int64), (~np.isfinite(y)).astype(np.int64)
        is_lost = Reference().conv_weight_grad(*meets, case.geometry) > 0
        np.testing.assert_array_equal(~np.isfinite(out.numpy()), is_lost)


def test_weights_transposed_in_registers() -> None:
    """Squares of four, eight and sixteen, of blocks that are not whole, and of more than one copy.

    Not all kernels divide into squares, nor channels into blocks, nor input channels into chunks.
    """
    made, chosen = [], []
    for face, kernel, ins, outs, *dtype in (
        ("conv", (3, 3), 21, 37),
        ("conv", (3, 3), 21, 37, "float16"),
        ("conv_transpose", (4, 4), 37, 21),
        ("conv_transpose", (4, 4), 37, 21, "bfloat16"),
        ("conv_transpose", (2, 2), 67, 35),
        ("conv", (5, 4, 3), 5, 13),
        ("conv_transpose", (1, 37), 29, 19),
    ):
        size = (2,) * (len(kernel) - 2) + (6, 41)
        case = Case(
            face,
            size,
            kernel,
            ins=2 * ins,
            outs=2 * outs,
            groups=2,
            stride=(2, 1, 2)[-len(kernel) :],
            padding=tuple(k // 2 for k in kernel) * 2,
        )
        one = FaceCase(case.op, geometry_of(case), case.n, None, tuple(dtype or ["float32"]) * 3)
        problem = problem_of(one)
        for lanes, channels in thinned(((16, 16), (16, 9), (8, 8)), 2, len(made) // 2 % 2):
            window = Window.of([1, *problem.positions[1:]], problem.accesses)
            plan = DirectPlan(window, lanes, channels, 1, 2, problem.in_channels)
            assert plan.copies_squares(problem)
            made.append(kernel_of(problem, plan))
            chosen.append(one)
            tiles = WinogradPlan((1, 1, 2), (1, 1, 2, 3), lanes, channels, 1, 1, 1, None)
            made.append(kernel_of(problem, replace(tiles, channel_parts=2, position_splits=1)))
            chosen.append(one)
    run_all(made, chosen)


def test_parts_of_weight_gradients_without_channels() -> None:
    """Parts have room for two blocks of channels: three take them all, and the fourth has none."""
    made, chosen = [], []
    for ins, shares in itertools.product((12, 11, 6), (1, 2)):
        case = Case("conv", (9, 8), (3, 3), ins=ins, outs=9, padding=(1,) * 4)
        one = FaceCase("conv_weight_grad", geometry_of(case), case.n)
        plan = WgradWinogradPlan(
            (1, 2, 2), (1, 1, 2, 3), 8, 2, 2, 1, None, channel_parts=4, position_splits=shares
        )  # fmt: skip
        made.append(kernel_of(problem_of(one), plan))
        chosen.append(one)
    run_all(made, chosen)


def test_slices_of_the_kernel_and_inputs_combined_once() -> None:
    """Several parts in a task, which do not divide evenly, of phases of more than one kind."""
    made, chosen = [], []
    for kernel, stride, dilation in (((3, 4), (2, 2), (1, 1)), ((4, 3), (2, 2), (3, 1))):
        case = Case(
            "conv_transpose", (5, 6), kernel, 2, ins=10, outs=12, groups=2, stride=stride,
            dilation=dilation, padding=(1,) * 4,
        )  # fmt: skip
        one = FaceCase(case.op, geometry_of(case), case.n)
        problem = problem_of(one)
        for by_slice in (False, True):
            plan = WinogradPlan(
                (1, 2, 2), (1,) * 4, 8, 2, 1, 1, 1, None, channel_parts=3, position_splits=1,
                per_task=2,
                by_slice=by_slice,
            )  # fmt: skip
            made.append(kernel_of(problem, replace(plan, block=plan.tiles(problem))))
            chosen.append(one)
    run_all(made, chosen)


def test_lanes_over_phases() -> None:
    """Strides that no vector divides, sizes that no tile divides, padding of either sign."""
    made, chosen = [], []
    for case in (
        Case("conv_transpose", (9,), (16,), 2, ins=7, outs=5, stride=(8,), padding=(4, 4)),
        Case("conv_transpose", (9,), (24,), ins=7, outs=5, stride=(8,), padding=(-3, 9),
             output_padding=(3,)),
        Case("conv_transpose", (5, 9), (8, 20), 3, ins=6, outs=4, groups=2, stride=(4, 10),
             padding=(2, 5, 2, 5), output_padding=(1, 0)),
        Case("conv_transpose", (5, 9), (3, 9), 3, ins=6, outs=4, stride=(3, 9),
             padding=(0, 14, 1, -2)),
        Case("conv_transpose", (3, 4, 5), (4, 3, 8), 2, ins=4, outs=3, stride=(2, 1, 8),
             padding=(1, 1, 0) * 2),
    ):  # fmt: skip
        one = FaceCase(case.op, geometry_of(case), case.n)
        problem = problem_of(one)
        plans = [PhaseLanesPlan(2, 8, 2, 4, 3), PhaseLanesPlan(1, 4, 1, 3, 1, parallel=False)]
        if one.geometry.stride[-1] == 8:
            # Two vectors of phases; of seven channels of y four, then three.
            chunks = 2 if math.prod(problem.x_sizes[1:-1]) == 1 else 1
            plans.append(PhaseLanesPlan(1, 4, 1, 3, 1, phase_splits=2, chunks=chunks))
        for plan in plans:
            made.append(kernel_of(problem, plan))
            chosen.append(one)
    run_all(made, chosen)


def test_no_kernel_where_there_is_none() -> None:
    case = faces_of(SHAPES[0])[0]
    assert selected(case, None) is None
    assert selected(case, tvm.target.Target({"kind": "opencl"})) is None


def test_equal_requests_give_the_same_object() -> None:
    """Identical geometries in one module are built once."""
    for one, other in zip(faces_of(SHAPES[1]), faces_of(SHAPES[1].with_())):
        assert selected(one, HOST) is not None
        assert selected(one, HOST).same_as(selected(other, HOST))
    n = compat.tir.Var("n", "int64")
    m = compat.tir.Var("m", "int64")
    g, orders = one.geometry, one.orders
    symbolic = [
        backend.build(Convolution.of("conv", g, orders, size + 1, ("float32",) * 3), HOST)
        for size in (n, m)
    ]
    assert symbolic[0].same_as(symbolic[1])


@pytest.mark.parametrize("face", FACES)
def test_kernels_are_parallel_and_vectorised(face: str) -> None:
    """Kernels are parallel and vectorized, which stock TVM's code for a CPU is not; values alone
    would not show it."""
    case = faces_of(SHAPES[0])[FACES.index(face)]
    machine = CpuMachine(vector_bytes=32, registers=16, threads=2)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    code = built([planned(case, machine)], target).mod.inspect_source("ll")
    assert "TVMBackendParallelLaunch" in code
    arithmetic = [line for line in code.splitlines() if "<8 x float>" in line]
    assert any("fmul" in line or "fma" in line or "fmuladd" in line for line in arithmetic)


# ------------------------------------------------------------------------------ layouts, dtypes


def test_layouts_of_the_weight_gradient() -> None:
    """Every permutation of each operand; the adapters' tests do the same with the other faces."""
    case = Case("conv_transpose", (9, 8), (3, 2), ins=4, outs=6, groups=2, stride=(2, 1))
    data = ["".join(p) for p in itertools.permutations("NCHW")]
    kernel = ["".join(p) for p in itertools.permutations("OIHW")]
    layouts = [
        Layouts(data[i], kernel[(5 * i + 3) % 24], data[(7 * i + 11) % 24]) for i in range(24)
    ]
    check([FaceCase("conv_weight_grad", geometry_of(case), 3, some) for some in layouts])


@pytest.mark.parametrize("face", FACES if FUZZ else ["conv_weight_grad"])
def test_dtypes(face: str) -> None:
    dtypes = [
        ("float64",) * 3,
        ("float16",) * 3,
        ("bfloat16",) * 3,
        ("bfloat16", "bfloat16", "float32"),
        ("float32", "float32", "float16"),
        ("float32", "float32", "float64"),
        ("float16", "float32", "float32"),
        ("int8", "int8", "int8"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
        ("int16", "int16", "int64"),
    ]
    big = Case("conv_transpose", (9, 10), (3, 4), ins=70, outs=19, stride=(2, 2), padding=(1,) * 4)
    depthwise = Case("conv_transpose", (9, 19), (3, 4), ins=6, outs=6, groups=6, stride=(2, 1))
    check([FaceCase(face, geometry_of(c), c.n, None, d) for c in (big, depthwise) for d in dtypes])


def test_dtypes_of_few_positions() -> None:
    """Weights are read as vectors of the dtype that they have; 84 of them fill no whole number."""
    floats = ("float32",) * 3, ("float64",) * 3, ("float16",) * 3, ("bfloat16",) * 3
    mixed = ("bfloat16", "float16", "float32"), ("int8", "int8", "int32"), ("int32",) * 3
    mixed += (("bfloat16", "bfloat16", "float64"), ("float64", "float32", "float64"))
    case = Case("conv", (3, 2), (2, 2), n=1, ins=21, outs=37)
    some = [FaceCase("conv", geometry_of(case), 1, None, d) for d in (*floats, *mixed)]
    machine = CpuMachine.of_features(*compat.llvm_features(HOST))
    assert all(isinstance(choose(problem_of(one), machine), DotProductPlan) for one in some)
    check(some)


# ------------------------------------------------------------------------------ not a number


@pytest.mark.parametrize("face", ["conv", "conv_transpose"])
def test_not_a_number_in_the_data_goes_only_where_it_meets(face: str) -> None:
    """Lanes that are computed and dropped must not spread it, nor data that no tap reads."""
    shapes = [
        Case("conv_transpose", (9, 10), (3, 2), ins=3, outs=4, stride=(2, 3), padding=(1,) * 4),
        Case("conv", (19, 10), (2, 3), ins=4, outs=3, stride=(3, 2), padding=(0, 1, -2, -1)),
        Case("conv", (5, 5), (3, 3), ins=20, outs=6, stride=(2, 2), padding=(1,) * 4),
    ]
    some = [FaceCase(face, geometry_of(c), 2) for c in shapes]
    kernels, rng = built([selected(case, HOST) for case in some]), np.random.default_rng(0)
    for number, case in enumerate(some):
        data, weight = case.arrays(rng)
        for place in (0, 7, data.size // 2, -1):
            poisoned = data.copy()
            poisoned.flat[place] = np.nan
            out = tvm.runtime.tensor(np.zeros(case.shape(case.roles[2]), "float32"))
            kernels[f"f{number}"](tvm.runtime.tensor(poisoned), tvm.runtime.tensor(weight), out)
            meets = np.isnan(poisoned).astype(np.int64), np.ones(weight.shape, np.int64)
            want = getattr(Reference(), face)(*meets, case.geometry) > 0
            np.testing.assert_array_equal(np.isnan(out.numpy()), want)


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_not_a_number_in_x_goes_only_to_the_weights_that_meet_it(what: float) -> None:
    """Through each kernel of the weight gradient, from every corner of x and its middle."""
    shapes = [
        Case("conv", (9, 21), (3, 3), ins=4, outs=4, groups=4, padding=(1,) * 4),
        Case(
            "conv", (19, 17), (2, 3), ins=2, outs=2, groups=2, stride=(3, 2), padding=(0, 1, 2, 0)
        ),
        Case("conv", (12, 12), (3, 3), n=2, ins=40, outs=64, padding=(1,) * 4),
        Case("conv", (4, 4), (4, 4), n=2, ins=40, outs=64, stride=(2, 2), padding=(1,) * 4),
    ]
    some = [FaceCase("conv_weight_grad", geometry_of(c), c.n) for c in shapes]
    machine = CpuMachine.of_features(*compat.llvm_features(HOST))
    used = {type(choose(problem_of(case), machine)) for case in some}
    assert used == {WgradPositionsPlan, WgradChannelsPlan, WgradIm2colPlan}
    kernels, rng = built([selected(case, HOST) for case in some]), np.random.default_rng(0)
    for number, case in enumerate(some):
        x, y = case.arrays(rng)
        width = x.shape[-1]
        for place in (0, 5, width - 1, width, x.size // 2, -width, -1):
            poisoned = x.copy()
            poisoned.flat[place] = what
            out = tvm.runtime.tensor(np.zeros(case.shape("w"), "float32"))
            kernels[f"f{number}"](tvm.runtime.tensor(poisoned), tvm.runtime.tensor(y), out)
            meets = (~np.isfinite(poisoned)).astype(np.int64), np.ones(y.shape, np.int64)
            want = Reference().conv_weight_grad(*meets, case.geometry) > 0
            np.testing.assert_array_equal(~np.isfinite(out.numpy()), want)
            clean = Reference().conv_weight_grad(x.astype(np.float64), y, case.geometry)
            np.testing.assert_allclose(out.numpy()[~want], clean[~want], rtol=1e-4, atol=1e-4)


FEWER_PRODUCTS = [
    FaceCase(c.op, geometry_of(c), c.n)
    for c in (
        Case("conv", (41, 50), (3, 3), 3, ins=32, outs=33, padding=(1,) * 4),
        Case("conv", (30, 203), (3, 4), ins=64, outs=66, padding=(1, 3, 1, 3), dilation=(1, 2)),
        Case("conv_transpose", (963,), (25,), 2, ins=64, outs=66, stride=4, padding=11),
        Case("conv", (33, 41), (4, 3), ins=64, outs=96, stride=(2, 1), dilation=(1, 2)),
        Case(
            "conv_transpose", (16, 16), (4, 4), 4, ins=96, outs=64, stride=(2, 2), padding=(1,) * 4
        ),
        Case("conv_transpose", (32, 31), (3, 3), ins=256, outs=130, stride=(2, 2)),
        Case("conv", (4, 6), (3, 3), 4, ins=128, outs=250, padding=(1,) * 4),
    )
]
"""The second and third compute four outputs at a time.  The last one combines all its inputs before
its taps, that before it has chunks of them."""


def fewer_products(case: FaceCase, *, prepacked: bool = False) -> tuple[Convolution, WinogradPlan]:
    """The problem, and its plan if it is the one that is meant here."""
    problem = replace(problem_of(case), prepacked=prepacked)
    plan = choose(problem, CpuMachine(vector_bytes=32, threads=2))
    assert isinstance(plan, WinogradPlan), case
    assert plan.inputs_first == (case is FEWER_PRODUCTS[-1] and not prepacked)
    assert (plan.tile[-1] == 4) == (case in FEWER_PRODUCTS[1:3])
    return problem, replace(plan, chunks=2 if case is FEWER_PRODUCTS[-2] else 1)


@pytest.mark.parametrize("prepacked", [False, True], ids=["weights as stored", "packed weights"])
def test_infinity_and_overflow_are_those_of_a_direct_sum(prepacked: bool) -> None:
    """Minimal filtering adds inputs or taps, whose sums could overflow or turn infinity into
    NaN."""
    made = {}
    cases = thinned(FEWER_PRODUCTS, 2) if prepacked else FEWER_PRODUCTS
    for number, case in enumerate(cases):
        problem, plan = fewer_products(case, prepacked=prepacked)
        made[f"f{number}"] = kernel_of(problem, plan)
        if prepacked:
            made[f"p{number}"] = build_packing(problem, plan)
    named = {name: f.with_attr("global_symbol", name) for name, f in made.items()}
    kernels, rng = tvm.compile(tvm.IRModule(named), HOST), np.random.default_rng(0)
    for number, case in enumerate(cases):
        data, weight = case.arrays(rng)
        weight = weight / 100
        # Neighbours whose sum is too large for float32, though what they are multiplied by is not.
        large = np.finfo("float32").max
        for values, index in (
            ([np.inf], 5), ([-np.inf], -1), ([np.nan], 0), ([large, large], data.size // 2 + 3),
            ([], 0),
        ):  # fmt: skip
            x = data.copy()
            for i, value in enumerate(values):
                x.flat[index + i] = value
            given = tvm.runtime.tensor(weight)
            if prepacked:
                elements = packed_weights(*fewer_products(case, prepacked=True)).elements
                given = tvm.runtime.tensor(np.full(elements, 99, "float32"))
                kernels[f"p{number}"](tvm.runtime.tensor(weight), given)
            out = tvm.runtime.tensor(np.zeros(case.shape(case.roles[2]), "float32"))
            kernels[f"f{number}"](tvm.runtime.tensor(x), given, out)
            face = getattr(Reference(), case.face)
            with np.errstate(invalid="ignore"):
                want = face(x.astype("float64"), weight.astype("float64"), case.geometry)
            # As test_any_geometry allows; float32 inputs of 3e38 leave no room beside them.
            scale = np.abs(want[np.isfinite(want)]).max()
            np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-6 * scale)


def test_saved_products_cost_no_accuracy() -> None:
    """The error against float64 is at most that of the direct kernel: sums are shorter."""
    rng = np.random.default_rng(0)
    made = []
    for case in FEWER_PRODUCTS:
        problem, plan = fewer_products(case)
        made += [kernel_of(problem, plan), kernel_of(problem, plan.direct)]
    kernels = built(made)
    for number, case in enumerate(FEWER_PRODUCTS):
        operands = case.arrays(rng)
        want = getattr(Reference(), case.face)(
            *(a.astype("float64") for a in operands), case.geometry
        )
        errors = []
        for kernel in (kernels[f"f{2 * number}"], kernels[f"f{2 * number + 1}"]):
            out = tvm.runtime.tensor(np.zeros(case.shape(case.roles[2]), "float32"))
            kernel(*map(tvm.runtime.tensor, operands), out)
            errors.append(np.sqrt(np.mean((out.numpy() - want) ** 2)))
        # Twice: for rounding, which varies with the data.
        assert errors[0] <= 2 * errors[1], case


WEIGHT_TILES = [
    FaceCase("conv_weight_grad", geometry_of(c), c.n)
    for c in (
        Case("conv", (7, 9), (3, 3), 2, ins=96, outs=104, padding=(1,) * 4),
        Case("conv", (56, 43), (4, 3), 4, ins=64, outs=98, groups=2, stride=(2, 1)),
        Case("conv", (4096,), (11,), ins=64, outs=130, padding=5),
        Case("conv", (26, 25), (3, 3), ins=160, outs=160, dilation=(2, 3), padding=(2, 3, 2, 3)),
    )
]
"""All tiles at once; many blocks of them; four outputs at a time; many phases, and some of the
channels at a time."""


def weight_tiles_of(case: FaceCase) -> tuple[Convolution, WgradWinogradPlan]:
    """The problem, and its plan if it is the one that is meant here."""
    problem = problem_of(case)
    plan = choose(problem, CpuMachine(vector_bytes=32, threads=2))
    assert isinstance(plan, WgradWinogradPlan), case
    assert (plan.passes(problem) == 1) == (case is WEIGHT_TILES[0])
    assert (plan.tile[-1] == 4) == (case is WEIGHT_TILES[2])
    return problem, replace(plan, channel_parts=3) if case is WEIGHT_TILES[-1] else plan


def test_weight_gradients_of_infinity_and_overflow_are_those_of_a_direct_sum() -> None:
    kernels = built([kernel_of(*weight_tiles_of(case)) for case in WEIGHT_TILES])
    rng, large = np.random.default_rng(0), np.finfo("float32").max
    for number, case in enumerate(WEIGHT_TILES):
        x, y = case.arrays(rng)
        y = y / 100
        # At the border, where taps reach into the padding, y times zero is NaN, as in PyTorch.
        inside = y.size - y.shape[-1] * 4 + y.shape[-1] // 2
        for which, values, index in (
            (0, [np.inf], 5), (0, [np.nan], -1), (0, [large, large], x.size // 2 + 3),
            (1, [-np.inf], inside), (1, [np.nan], inside), (0, [], 0),
        ):  # fmt: skip
            given = [x.copy(), y.copy()]
            for i, value in enumerate(values):
                given[which].flat[index + i] = value
            out = tvm.runtime.tensor(np.zeros(case.shape("w"), "float32"))
            kernels[f"f{number}"](*map(tvm.runtime.tensor, given), out)
            with np.errstate(invalid="ignore"):
                wide = (a.astype("float64") for a in given)
                want = Reference().conv_weight_grad(*wide, case.geometry)
            # Sums of up to 4,000 terms, one for each lane.
            scale = np.abs(want[np.isfinite(want)]).max()
            np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=4e-6 * scale)


def test_weight_gradients_from_fewer_products_cost_no_accuracy() -> None:
    """The error against float64 is that of another kernel that adds up one sum for each lane."""
    made = []
    for case in WEIGHT_TILES:
        problem, plan = weight_tiles_of(case)
        g, window = problem.geometry, plan.direct.window
        direct = WgradChannelsPlan(window, plan.lanes, g.k_per_group, g.c_per_group, 2, 1)
        made += [kernel_of(problem, plan), kernel_of(problem, direct)]
    kernels, rng = built(made), np.random.default_rng(0)
    for number, case in enumerate(WEIGHT_TILES):
        operands = case.arrays(rng)
        wide = (a.astype("float64") for a in operands)
        want = Reference().conv_weight_grad(*wide, case.geometry)
        errors = []
        for kernel in (kernels[f"f{2 * number}"], kernels[f"f{2 * number + 1}"]):
            out = tvm.runtime.tensor(np.zeros(case.shape("w"), "float32"))
            kernel(*map(tvm.runtime.tensor, operands), out)
            errors.append(np.sqrt(np.mean((out.numpy() - want) ** 2)))
        # A half more: for rounding, which varies with the data.
        assert errors[0] <= 1.5 * errors[1], (case, errors)


def test_empty_batch() -> None:
    check(faces_of(SHAPES[0].with_(n=0)))


# ------------------------------------------------------------------------------ symbolic sizes


def test_symbolic_sizes_bind_to_the_operands() -> None:
    """One kernel for every batch and every size, small ones and large ones."""
    kernels, runs = {}, []
    for number, case in enumerate(SHAPES):
        # Gathers with three symbolic sizes take long to build; the adapters' tests have two.
        faces = thinned(FACES, 2, number % 2) if len(case.kernel) < 3 or FUZZ else FACES[2:]
        for face in faces:
            name = f"f{len(kernels)}"
            g = geometry_of(case)
            x = [compat.tir.Var(f"x{i}", "int64") for i in range(g.rank)]
            y = [compat.tir.Var(f"y{i}", "int64") for i in range(g.rank)]
            n = compat.tir.Var("n", "int64")
            free = replace(g, x_size=tuple(x), y_size=tuple(y))
            orders = Layouts.canonical(g.rank)
            func = backend.build(Convolution.of(face, free, orders, n, ("float32",) * 3), HOST)
            kernels[name] = func.with_attr("global_symbol", name)
            for grow, batch in ((0, 2), (1, 1), (2, 3), (9, 1), (31, 2)):
                size = tuple(s + grow for s in case.size)
                runs.append((name, FaceCase(face, geometry_of(case.with_(size=size)), batch)))
            small = tuple(
                max(1, d * (k - 1) + 1 - b - a) if case.op == "conv" else 1
                for k, d, b, a in zip(
                    case.kernel, case.dilation, case.padding, case.padding[g.rank :]
                )
            )
            try:
                runs.append((name, FaceCase(face, geometry_of(case.with_(size=small)), 1)))
            except ValueError:
                assert case.transposed
    module, rng = tvm.compile(tvm.IRModule(kernels), HOST), np.random.default_rng(0)
    for name, case in runs:
        run(module[name], case, rng)


@st.composite
def plans_of_any_size(draw: st.DrawFn, case: FaceCase) -> object:
    """Any plan that makes sense for symbolic sizes; of two kernels each serves some sizes."""
    known, room = problem_of(case), draw(st.integers(1, 40))
    plan = draw(plans(known))
    if isinstance(plan, (WinogradPlan, WgradWinogradPlan)):
        plan = replace(plan, block=(1, 1, 1, room))
    if isinstance(plan, WinogradPlan):
        return replace(
            plan, channel_splits=1, per_task=1, streamed=False, tasks=draw(st.integers(1, 5))
        )
    if isinstance(plan, PhaseLanesPlan):
        return replace(plan, images=1, chunks=1, streamed=False)
    if isinstance(plan, WgradChannelsPlan):
        return replace(plan, parallel=True)
    if isinstance(plan, (DotProductPlan, GemmCol2imPlan, ValidTapsPlan, WgradIm2colPlan)):
        if isinstance(plan, GemmCol2imPlan):
            held = draw(st.sampled_from([plan.held, 2000]))
            plan = replace(plan, positions=room, held=held)
        elif isinstance(plan, ValidTapsPlan):
            plan = replace(plan, rows=(1, 1), parallel=True, room=room)
        else:
            plan = replace(plan, room=room)
        nominal = choose(replace(free(case), prepacked=True), MACHINES["sse"])
        large = nominal.large if isinstance(nominal, RuntimeDispatchPlan) else nominal
        # Of images without positions none is planned, and TVM divides by a size that must be zero.
        limits = (st.none() | st.integers(least, 10 * room) for least in (0, 1))
        return RuntimeDispatchPlan(plan, large, *map(draw, limits))
    return choose(free(case), draw(st.sampled_from(list(MACHINES.values()))))


@pytest.mark.parametrize("face", FACES)
@compiling(2)
@given(data=st.data(), some=st.lists(st.one_of(any_case, wide), min_size=4, max_size=4), seed=seeds)
def test_any_plan_of_any_size(face: str, data, some: list[Case], seed: int) -> None:
    """Rooms, shares and thresholds that fit nothing; each kernel runs three sizes."""
    orders = [data.draw(layouts_of(case.rank)) for case in some]
    chosen = [FaceCase(face, geometry_of(c), c.n, order) for c, order in zip(some, orders)]
    plan = [data.draw(plans_of_any_size(case)) for case in chosen]
    kernels = built([kernel_of(free(c), p) for c, p in zip(chosen, plan)])
    rng = np.random.default_rng(seed)
    for number, case in enumerate(some):
        for grow, n in ((0, case.n), (3, 1), (11, 3)):
            size = tuple(length + grow for length in case.size)
            grown = replace(chosen[number], geometry=geometry_of(case.with_(size=size)), n=n)
            run(kernels[f"f{number}"], grown, rng, tiled=True)


def test_rooms_that_an_image_does_not_fit() -> None:
    """The workspace limit excludes the smaller of two kernels; sums go on from one block to the
    next."""
    up = Case("conv_transpose", (5, 5), (3, 3), ins=4, outs=3, stride=(2, 2))
    small = GemmCol2imPlan(1, 8, 2000, 8, 3, 4, 2, 1)
    large = choose(
        replace(free(FaceCase("conv_transpose", geometry_of(up), 1)), prepacked=True),
        MACHINES["sse"],
    )
    line = Case("conv", (20,), (3,), ins=4, outs=5)
    gradient = FaceCase("conv_weight_grad", geometry_of(line), 1)
    # All nominal positions of one image are a single block.
    problem = replace(free(gradient), n=1)
    tiles = WgradWinogradPlan((1, 1, 2), (1, 1, 1, 64), 8, 4, 2, 1, None)
    assert tiles.passes(problem) == 1
    made = [
        kernel_of(
            free(FaceCase("conv_transpose", geometry_of(up), 1)), RuntimeDispatchPlan(small, large)
        ),
        kernel_of(problem, tiles),
    ]
    kernels, rng = built(made), np.random.default_rng(0)
    run(kernels["f0"], FaceCase("conv_transpose", geometry_of(up), 3), rng)
    for size in (20, 400):
        grown = geometry_of(line.with_(size=(size,)))
        run(kernels["f1"], FaceCase("conv_weight_grad", grown, 1), rng, tiled=True)


def test_no_more_splits_than_share_the_work_evenly() -> None:
    """Four tasks on two threads take no more splits than needed, because each split packs the same
    data again."""
    tasks = compat.tir.Var("tasks", "int64")
    with emit.kernel(ATTRIBUTES) as made:
        shapes = (
            emit.argument("tasks", "W", [tasks], "int64"),
            emit.argument("out", "W", [1], "int64"),
        )
        with emit.body(*shapes) as (_, out):
            emit.store(out, 0, fitted_splits(tasks, 4, 7))
    count, found = built(made)["f0"], {}
    for number in (1, 2, 3, 4, 5):
        out = tvm.runtime.tensor(np.zeros(1, "int64"))
        count(tvm.runtime.tensor(np.zeros(number, "int64")), out)
        found[number] = int(out.numpy()[0])
    assert found == {1: 2, 2: 1, 3: 2, 4: 1, 5: 1}


def test_rows_dealt_out_to_all_residues() -> None:
    """Residues of which some have an element more; rows of some vectors and of less than one."""
    made, cases = [], []
    for stride, kernel, dilation in ((2, 3, 1), (2, 2, 3), (3, 4, 2), (3, 2, 1), (4, 5, 1)):
        for before in {1, stride - 1}:
            case = Case(
                "conv", (3, 9), (1, kernel), outs=2, stride=(1, stride), dilation=(1, dilation),
                padding=(0, before, 0, stride - before),
            )  # fmt: skip
            cases.append(case)
            problem = free(FaceCase("conv", geometry_of(case), 1))
            made.append(kernel_of(problem, plan_direct(problem, MACHINES["sse"])[1]))
    kernels, rng = built(made), np.random.default_rng(0)
    for number, case in enumerate(cases):
        for width in (9, *range(20, 24), *range(40, 44), 90):
            grown = geometry_of(case.with_(size=(3, width)))
            run(kernels[f"f{number}"], FaceCase("conv", grown, 1), rng)


# ------------------------------------------------------------------------------ threads

THREADED = """
import sys
import numpy as np, tvm
module = tvm.runtime.load_module(sys.argv[1])
arrays = np.load(sys.argv[2])
results = {}
for name in sorted({key.split("_")[0] for key in arrays}):
    a, b, out = (tvm.runtime.tensor(arrays[f"{name}_{i}"]) for i in range(3))
    module[name](a, b, out)
    first = out.numpy()
    module[name](a, b, out)
    assert first.tobytes() == out.numpy().tobytes(), f"{name}: two runs differ"
    results[name] = first
np.savez(sys.argv[3], **results)
"""


def test_threads(tmp_path: Path, rng: np.random.Generator) -> None:
    """Kernels planned for 1 or for 8 cores, run by 1, 2 and 4 threads: right and repeatable."""
    some = [face for case in SHAPES for face in faces_of(case)]
    machines = [CpuMachine(vector_bytes=32, threads=t, l2=32 << 10) for t in (1, 8)]
    pairs = list(zip(some, itertools.cycle(machines)))
    module = built([planned(*pair) for pair in pairs])
    library = tmp_path / "kernels.so"
    module.export_library(str(library))
    arrays, operands = {}, []
    for number, (case, _) in enumerate(pairs):
        a, b = case.arrays(rng)
        operands.append((a, b))
        out = np.full(case.stored_shape(case.roles[2]), 77, "float32")
        for i, array in enumerate((a, b, out)):
            arrays[f"f{number}_{i}"] = array
    np.savez(tmp_path / "in.npz", **arrays)
    for threads in (1, 2, 4):
        result = tmp_path / f"out{threads}.npz"
        subprocess.run(
            [sys.executable, "-c", THREADED, library, tmp_path / "in.npz", result],
            env={**os.environ, "TVM_NUM_THREADS": str(threads)},
            check=True,
        )
        got = np.load(result)
        for number, (case, _) in enumerate(pairs):
            case.check(got[f"f{number}"], *operands[number])
