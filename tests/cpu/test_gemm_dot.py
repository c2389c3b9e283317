# SPDX-License-Identifier: Apache-2.0
"""Matrix products of bytes and of bfloat16 by products within lanes, by any plan, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import tvm

from helpers.compare import numpy_dtype
from helpers.kernels import HOST, built, guarded
from topi_ext import compat
from topi_ext.cpu import kernels
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.gemm import GemmPlan
from topi_ext.cpu.plan.gemm_dot import GemmDotPlan, gemm_dot_candidates, reads_in_place
from topi_ext.cpu.products import DOTS
from topi_ext.cpu.registry import KERNELS
from topi_ext.cpu.select.choose import choose
from topi_ext.kernel.registry import Refused
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts
from topi_ext.spec.matmul import MatMul
from topi_ext.spec.post_ops import PostOp

MACHINE = CpuMachine.of_features(*compat.llvm_features(HOST))
LANES = MACHINE.lanes("float32")
DOTS_HERE = [name for name, _ in MACHINE.int_dots]
PAIRS = pytest.mark.skipif(not MACHINE.dots, reason="the processor has no AVX512-BF16")

PRODUCTS = [
    ("mk", "kn", "mn", (36, 13, 67)),
    ("mk", "nk", "mn", (37, 13, 67)),
    ("mk", "nk", "mn", (3, 13, 67)),
    ("km", "nk", "mn", (38, 13, 5)),
    ("bmk", "bkn", "bmn", (3, 20, 17, 67)),
    ("mk", "kbn", "bmn", (3, 8, 40, 17)),
]
"""Letters, and sizes of them in the order of the alphabet: terms that fill lanes, and others."""


def product_of(case: tuple, *dtypes: str, zero_points: tuple[int, int] = (0, 0)) -> MatMul:
    x, w, y, sizes = case
    named = tuple(zip(sorted({*x, *w}), sizes))
    return MatMul(named, x, w, y, dtypes, zero_points=zero_points).merged()


def run(product: MatMul, plan: GemmDotPlan, x: np.ndarray, w: np.ndarray, *extra: np.ndarray):
    """Return the result, with weights packed ahead if the problem has them so, between guards."""
    packed = kernels.packed_weights(product, plan)
    funcs = [kernels.build(product, plan)]
    funcs += [kernels.build_packing(product, plan)] if packed else []
    compiled, weight = built(funcs), tvm.runtime.tensor(w)
    if packed:
        into = tvm.runtime.tensor(np.full(packed.elements, 77, packed.dtype))
        compiled["f1"](weight, into)
        weight = into
    dtype = numpy_dtype(product.dtypes[2])
    out, whole = guarded(np.full(product.shape(product.y), 77, dtype), 55)
    compiled["f0"](tvm.runtime.tensor(x), weight, *map(tvm.runtime.tensor, extra), out)
    if whole.size:
        assert (whole[:64] == 55).all() and (whole[-64:] == 55).all(), "wrote outside"
    return out.numpy()


def nests(product: MatMul, dot: str) -> list[GemmPlan]:
    """Blocks that do not divide sizes, several K-blocks, more splits than panels."""
    must_copy = not reads_in_place(product, DOTS[dot])
    return [
        GemmPlan(LANES, 1, 1, 1 << 30, 1, 1, copies_x=True, copies_w=not product.prepacked),
        GemmPlan(LANES, 2, 4, 4, 8, 2, copies_x=must_copy, copies_w=not product.prepacked),
        GemmPlan(
            LANES, 3, 4, 2, 4, 3, copies_x=True, copies_w=not product.prepacked, parallel=False
        ),
    ]


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype)


@pytest.mark.parametrize("dot", DOTS_HERE)
@pytest.mark.parametrize("signs", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: f"{'-'.join(case[:3])}-{case[3]}")
def test_integers_are_exact(
    case: tuple, signs: tuple[str, str], dot: str, rng: np.random.Generator
) -> None:
    turn = cycle(range(3))
    for zero_points in ((0, 0), (7, 0), (3, 5)):
        product = product_of(case, *signs, "int32", zero_points=zero_points)
        if not DOTS[dot].fits(product):
            continue
        x, w = (
            integers(rng, product.shape(order), dtype)
            for order, dtype in zip((product.x, product.w), signs)
        )
        a, b = (one.astype("int64") - zero for one, zero in zip((x, w), zero_points))
        want = np.einsum(f"{product.x},{product.w}->{product.y}", a, b)
        for ahead in (True, False):
            one = replace(product, prepacked=ahead)
            if not ahead and DOTS[dot].zero_of(one):
                with pytest.raises(Refused, match="packed ahead"):
                    list(gemm_dot_candidates(one, replace(MACHINE, int_dots=((dot, 1.0),))))
                continue
            nest = nests(one, dot)[next(turn)]
            np.testing.assert_array_equal(run(one, GemmDotPlan(nest, dot), x, w), want)


@PAIRS
@pytest.mark.parametrize("case", [case for case in PRODUCTS if case[3][0] % 2 == 0])
def test_pairs_of_bfloat16(case: tuple, rng: np.random.Generator) -> None:
    """Sums of at most 67 products of float32, rounded to float32 or to bfloat16 once."""
    for dtype, limit in (("float32", 2e-6), ("bfloat16", 8e-3)):
        product = product_of(case, "bfloat16", "bfloat16", dtype)
        if not product.has_pairs:
            continue
        x, w = (
            rng.standard_normal(product.shape(order)).astype(numpy_dtype("bfloat16"))
            for order in (product.x, product.w)
        )
        letters = f"{product.x},{product.w}->{product.y}"
        want = np.einsum(letters, x.astype("float64"), w.astype("float64"))
        for ahead in (True, False):
            one = replace(product, prepacked=ahead)
            for nest in nests(one, "dpbf16ps"):
                found = run(one, GemmDotPlan(nest, "dpbf16ps"), x, w).astype("float64")
                bound = limit * max(1.0, float(np.abs(want).max()))
                np.testing.assert_allclose(found, want, rtol=0, atol=bound)


@pytest.mark.parametrize("dot", DOTS_HERE)
def test_requantized_rows(dot: str, rng: np.random.Generator) -> None:
    """A linear layer of bytes, as frameworks quantize it: scale and bias of a column, relu."""
    steps = (
        PostOp("cast"),
        PostOp("multiply", "n", "n", dtype="float32"),
        PostOp("add", "n", "n", dtype="float32"),
        PostOp("relu"),
        PostOp("quantize", value=3, dtype="uint8"),
    )
    case = ("mk", "nk", "mn", (40, 13, 67))
    product = product_of(case, "uint8", "int8", "uint8", zero_points=(9, 0))
    product = replace(product, epilogue=steps, prepacked=True)
    x, w = integers(rng, (13, 40), "uint8"), integers(rng, (67, 40), "int8")
    scale, bias = (rng.uniform(0.5, 1, 67) * 1e-2).astype("float32"), rng.normal(0, 9, 67)
    bias = bias.astype("float32")
    sums = (x.astype("int64") - 9) @ w.astype("int64").T
    real = np.maximum(sums * scale.astype("float64") + bias, 0)
    want = np.clip(np.rint(real) + 3, 0, 255)
    for nest in nests(product, dot):
        found = run(product, GemmDotPlan(nest, dot), x, w, scale, bias).astype("int64")
        # Where float32 rounds to the other side of a half, one step.
        assert np.abs(found - want).max() <= 1 and (found == want).mean() > 0.98


def test_linear_layers_of_bytes_are_products() -> None:
    """Rows of known and of symbolic number, with zero points, and weights that are packed ahead."""
    geometry = Geometry.of_conv("conv", (1, 256, 512), (512, 256, 1))
    base = Convolution.of(
        "conv", geometry, Layouts("NWC", "OIW", "NWC"), 1, ("uint8", "int8", "int32")
    )
    problem = replace(base, zero_points=(3, 0), prepacked=True)
    unit = {"amx": False, "amx_int8": False}
    machine = replace(MACHINE, int_dots=(("vpdpbusd", MACHINE.fmas),), **unit)
    assert isinstance(choose(problem, machine), GemmDotPlan)
    symbolic = problem.with_sizes(lambda _: None) if problem.is_static else problem
    assert {name for name, _ in KERNELS.verdicts(symbolic, machine)} >= {"gemm_dot", "direct_dot"}
