# SPDX-License-Identifier: Apache-2.0
"""The kernel of matrix products, by any plan, against NumPy in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tvm

from helpers.compare import numpy_dtype
from helpers.kernels import HOST, built, guarded
from topi_ext import compat
from topi_ext.cpu import kernels
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.gemm import GemmPlan, gemm_candidates
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.matmul import MatMul
from topi_ext.spec.post_ops import PostOp

MACHINE = CpuMachine.of_features(*compat.llvm_features(HOST))
LANES = MACHINE.lanes("float32")
TOLERANCE = {"int32": 0.0, "float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""Maximum error, relative to the largest value: sums of at most 67 products, and one rounding to
the dtype."""

PRODUCTS = [
    ("mk", "kn", "mn", (13, 37, 67)),
    ("mk", "nk", "mn", (13, 37, 67)),
    ("km", "nk", "mn", (13, 37, 5)),
    ("mk", "kn", "nm", (6, 19, 7)),
    ("bmk", "bkn", "bmn", (3, 13, 17, 67)),
    ("mbk", "nbk", "bmn", (3, 13, 17, 9)),
    ("bmk", "kbn", "mbn", (3, 5, 40, 17)),
    ("mk", "kbn", "bmn", (3, 5, 40, 17)),
    ("bmk", "kn", "bnm", (3, 5, 40, 17)),
    ("mk", "kn", "mn", (1, 1, 1)),
]
"""Letters, and sizes of them in the order of the alphabet."""


def product_of(
    x: str, w: str, y: str, sizes: tuple[int, ...], dtype: str = "float32", out: str = ""
) -> MatMul:
    named = zip(sorted({*x, *w}), sizes)
    return MatMul(tuple(named), x, w, y, (dtype, dtype, out or dtype))


def arrays(product: MatMul, rng: np.random.Generator) -> list[np.ndarray]:
    numbers = (
        rng.standard_normal(product.shape(order)) * (40 if "int" in dtype else 1)
        for order, dtype in zip((product.x, product.w), product.dtypes)
    )
    return [
        (np.abs(one) if dtype == "uint8" else one).astype(numpy_dtype(dtype))
        for one, dtype in zip(numbers, product.dtypes)
    ]


def check(product: MatMul, plan: object, rng: np.random.Generator, steps: object = None) -> None:
    """Run it as it is and with w packed ahead, between guards."""
    x, w = arrays(product, rng)
    letters = f"{product.x},{product.w}->{product.y}"
    exact = (one.astype("float64") - zero for one, zero in zip((x, w), product.zero_points))
    want = np.einsum(letters, *exact)
    extra = [
        rng.standard_normal(product.shape(step.order)).astype(x.dtype)
        for step in product.epilogue
        if step.order
    ]
    if steps:
        want = steps(product, want, *(one.astype("float64") for one in extra))
    limit = TOLERANCE[product.dtypes[2]] * max(1.0, float(np.abs(want).max()))
    for ahead in (False, True):
        one, plan = replace(product, prepacked=ahead), replace(plan, copies_w=not ahead)
        packed = kernels.packed_weights(one, plan)
        funcs = [kernels.build(one, plan)]
        funcs += [kernels.build_packing(one, plan)] if packed else []
        compiled = built(funcs)
        weight = tvm.runtime.tensor(w)
        if packed:
            unset = 77 if "int" in packed.dtype else np.nan
            into = np.full(packed.elements, unset, numpy_dtype(packed.dtype))
            into = tvm.runtime.tensor(into)
            compiled["f1"](weight, into)
            weight = into
        dtype = numpy_dtype(product.dtypes[2])
        out, whole = guarded(np.full(product.shape(product.y), 77, dtype), 55)
        compiled["f0"](tvm.runtime.tensor(x), weight, *map(tvm.runtime.tensor, extra), out)
        np.testing.assert_allclose(out.numpy().astype("float64"), want, rtol=0, atol=limit)
        if whole.size:
            assert (whole[:64] == 55).all() and (whole[-64:] == 55).all(), "wrote outside"


PLANS = [
    GemmPlan(LANES, 1, 1, 1 << 30, 1, 1, copies_x=True, copies_w=True),
    GemmPlan(LANES, 2, 4, 16, 8, 2, copies_x=False, copies_w=True),
    GemmPlan(LANES, 3, 4, 8, 4, 3, copies_x=True, copies_w=True, parallel=False),
]
"""Blocks that do not divide sizes, several chunks, more splits than panels."""


@pytest.mark.parametrize("plan", PLANS, ids=["whole", "chunks", "copies"])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: "-".join(case[:3]))
def test_any_plan(case: tuple, plan: GemmPlan, rng: np.random.Generator) -> None:
    check(product_of(*case).merged(), plan, rng)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype: str, rng: np.random.Generator) -> None:
    for case in PRODUCTS[:5:2]:
        product = product_of(*case, dtype=dtype).merged()
        check(product, choose(product, MACHINE), rng)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_weights_of_bytes(weights: str, dtype: str, rng: np.random.Generator) -> None:
    """They are packed as bytes, and widened where they are multiplied."""
    for case, plan in zip(PRODUCTS[:6], [*PLANS, *PLANS]):
        product = replace(product_of(*case), dtypes=(dtype, weights, dtype)).merged()
        plan = replace(plan, copies_x=plan.copies_x or dtype != "float32")
        check(product, plan, rng)
        assert kernels.packed_weights(replace(product, prepacked=True), plan).dtype == weights


def test_integers_less_their_zero_points(rng: np.random.Generator) -> None:
    """Multiply what no other kernel serves: weights that are not packed ahead, of a batch."""
    for case, plan in zip(PRODUCTS[:6], [*PLANS, *PLANS]):
        product = replace(product_of(*case), dtypes=("uint8", "int8", "int32"), zero_points=(7, 3))
        check(product.merged(), replace(plan, copies_x=True), rng)
        assert choose(product.merged(), replace(MACHINE, int_dots=()))


def test_epilogue(rng: np.random.Generator) -> None:
    """Operands along columns, along rows and along both."""

    def steps(product: MatMul, sums: np.ndarray, *operands: np.ndarray) -> np.ndarray:
        orders = [step.order for step in product.epilogue if step.order]
        bias, scale, more = (
            np.einsum(f"{order},{product.y}->{product.y}", one, np.ones_like(sums))
            for one, order in zip(operands, orders)
        )
        value = (sums + bias) * scale
        return np.where(value < 0, 0.25 * value, value) + more

    epilogue = (
        PostOp("add", "n", "n"),
        PostOp("multiply", "m", "m"),
        PostOp("leaky_relu", value=0.25),
        PostOp("add", "mn", "mn"),
    )
    for x, w, y, sizes in (*PRODUCTS[:4], PRODUCTS[4]):
        product = replace(product_of(x, w, y, sizes), epilogue=epilogue).merged()
        check(product, PLANS[1], rng, steps)


def test_what_is_proposed_is_among_the_candidates() -> None:
    for case in PRODUCTS[:-1]:
        product = product_of(*case).merged()
        plan = choose(product, MACHINE)
        assert plan in [one for _, one in gemm_candidates(product, MACHINE)]


def test_letters_are_merged() -> None:
    """Neighbours everywhere become one, and what has one element none."""
    product = MatMul(
        (("a", 2), ("b", 3), ("o", 1), ("k", 5), ("n", 7)), "aobk", "kn", "aobn", ("float32",) * 3
    )
    merged = product.merged()
    assert (merged.x, merged.w, merged.y) == ("ak", "kn", "an")
    assert merged.size == {"a": 6, "k": 5, "n": 7}


def test_taps_of_one_are_products() -> None:
    """A convolution by one tap, with channels last, is chosen to be one where that is faster."""
    product = product_of("mk", "nk", "mn", (256, 256, 256))
    problem = product.as_conv()
    assert problem is not None and MatMul.of(problem).is_matrix_product
    found = {type(plan) for _, plan in itertools.islice(gemm_candidates(problem, MACHINE), 3)}
    assert found == {GemmPlan}
