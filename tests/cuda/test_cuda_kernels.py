# SPDX-License-Identifier: Apache-2.0
"""The kernels for CUDA: every plan, rank, dtype and edge, emulated, against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

import cuda_emulator
from helpers import quantized
from helpers.cases import Case, any_case, geometry_of
from helpers.compare import numpy_dtype
from helpers.emulated import BACKEND, ORDERS, check, emulated, problem_of, result_of
from helpers.faces import FaceCase
from helpers.profile import compiling
from topi_ext.backend import workspace_bytes
from topi_ext.cuda.kernels import build_packing, packed_weights
from topi_ext.cuda.plan.direct import DirectPlan
from topi_ext.cuda.plan.implicit_gemm import ImplicitGemmPlan
from topi_ext.cuda.plan.implicit_gemm_mma import ImplicitGemmMmaPlan
from topi_ext.cuda.plan.tiles import Tile
from topi_ext.cuda.plan.wgrad_direct import WgradDirectPlan
from topi_ext.cuda.plan.wgrad_gemm import WgradGemmPlan
from topi_ext.cuda.plan.wgrad_mma import WgradMmaPlan
from topi_ext.cuda.registry import KERNELS
from topi_ext.cuda.select.choose import choose
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import SPATIAL, Layouts
from topi_ext.spec.post_ops import PostOp

GATHERS = ("conv", "conv_transpose")

CASES = {
    "stride above kernel": Case("conv_transpose", (5, 6), (2, 1), ins=9, outs=5, stride=(3, 4),
                                output_padding=(2, 1)),
    "tails": Case("conv_transpose", (13, 11), (4, 4), ins=9, outs=10, stride=(2, 2),
                  padding=(1,) * 4),
    "groups, asymmetric and negative padding": Case(
        "conv_transpose", (9, 10), (3, 2), ins=16, outs=32, groups=2, stride=(2, 3),
        dilation=(1, 2), padding=(0, 2, 1, -1), output_padding=(1, 2)),
    "phases that dilation leaves out": Case("conv_transpose", (6, 5), (3, 3), ins=8, outs=8,
                                            stride=(2, 4), dilation=(2, 2), padding=(1,) * 4),
    "output_padding between stride and dilation": Case(
        "conv_transpose", (7, 5), (3, 3), ins=3, outs=4, dilation=(3, 2), output_padding=(2, 1),
        padding=(1,) * 4),
    "a row": Case("conv_transpose", (33,), (16,), ins=8, outs=6, stride=(8,), padding=(4, 4)),
    "a volume": Case("conv_transpose", (4, 5, 3), (3, 2, 3), ins=4, outs=3, stride=(2, 2, 1),
                     padding=(1,) * 6, output_padding=(1, 0, 0)),
    "kernel 1": Case("conv", (9, 7), (1, 1), ins=40, outs=17, n=3),
    "padding above kernel": Case("conv", (3, 2), (2, 2), ins=5, outs=4, padding=(3, 2, 4, 3)),
    "one position": Case("conv", (1, 1), (3, 3), ins=20, outs=33, padding=(1,) * 4, n=1),
    "depthwise": Case("conv_transpose", (7, 9), (3, 3), ins=6, outs=6, groups=6, stride=(2, 2),
                      padding=(1,) * 4, output_padding=(1, 1)),
    "groups with a multiplier": Case("conv", (8, 9), (3, 3), ins=4, outs=12, groups=4,
                                     stride=(2, 1), padding=(1,) * 4),
}  # fmt: skip

PLANS = {
    "conv": [
        ImplicitGemmPlan(Tile(32, 32, 8), 4, 2),
        ImplicitGemmPlan(Tile(64, 16, 16, 3), 4, 2, packed=True),
        DirectPlan(1, 1),
        DirectPlan(4, 2),
    ],
    "conv_weight_grad": [
        WgradGemmPlan(Tile(32, 32, 8, 2), 4, 2),
        WgradDirectPlan(2, 1, 1),
        WgradDirectPlan(3, 4, 2),
    ],
}
PLANS["conv_transpose"] = PLANS["conv"]


def faces_of(name: str, **changes: object) -> list[FaceCase]:
    case = CASES[name]
    return [FaceCase(face, geometry_of(case), case.n, **changes) for face in PLANS]


def channels_last(rank: int) -> Layouts:
    return Layouts(f"N{SPATIAL[rank]}C", f"O{SPATIAL[rank]}I", f"N{SPATIAL[rank]}C")


@pytest.mark.parametrize("name", CASES)
def test_every_kernel(name: str) -> None:
    for case in faces_of(name):
        for plan in PLANS[case.face]:
            check(case, plan)


@pytest.mark.parametrize("name", ["tails", "a row", "depthwise", "one position"])
def test_channels_last(name: str) -> None:
    for case in faces_of(name):
        last = replace(case, layouts=channels_last(case.geometry.rank))
        for plan in PLANS[case.face]:
            check(last, plan)


@pytest.mark.parametrize("name", ["tails", "phases that dilation leaves out", "a volume"])
def test_symbolic_sizes(name: str) -> None:
    for case in faces_of(name):
        for plan in PLANS[case.face]:
            check(case, plan, is_symbolic=True)


def test_an_empty_batch() -> None:
    for case in faces_of("tails"):
        for plan in PLANS[case.face]:
            check(replace(case, n=0), plan, is_symbolic=True)


# ------------------------------------------------------------------------------ tiles

TILES = [
    ("conv_transpose", ImplicitGemmPlan(Tile(128, 128, 8), 8, 8, packed=True)),
    ("conv", ImplicitGemmPlan(Tile(128, 64, 16), 8, 8)),
    ("conv", ImplicitGemmPlan(Tile(32, 128, 8), 4, 8)),
    ("conv_transpose", ImplicitGemmPlan(Tile(128, 32, 8, 2), 8, 4)),
    ("conv_weight_grad", WgradGemmPlan(Tile(128, 128, 8), 8, 8)),
    ("conv_weight_grad", WgradGemmPlan(Tile(64, 32, 16, 4), 4, 4)),
]


@pytest.mark.parametrize(("face", "plan"), TILES, ids=str)
def test_tiles(face: str, plan: object) -> None:
    case = CASES["groups, asymmetric and negative padding"]
    check(FaceCase(face, geometry_of(case), case.n), plan, orders=ORDERS)


def test_plans_fit_the_device() -> None:
    """Whatever is proposed has whole warps that divide its copies among them."""
    for name in CASES:
        for dtype in ("float32", "float16", "float64"):
            for case in faces_of(name, dtypes=(dtype,) * 3):
                for _, plan in KERNELS.candidates(problem_of(case), BACKEND.machine):
                    threads = getattr(plan, "threads", 128)
                    assert threads % 32 == 0 and threads <= 1024, plan
                    if isinstance(plan, ImplicitGemmPlan):
                        assert threads % plan.tile.rows == 0, plan
                        assert plan.tile.columns * plan.elements % threads == 0, plan


@compiling(2)
@given(some=st.lists(any_case, min_size=3, max_size=3), seed=st.integers(0, 2**32 - 1))
def test_any_plan_of_any_geometry(some: list[Case], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in some:
        for face in PLANS:
            one = FaceCase(face, geometry_of(case), case.n)
            plans = [plan for _, plan in KERNELS.candidates(problem_of(one), BACKEND.machine)]
            check(one, plans[rng.integers(len(plans))], seed=seed, orders=(int(rng.integers(9)),))


# ------------------------------------------------------------------------------ tensor cores

MMA = {
    "conv": [
        ImplicitGemmMmaPlan(Tile(64, 64, 32), 2, 2),
        ImplicitGemmMmaPlan(Tile(64, 16, 16, 2), 2, 1),
    ],
    "conv_weight_grad": [
        WgradMmaPlan(Tile(64, 64, 32), 2, 2),
        WgradMmaPlan(Tile(64, 32, 16, 3), 2, 1),
    ],
}
MMA["conv_transpose"] = MMA["conv"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("groups, asymmetric and negative padding", "bfloat16"),
        ("tails", "float16"),
        ("a row", "float16"),
    ],
)
def test_tensor_cores(name: str, dtype: str) -> None:
    for case in faces_of(name, dtypes=(dtype,) * 3):
        last = replace(case, layouts=channels_last(case.geometry.rank))
        for plan in MMA[case.face]:
            check(case, plan)
            check(last, plan)


@pytest.mark.parametrize(
    "plan",
    [
        ImplicitGemmMmaPlan(Tile(128, 128, 32), 2, 4),
        ImplicitGemmMmaPlan(Tile(128, 32, 32), 4, 1, stages=4),
        ImplicitGemmMmaPlan(Tile(64, 128, 16), 2, 2, stages=2),
        ImplicitGemmMmaPlan(Tile(128, 128, 32), 2, 2, stages=4),
        ImplicitGemmMmaPlan(Tile(256, 128, 32), 4, 2),
        ImplicitGemmMmaPlan(Tile(128, 256, 32), 2, 4),
    ],
    ids=str,
)
def test_tiles_of_tensor_cores(plan: ImplicitGemmMmaPlan) -> None:
    case = CASES["groups, asymmetric and negative padding"]
    one = FaceCase("conv_transpose", geometry_of(case), case.n, dtypes=("float16",) * 3)
    check(one, plan, orders=ORDERS)
    check(replace(one, layouts=channels_last(2)), plan, is_symbolic=True)


def test_two_blocks_on_a_multiprocessor() -> None:
    """The compiler is told, and the estimate counts on it."""
    plan = ImplicitGemmMmaPlan(Tile(128, 128, 32), 2, 4)
    for face, bounds in (("conv_transpose", "256, 2"), ("conv", "256")):
        case = FaceCase(face, geometry_of(CASES["tails"]), 2, dtypes=("float16",) * 3)
        problem = problem_of(case)
        source = emulated(BACKEND.build(problem, plan)).source
        assert f"__launch_bounds__({bounds}) main_kernel" in source
        assert (plan.footprint(problem).registers == 128) == (face == "conv_transpose")


@pytest.mark.parametrize(
    "plan",
    [WgradMmaPlan(Tile(128, 128, 32), 2, 2, stages=4), WgradMmaPlan(Tile(128, 256, 32), 2, 4)],
    ids=str,
)
def test_tiles_of_weight_gradients(plan: WgradMmaPlan) -> None:
    case = CASES["groups, asymmetric and negative padding"]
    one = FaceCase("conv_weight_grad", geometry_of(case), case.n, dtypes=("float16",) * 3)
    check(one, plan)
    check(replace(one, layouts=channels_last(2)), plan)


EQUAL = (822 / 1024, 877 / 1024)
"""Factors whose products are mostly just below a multiple of what float32 holds of large sums."""


def test_many_positions_of_one_sign() -> None:
    """Tensor cores cut sums off: 65,536 of one sign may be 1.4 times the bound off."""
    geometry = Geometry.of_conv("sum", (1, 8, 65536), (8, 8, 1))
    case = FaceCase(
        "conv_weight_grad", geometry, 1, channels_last(1), ("float16",) * 2 + ("float32",)
    )
    operands = [np.full(case.shape(role), value, "float16") for role, value in zip("xy", EQUAL)]
    check_operands(case, WgradMmaPlan(Tile(32, 64, 32), 1, 2), operands)


def test_parts_of_many_positions() -> None:
    """The result does not hold sums of parts, and how many there are only run time knows."""
    geometry = Geometry.of_conv("parts", (2, 5, 90, 101), (6, 5, 1, 2), padding=(0, 1))
    case = FaceCase("conv_weight_grad", geometry, 2, dtypes=("float16",) * 3)
    check(case, WgradMmaPlan(Tile(32, 64, 32), 1, 2), is_symbolic=True, mode="fibers")


@pytest.mark.parametrize("name", ["groups, asymmetric and negative padding", "tails"])
def test_float32_as_three_products_of_tf32(name: str) -> None:
    """Three products are as accurate as float32: 21 bits of each product, sums in float32."""
    for face in GATHERS:
        case = FaceCase(face, geometry_of(CASES[name]), 2)
        last = replace(case, layouts=channels_last(2))
        for plan in (
            ImplicitGemmMmaPlan(Tile(64, 64, 16), 2, 2, width=4),
            ImplicitGemmMmaPlan(Tile(64, 16, 8, 2), 2, 1, width=4),
        ):
            check(case, plan)
            check(last, plan)


def test_sums_of_one_sign_by_tf32(rng: np.random.Generator) -> None:
    """Tensor cores cut sums off: over 9,216 terms of one sign that is 1.6 times the bound."""
    case = FaceCase("conv", geometry_of(Case("conv", (4, 4), (3, 3), ins=1024, outs=16)), 1)
    plan = ImplicitGemmMmaPlan(Tile(64, 16, 16), 2, 1, width=4)
    check_operands(case, plan, [np.abs(array) for array in case.arrays(rng)])


def check_operands(case: FaceCase, plan: object, operands: list[np.ndarray]) -> None:
    """Build, run and compare, of canonical operands."""
    stored = [case.stored(role, array) for role, array in zip(case.roles, operands)]
    run = emulated(BACKEND.build(problem_of(case), plan), mode="fibers")
    case.check(result_of(run, case, stored), *operands)


def test_halves_that_begin_anywhere() -> None:
    """Copies of 16 bytes give way to single ones where a tensor does not begin at such."""
    case = CASES["groups, asymmetric and negative padding"]
    for face in MMA:
        one = FaceCase(face, geometry_of(case), case.n, channels_last(2), ("float16",) * 3)
        func = BACKEND.build(problem_of(one), MMA[face][0])
        a, b = one.arrays(np.random.default_rng(0))
        operands = [misaligned(one.stored(r, v)) for r, v in zip(one.roles, (a, b))]
        one.check(result_of(emulated(func), one, operands), a, b)
        with pytest.raises(cuda_emulator.Fault, match="misaligned"):
            result_of(emulated(func, edit=without_single_copies), one, operands)


def without_single_copies(text: str) -> str:
    """The text of a kernel that copies 16 bytes wherever a tensor begins."""
    test = "*all &= ((size_t)tensor & 15) == 0;"
    assert test in text
    return text.replace(test, "")


def misaligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of the array, one element behind a multiple of 16 bytes."""
    room = np.empty(array.size + 16, array.dtype)
    start = -(room.ctypes.data // array.itemsize) % (16 // array.itemsize) + 1
    held = room[start : start + array.size].reshape(array.shape)
    held[...] = array
    return held


# ------------------------------------------------------------------------------ dtypes

DTYPES = [
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float64", "float64", "float64"),
    ("float32", "float32", "float64"),
    ("int8", "int8", "int32"),
    ("uint8", "int8", "int32"),
    ("uint8", "uint8", "int32"),
    ("int16", "int16", "int32"),
    ("int64", "int64", "int64"),
]


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
def test_dtypes(dtypes: tuple[str, str, str]) -> None:
    """The chosen kernels, and those of few channels, are correct in these dtypes."""
    for name in ("tails", "depthwise"):
        for case in faces_of(name, dtypes=dtypes):
            check(case)


@pytest.mark.parametrize("layouts", [None, channels_last(2)], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("ins", [8, 9])
def test_words_of_bytes(ins: int, layouts: Layouts | None) -> None:
    case = replace(CASES["tails"], ins=ins)
    for face in GATHERS:
        for dtypes in (("int8", "int8", "int32"), ("uint8", "int8", "int32")):
            one = FaceCase(face, geometry_of(case), case.n, layouts, dtypes)
            check(one, ImplicitGemmPlan(Tile(32, 32, 32), 4, 2, word=4))
            check(one, ImplicitGemmPlan(Tile(64, 16, 64, 2), 4, 2, packed=True, word=4))


# ------------------------------------------------------------------------------ epilogues

STEPS = (
    PostOp("multiply", "NCHW", "C"),
    PostOp("add", "NCHW", "NCHW"),
    PostOp("subtract", "NCHW", "HW"),
    PostOp("silu"),
    PostOp("tanh"),
    PostOp("add", value=0.5),
)


def finished(value: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
    factor, residual, shift = operands
    value = value * factor + residual - shift
    return np.tanh(value / (1 + np.exp(-value))) + 0.5


@pytest.mark.parametrize("plan", [*PLANS["conv"], *MMA["conv"]], ids=str)
@pytest.mark.parametrize("is_last", [False, True], ids=["NCHW", "NHWC"])
def test_epilogues(plan: object, is_last: bool) -> None:
    geometry = geometry_of(CASES["tails"])
    dtype = "float16" if isinstance(plan, ImplicitGemmMmaPlan) else "float32"
    layouts = channels_last(2) if is_last else None
    for face in GATHERS:
        case = FaceCase(face, geometry, 2, layouts, (dtype,) * 3)
        rng = np.random.default_rng(0)
        a, b = case.arrays(rng)
        want = case.want(a, b)
        sizes = dict(zip("NCHW", want.shape))
        order = case.orders.x
        steps = tuple(replace(step, order=order) if step.order else step for step in STEPS)
        shapes = [[sizes[c] if c in step.varies else 1 for c in "NCHW"] for step in STEPS[:3]]
        extra = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        run = emulated(BACKEND.build(problem_of(case, epilogue=steps), plan))
        stored = [case.stored(case.roles[2], one) for one in extra]
        operands = [case.stored(role, array) for role, array in zip(case.roles, (a, b))]
        got = case.opened(case.roles[2], result_of(run, case, [*operands, *stored]))
        # Sums of up to 160 products go through steps of slope below 2; halves are rounded once.
        limit = 2e-3 if dtype == "float16" else 2e-5
        close = finished(want, [one.astype(np.float64) for one in extra])
        np.testing.assert_allclose(got.astype(np.float64), close, rtol=limit, atol=limit)


REQUANTIZED = (
    PostOp("add", "NCHW", "C", dtype="int32"),
    PostOp("cast"),
    PostOp("multiply", "NCHW", "C", dtype="float32"),
    PostOp("add", "NCHW", "NCHW", dtype="uint8", scale=0.37, zero_point=131),
    PostOp("relu"),
    PostOp("quantize", value=-3, dtype="int8"),
)


@pytest.mark.parametrize(
    ("plan", "is_last"),
    [
        (DirectPlan(4, 2), True),
        (ImplicitGemmPlan(Tile(32, 32, 8), 4, 2), False),
        (ImplicitGemmPlan(Tile(64, 16, 64, 2), 4, 2, packed=True, word=4), True),
    ],
    ids=str,
)
def test_requantized(plan: object, is_last: bool, rng: np.random.Generator) -> None:
    """Integer sums become float32, then bytes, in the epilogue."""
    for face in GATHERS:
        layouts, dtypes = channels_last(2) if is_last else None, ("uint8", "int8", "int8")
        case = FaceCase(face, geometry_of(CASES["tails"]), 2, layouts, dtypes)
        a, b = case.arrays(rng)
        sums, order = case.want(a, b), case.orders.x
        channels = (1, sums.shape[1], 1, 1)
        extra = [
            rng.integers(-999, 999, channels).astype("int32"),
            rng.uniform(0.0005, 0.002, channels).astype("float32"),
            rng.integers(0, 255, sums.shape).astype("uint8"),
        ]
        steps = tuple(replace(step, order=order) if step.order else step for step in REQUANTIZED)
        run = emulated(BACKEND.build(problem_of(case, epilogue=steps), plan))
        stored = [case.stored(case.roles[2], one) for one in extra]
        operands = [case.stored(role, array) for role, array in zip(case.roles, (a, b))]
        got = case.opened(case.roles[2], result_of(run, case, [*operands, *stored]))
        want = quantized.finished(sums, REQUANTIZED, extra)
        # Half a step where a product and a sum are rounded once, not twice.
        np.testing.assert_allclose(got.astype(int), want, rtol=0, atol=1)


# ------------------------------------------------------------------------------ packing


@pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        ("float32", ImplicitGemmPlan(Tile(64, 16, 16), 4, 2, packed=True)),
        ("float16", ImplicitGemmMmaPlan(Tile(64, 64, 32), 2, 2)),
        ("int8", ImplicitGemmPlan(Tile(64, 16, 64), 4, 2, packed=True, word=4)),
    ],
)
def test_weights_packed_ahead(dtype: str, plan: object) -> None:
    """By loops on the processor, as FoldConstant runs them."""
    out = "int32" if dtype == "int8" else dtype
    for face in GATHERS:
        case = FaceCase(face, geometry_of(CASES["tails"]), 2, dtypes=(dtype, dtype, out))
        problem = problem_of(case, prepacked=True)
        pack, made = build_packing(problem, plan), packed_weights(problem, plan)
        a, b = case.arrays(np.random.default_rng(0))
        packed = tvm.runtime.empty((made.elements,), made.dtype)
        module = tvm.IRModule({"main": pack.with_attr("global_symbol", "main")})
        tvm.compile(module, "llvm")["main"](tvm.runtime.tensor(case.stored("w", b)), packed)
        run = emulated(BACKEND.build(problem, plan))
        operands = [case.stored(case.roles[0], a), packed.numpy()]
        case.check(result_of(run, case, operands), a, b)


# ------------------------------------------------------------------------------ modules


def test_functions_of_ours_stand_once_in_a_module() -> None:
    """TVM writes what a kernel calls for each kernel that asks; nvcc takes no function twice."""
    case, small = CASES["tails"], CASES["depthwise"]
    tile, words = Tile(64, 16, 16), ImplicitGemmPlan(Tile(32, 32, 32), 4, 2, word=4)
    mma, tf32 = ImplicitGemmMmaPlan(tile, 2, 1), ImplicitGemmMmaPlan(Tile(64, 16, 8), 2, 1, width=4)

    def one(plan: object, *dtypes: str, of: Case = case, face: str = "conv") -> tuple:
        return FaceCase(face, geometry_of(of), 2, dtypes=(dtypes * 3)[:3]), plan

    made = [
        *(one(mma, dtype) for dtype in ("float16", "bfloat16", "float16")),
        one(tf32, "float32"),
        *(one(words, first, "int8", "int32") for first in ("int8", "uint8", "int8")),
        *[one(DirectPlan(4, 1), "float32", of=small)] * 2,
        *[one(WgradDirectPlan(2, 1, 1), "float32", of=small, face="conv_weight_grad")] * 2,
    ]
    functions = {
        f"f{i}": BACKEND.build(problem_of(one), plan).with_attr("global_symbol", f"f{i}")
        for i, (one, plan) in enumerate(made)
    }
    run = emulated(tvm.IRModule(functions))
    rng = np.random.default_rng(0)
    for name, (one, _) in zip(functions, made):
        a, b = one.arrays(rng)
        operands = [one.stored(role, array) for role, array in zip(one.roles, (a, b))]
        out = np.full(one.stored_shape(one.roles[2]), 77, numpy_dtype(one.dtypes[2]))
        run(*operands, out, name=name)
        one.check(out, a, b)


# ------------------------------------------------------------------------------ memory


def test_workspaces_are_stated() -> None:
    """Shares of a split sum, and packed weights: what a function allocates on the device."""
    case = FaceCase("conv", geometry_of(CASES["tails"]), 2)
    elements = prod(case.stored_shape("y"))
    func = BACKEND.build(problem_of(case), ImplicitGemmPlan(Tile(64, 16, 16, 3), 4, 2))
    assert workspace_bytes(func, 1) == 3 * elements * 4
    packed = ImplicitGemmPlan(Tile(64, 16, 16), 4, 2, packed=True)
    held = packed_weights(problem_of(case, prepacked=True), packed).elements
    assert workspace_bytes(BACKEND.build(problem_of(case), packed), 1) == held * 4
    assert workspace_bytes(BACKEND.build(problem_of(case), DirectPlan(1, 1)), 1) == 0
    some = BACKEND.build(
        problem_of(case, is_symbolic=True), ImplicitGemmPlan(Tile(64, 16, 16, 3), 4, 2)
    )
    assert workspace_bytes(some, 1) is None


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("face", PLANS)
def test_more_than_32_bits_number_is_refused(face: str) -> None:
    case = FaceCase(face, geometry_of(CASES["tails"]), 1 << 30)
    with pytest.raises(ValueError, match=f"^{face}: .* with 32 bits: divide the batch$"):
        BACKEND.build(problem_of(case))


def test_every_kernel_is_tested() -> None:
    tested = {
        KERNELS.of_plan(plan) for plans in (PLANS, MMA) for face in plans for plan in plans[face]
    }
    assert tested == set(KERNELS.of_kind(*PLANS))


def test_choices_are_of_all_kernels() -> None:
    """No kernel is there that no shape would choose."""
    shapes = [
        Case("conv_transpose", (64, 64), (4, 4), ins=128, outs=64, stride=(2, 2), padding=(1,) * 4),
        Case("conv_transpose", (64, 64), (3, 3), ins=64, outs=64, groups=64, padding=(1,) * 4),
    ]
    found = {
        KERNELS.of_plan(choose(problem_of(one), BACKEND.machine))
        for case in shapes
        for dtype in ("float32", "float16")
        for face in PLANS
        for one in [FaceCase(face, geometry_of(case), 8, channels_last(2), (dtype,) * 3)]
    }
    assert found == set(KERNELS.of_kind(*PLANS))


@pytest.mark.parametrize("face", GATHERS)
@pytest.mark.parametrize(
    "case",
    [
        Case("conv", (240,), (16,), n=2, ins=48, outs=64, stride=(8,), padding=(4, 4)),
        Case("conv", (40, 40), (3, 3), n=2, ins=64, outs=96, stride=(2, 2), padding=(1,) * 4),
    ],
    ids=["vocoder", "strided"],
)
def test_small_halves_whose_weights_come_packed(case: Case, face: str) -> None:
    """Packing is a launch, which such layers do not earn back: packed ahead, it costs nothing."""
    one = FaceCase(face, geometry_of(case), 2, channels_last(len(case.kernel)), ("float16",) * 3)
    plan = choose(problem_of(one, prepacked=True), BACKEND.machine)
    assert isinstance(plan, ImplicitGemmMmaPlan), plan
