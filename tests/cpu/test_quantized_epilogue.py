# SPDX-License-Identifier: Apache-2.0
"""Requantization in the epilogue: integer sums become float32, then integers of eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tvm

from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from helpers.kernels import HOST, built, problem_of
from helpers.quantized import finished, requantized
from topi_ext import backend, compat
from topi_ext.cpu.kernels import build
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.registry import KERNELS
from topi_ext.kernel.registry import Refused
from topi_ext.spec.layout import Layouts
from topi_ext.spec.matmul import MatMul
from topi_ext.spec.post_ops import PostOp

EXACT = (
    PostOp("add", "NCHW", "C", dtype="int32"),
    PostOp("cast"),
    PostOp("multiply", "NCHW", "C", dtype="float32"),
    PostOp("relu"),
    PostOp("quantize", value=-3, dtype="int8"),
)
"""Epilogue of QLinearConv, after a relu: no product is added to anything, so all kernels agree."""

RESIDUAL = (
    PostOp("cast"),
    PostOp("multiply", "NCHW", "C", dtype="float32"),
    PostOp("add", "NCHW", "NCHW", dtype="uint8", scale=0.37, zero_point=131),
    PostOp("leaky_relu", value=0.25),
    PostOp("quantize", value=121, dtype="uint8"),
    PostOp("maximum", value=7),
    PostOp("minimum", value=250),
)

FLOORED = (
    PostOp("add", "NCHW", "C", dtype="int32"),
    PostOp("cast"),
    PostOp("multiply", "NCHW", "C", dtype="float32"),
    PostOp("add", value=5.5),
    PostOp("floor"),
    PostOp("truncate"),
    PostOp("minimum", value=127),
    PostOp("maximum", value=-128),
)
"""Epilogue of Relay for x86: halves are rounded up, with a zero point of 5."""

DEQUANTIZED = (PostOp("cast"), PostOp("multiply", "NCHW", "C", dtype="float32"))

NHWC = Layouts("NHWC", "HWIO", "NHWC")

CASES = [
    Case("conv", (9, 13), (3, 2), n=1, ins=5, outs=6, stride=(1, 2), padding=(1,) * 4),
    Case("conv_transpose", (5, 7), (4, 3), n=1, ins=7, outs=5, stride=(2, 3), padding=(1,) * 4),
    Case("conv_transpose", (3, 3), (2, 16), n=1, ins=9, outs=5, stride=(1, 16)),
    Case("conv", (12, 12), (3, 3), n=1, ins=4, outs=8, padding=(7,) * 4, dilation=(7, 7)),
    Case("conv", (3, 2), (2, 2), n=1, ins=21, outs=37),
    Case("conv", (6, 5), (1, 1), n=1, ins=19, outs=40),
]

KINDS = (
    (EXACT, ("uint8", "int8", "int8")),
    (RESIDUAL, ("uint8", "int8", "uint8")),
    (DEQUANTIZED, ("int8", "int8", "float32")),
    (FLOORED, ("int8", "int8", "int8")),
)


def operands_of(
    steps: Sequence[PostOp], shape: tuple[int, ...], terms: int, rng: np.random.Generator
) -> list[np.ndarray]:
    made = []
    for step in steps:
        if step.order:
            size = [n if a in step.varies else 1 for a, n in zip("NCHW", shape)]
            if step.op == "multiply":
                # Most results lie between the limits, and some beyond them.
                made.append(rng.uniform(0.01, 0.02, size).astype("float32") / terms**0.5)
            else:
                low, high = (-999, 999) if step.dtype == "int32" else (0, 255)
                made.append(rng.integers(low, high, size, endpoint=True).astype(step.dtype))
    return made


def test_every_kernel(rng: np.random.Generator) -> None:
    """Every kernel for integers writes the expected values, for a case that it is made for."""
    machine = CpuMachine.of_features(*compat.llvm_features(HOST))
    chosen, kernels, tried = [], [], set()
    for number, (case, row) in enumerate((case, row) for case in CASES for row in KERNELS):
        if row.candidates is None or case.op not in row.kinds:
            continue
        steps, dtypes = KINDS[number % len(KINDS)]
        order = "NHWC" if case.kernel == (1, 1) else "NCHW"
        steps = tuple(replace(step, order=order) if step.order else step for step in steps)
        layouts = NHWC if order == "NHWC" else None
        one = FaceCase(case.op, geometry_of(case), case.n, layouts, dtypes)
        problem = replace(problem_of(one), epilogue=steps)
        found = row.cheapest(problem, machine)
        if not isinstance(found, Refused):
            kernels.append(build(problem, found[1]))
            chosen.append((one, KINDS[number % len(KINDS)][0]))
            tried.add(row.name)
    assert {"direct", "dot_product", "gemm", "gemm_col2im", "phase_lanes", "valid_taps"} <= tried
    compiled = built(kernels)
    for number, (one, steps) in enumerate(chosen):
        data, weight = one.arrays(rng)
        sums = one.want(data, weight)
        extra = operands_of(steps, sums.shape, one.terms, rng)
        want = finished(sums, steps, extra)
        operands = [one.stored(role, v) for role, v in zip(one.roles, (data, weight))]
        operands += [one.stored(one.roles[2], v) for v in extra]
        out = np.zeros(one.stored_shape(one.roles[2]), one.dtypes[2])
        arrays = [tvm.runtime.tensor(v) for v in (*operands, out)]
        compiled[f"f{number}"](*arrays)
        got = one.opened(one.roles[2], arrays[-1].numpy())
        assert want.std() > (5 if steps is not DEQUANTIZED else 0.1)
        # A processor may round a product and the sum with it once, not twice.
        np.testing.assert_allclose(
            got.astype("float64"), want, rtol=0, atol=steps in (RESIDUAL, FLOORED), err_msg=str(one)
        )


def test_matrix_product(rng: np.random.Generator) -> None:
    """One of bytes, in a batch, with a scale for each column."""
    steps = (
        PostOp("cast"),
        PostOp("multiply", "n", "n", dtype="float32"),
        PostOp("quantize", value=9, dtype="uint8"),
    )
    sizes = {"b": 2, "m": 5, "k": 33, "n": 21}
    product = MatMul(tuple(sizes.items()), "bmk", "bkn", "bmn", ("uint8", "int8", "uint8"), steps)
    x = rng.integers(0, 255, (2, 5, 33), "uint8", endpoint=True)
    w = rng.integers(-128, 127, (2, 33, 21), "int8", endpoint=True)
    scale = rng.uniform(0.0005, 0.002, 21).astype("float32")
    out = tvm.runtime.tensor(np.zeros((2, 5, 21), "uint8"))
    kernel = built([backend.build(product, HOST)])["f0"]
    kernel(*map(tvm.runtime.tensor, (x, w, scale)), out)
    want = finished(x.astype("int32") @ w.astype("int32"), steps, [scale])
    np.testing.assert_array_equal(out.numpy(), want)


def test_rounding_of_numbers_of_every_size() -> None:
    """Halves go to the even number, what is too large to the limits, NaN to the smallest."""
    halves = np.arange(-300, 300) + 0.5
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 3e38, -3e38, 2.0**22 + 0.5, 65535.5]
    near = np.nextafter(halves, [[-np.inf], [np.inf]], dtype="float32")
    factors = np.concatenate([halves, *near, special]).astype("float32")
    outs, wanted = factors.size, ("int8", "uint8", "int16")
    case = Case("conv", (1, 1), (1, 1), n=1, ins=1, outs=outs)
    machine = CpuMachine.of_features(*compat.llvm_features(HOST))
    (row,) = (row for row in KERNELS if row.name == "direct")
    kernels = []
    for dtype in wanted:
        one = FaceCase("conv", geometry_of(case), 1, None, ("int8", "int8", dtype))
        steps = (
            PostOp("cast"),
            PostOp("multiply", "NCHW", "C", dtype="float32"),
            PostOp("quantize", value=3, dtype=dtype),
        )
        problem = replace(problem_of(one), epilogue=steps)
        kernels.append(build(problem, row.cheapest(problem, machine)[1]))
    compiled = built(kernels)
    ones = [np.ones(shape, "int8") for shape in ((1, 1, 1, 1), (outs, 1, 1, 1))]
    for number, dtype in enumerate(wanted):
        out = tvm.runtime.tensor(np.zeros((1, outs, 1, 1), dtype))
        arrays = [*ones, factors.reshape(1, -1, 1, 1)]
        compiled[f"f{number}"](*map(tvm.runtime.tensor, arrays), out)
        np.testing.assert_array_equal(out.numpy().ravel(), requantized(factors, 3, dtype))
