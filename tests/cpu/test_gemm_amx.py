# SPDX-License-Identifier: Apache-2.0
"""Matrix products by AMX, whether or not this processor has it, against exact sums and float64."""

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
from helpers.compare import numpy_dtype
from helpers.kernels import built
from topi_ext import backend, compat
from topi_ext.cpu import kernels
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct_amx import TILE
from topi_ext.cpu.plan.estimate import cheapest
from topi_ext.cpu.plan.gemm import GemmPlan
from topi_ext.cpu.plan.gemm_amx import GemmAmxPlan, gemm_amx_candidates
from topi_ext.cpu.products import tile_dot_of
from topi_ext.cpu.select.choose import choose
from topi_ext.kernel.registry import accepted
from topi_ext.spec.matmul import MatMul
from topi_ext.spec.post_ops import PostOp

pytestmark = pytest.mark.skipif(IS_ELSEWHERE, reason=REASON)

MACHINE = CpuMachine(
    vector_bytes=64, registers=32, threads=2, l2=2 << 20, amx=True, amx_int8=True, dots=0.5,
    int_dots=(("vpdpbusd", 2.0),),
)  # fmt: skip
HERE = backend.of_target(amx_target()).machine
"""This processor with AMX: what it may do where Linux denies that."""

PRODUCTS = [
    ("mk", "kn", "mn", (36, 13, 67)),
    ("mk", "nk", "mn", (128, 32, 64)),
    ("mk", "nk", "mn", (200, 50, 33)),
    ("km", "nk", "mn", (38, 13, 5)),
    ("bmk", "bkn", "bmn", (3, 20, 17, 67)),
    ("mk", "kbn", "bmn", (3, 138, 40, 17)),
]
"""Letters, and sizes in the order of the alphabet: whole tiles, parts of them, a single row."""

OPERANDS = [
    ("uint8", "int8", "int32", (7, 0)),
    ("int8", "int8", "int32", (0, 0)),
    ("bfloat16", "bfloat16", "float32", (0, 0)),
    ("int8", "uint8", "int32", (-3, 0)),
    ("uint8", "uint8", "int32", (0, 0)),
    ("bfloat16", "bfloat16", "bfloat16", (0, 0)),
    ("int8", "int8", "int32", (9, 0)),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the libraries of guard.c and of amx_emulator.c."""
    return compiled(tmp_path_factory.mktemp("libraries"))


def product_of(case: tuple, operands: tuple, *, ahead: bool) -> MatMul:
    (x, w, y, sizes), (*dtypes, zeros) = case, operands
    named = tuple(zip(sorted({*x, *w}), sizes))
    made = MatMul(named, x, w, y, tuple(dtypes), zero_points=zeros, prepacked=ahead)
    return made.merged()


def values_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(numpy_dtype(dtype))
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype)


def weights_for(product: MatMul, plan: GemmAmxPlan, w: np.ndarray) -> np.ndarray:
    """Return the weights as the kernel takes them."""
    packed = kernels.packed_weights(product, plan) if product.prepacked else None
    if packed is None:
        return w
    into = tvm.runtime.tensor(np.full(packed.elements, 77, packed.dtype))
    built([kernels.build_packing(product, plan)])["f0"](tvm.runtime.tensor(w), into)
    return into.numpy()


@pytest.mark.parametrize("linux", ["grants", "refuses"])
def test_any_plan(
    libraries: tuple[Path, Path], tmp_path: Path, linux: str, rng: np.random.Generator
) -> None:
    """Any of the candidates, with weights that are packed and others, by tiles and by vectors."""
    dice, wanted = random.Random(int(rng.integers(1 << 30))), {}
    functions, arguments, operands = {}, {}, cycle(OPERANDS)
    for case in PRODUCTS * 2:
        for ahead in (True, False):
            product = product_of(case, next(operands), ahead=ahead)
            plans = list(accepted(gemm_amx_candidates(product, HERE)))
            if not plans:  # vectors cannot read such packed weights, or nothing corrects sums
                continue
            _, plan = dice.choice(plans)
            x, w = (
                values_of(rng, product.shape(order), dtype)
                for order, dtype in zip((product.x, product.w), product.dtypes)
            )
            name, out = f"f{len(wanted)}", numpy_dtype(product.dtypes[2])
            functions[name] = kernels.build(product, plan)
            filled = np.full(product.shape(product.y), 77, out)
            arguments[name] = [x, weights_for(product, plan, w), filled]
            data = x.astype("float64") - product.zero_points[0]
            letters = f"{product.x},{product.w}->{product.y}"
            wanted[name] = np.einsum(letters, data, w.astype("float64")), plan
    assert len(wanted) > len(PRODUCTS)
    granted = linux == "grants"
    results = check(libraries, tmp_path, functions, arguments, granted=granted)
    for name, (want, plan) in wanted.items():
        # Sums of integers are exact; others are rounded to float32, once to bfloat16.
        limit = {"int32": 0.0, "float32": 1e-5}.get(str(results[name].dtype), 8e-3)
        bound = limit * float(np.abs(want).max())
        found = results[name].astype("float64")
        np.testing.assert_allclose(found, want, rtol=0, atol=bound, err_msg=str(plan))


@pytest.mark.smoke
def test_requantized_rows(
    libraries: tuple[Path, Path], tmp_path: Path, rng: np.random.Generator
) -> None:
    """A linear layer of bytes of an unknown number of rows: scale of a column, relu."""
    steps = (
        PostOp("cast"),
        PostOp("multiply", "n", "n", dtype="float32"),
        PostOp("relu"),
        PostOp("quantize", value=3, dtype="uint8"),
    )
    rows = compat.tir.Var("rows", "int64")
    case = ("mk", "nk", "mn", (200, rows, 67))
    product = product_of(case, ("uint8", "int8", "uint8", (9, 0)), ahead=False)
    product = replace(product, epilogue=steps, zero_points=(0, 0))
    plan = cheapest(gemm_amx_candidates(product, MACHINE))[1]
    scale = (rng.uniform(0.5, 1, 67) * 1e-3).astype("float32")
    w, function, arguments, wanted = values_of(rng, (67, 200), "int8"), {}, {}, {}
    for m in (1, 37):
        x = values_of(rng, (m, 200), "uint8")
        function[f"f{m}"] = kernels.build(product, plan)
        arguments[f"f{m}"] = [x, w, scale, np.full((m, 67), 77, "uint8")]
        real = np.maximum(x.astype("int64") @ w.astype("int64").T * scale.astype("float64"), 0)
        wanted[f"f{m}"] = np.clip(np.rint(real) + 3, 0, 255)
    for name, found in check(libraries, tmp_path, function, arguments).items():
        # Where float32 rounds to the other side of a half, one step.
        assert np.abs(found.astype("int64") - wanted[name]).max() <= 1


def test_linear_layers_are_its() -> None:
    """Rows beside each other, and batches of them; the direct kernel turns them."""
    for case in (("mk", "nk", "mn", (256, 512, 256)), ("bmk", "bkn", "bmn", (4, 64, 64, 64))):
        for operands in OPERANDS[1:3]:
            problem = product_of(case, operands, ahead=True).canonical()
            assert isinstance(choose(problem, MACHINE), GemmAmxPlan)


def test_what_it_does_not_serve() -> None:
    """Weights that take nine bits, other numbers, zero points without packing, other processors."""
    served = product_of(PRODUCTS[0], OPERANDS[0], ahead=True)
    assert cheapest(gemm_amx_candidates(served, MACHINE))
    for product in (
        replace(served, zero_points=(0, 3)),
        replace(served, dtypes=("float32", "float32", "float32"), zero_points=(0, 0)),
        replace(served, prepacked=False),
        replace(served, dtypes=("uint8", "uint8", "int32")),  # vectors could not read them
    ):
        assert cheapest(gemm_amx_candidates(product, MACHINE)) is None
    assert cheapest(gemm_amx_candidates(served, replace(MACHINE, amx_int8=False))) is None


def test_innermost_loop() -> None:
    """A load for each product, which keeps sums in their registers."""
    product = product_of(("mk", "nk", "mn", (512, 256, 256)), OPERANDS[1], ahead=True)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
    nest = GemmPlan(TILE, 2, 2 * TILE, 256, 256, 1, copies_x=True, copies_w=False)
    plan = GemmAmxPlan(nest, None, "vpdpbusd", tile_dot_of(product).name)
    func = kernels.build(product, plan).with_attr("global_symbol", "main")
    text = assembly(tvm.compile(tvm.IRModule({"main": func}), target))
    hottest = max(basic_blocks(text), key=lambda block: sum("tdpb" in i for i in block))
    multiplied = sum("tdpb" in i for i in hottest)
    assert multiplied >= 4 and sum("tileload" in i for i in hottest) <= multiplied
