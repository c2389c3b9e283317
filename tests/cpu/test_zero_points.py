# SPDX-License-Identifier: Apache-2.0
"""Zero points of quantized operands: every kernel that serves integers, against float64 sums of
operands from which they were subtracted, which are exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import tvm

from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from helpers.kernels import HOST, built, free, problem_of
from helpers.quantized import OPERANDS, run
from topi_ext import backend
from topi_ext.cpu import kernels
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.registry import KERNELS
from topi_ext.kernel.registry import Refused
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import Fused
from topi_ext.spec.reference import Reference

MACHINE = CpuMachine(vector_bytes=32, registers=16)

NHWC = Layouts("NHWC", "HWIO", "NHWC")

CASES = [
    Case("conv", (12, 11), (3, 3), 1, ins=8, outs=16, stride=(1, 2), padding=(1, 2, 0, 1)),
    Case("conv", (3, 2), (2, 2), 1, ins=21, outs=37, padding=(1,) * 4),
    Case("conv", (5, 6, 7), (3, 2, 3), 1, ins=6, outs=33, padding=(3, 1, 2) * 2,
         dilation=(3, 2, 2)),
    Case("conv_transpose", (2, 2), (3, 3), 1, ins=64, outs=32, stride=(2, 2),
         output_padding=(1, 0)),
    Case("conv_transpose", (40,), (16,), 1, ins=8, outs=2, stride=(8,), padding=(4, 4)),
    Case("conv_transpose", (5, 9), (3, 3), ins=4, outs=6, groups=2, stride=(2, 1),
         dilation=(1, 2)),
]  # fmt: skip


def test_each_kernel() -> None:
    """By a plan of each row that serves the case."""
    made, chosen, seen, operands = [], [], set(), cycle(OPERANDS)
    for case, row in ((c, r) for c in CASES for r in KERNELS.of_kind(c.op)):
        layouts = NHWC if case in CASES[::5] else None
        dtypes, zero_points = next(operands)
        face = FaceCase(case.op, geometry_of(case), case.n, layouts, dtypes)
        problem = replace(problem_of(face), zero_points=zero_points)
        found = row.cheapest(problem, MACHINE)
        if not isinstance(found, Refused):
            seen.add(row.name)
            made.append(kernels.build(problem, found[1]))
            chosen.append((face, zero_points))
    assert {"direct", "dot_product", "gemm_col2im", "phase_lanes", "valid_taps"} <= seen
    functions, rng = built(made), np.random.default_rng(0)
    for number, one in enumerate(chosen):
        run(functions[f"f{number}"], *one, rng)


@pytest.mark.parametrize("known", ["when compiled", "when run"])
def test_as_an_adapter_asks(known: str) -> None:
    """Weights that are packed ahead, or not."""
    made, packings = [], []
    cases = CASES if known == "when compiled" else CASES[::3]
    for case, (dtypes, zero_points) in zip(cases, OPERANDS):
        face = FaceCase(case.op, geometry_of(case), case.n, None, dtypes)
        problem = problem_of(face) if known == "when compiled" else free(face)
        sizes = (face.geometry, face.n)
        if known == "when run":
            rank = case.rank
            g = problem.geometry
            sizes = (replace(face.geometry, x_size=g.x_size[-rank:], y_size=g.y_size[-rank:]),
                     problem.n)  # fmt: skip
        fused = Fused((), zero_points)
        asked = Convolution.of(face.face, sizes[0], face.orders, sizes[1], dtypes, fused)
        made.append(backend.build(asked, HOST))
        packing, kernel = backend.prepack(asked, HOST)
        packings.append(packing)
        made.append(kernel)
    functions = built(made)
    packers = built([packing.func for packing in packings if packing])
    numbers = iter(range(len(packings)))
    rng = np.random.default_rng(0)
    for i, (case, packing, (dtypes, zeros)) in enumerate(zip(cases, packings, OPERANDS)):
        face = FaceCase(case.op, geometry_of(case), case.n, None, dtypes)
        run(functions[f"f{2 * i}"], face, zeros, rng)
        packer = packers[f"f{next(numbers)}"] if packing else None
        run(functions[f"f{2 * i + 1}"], face, zeros, rng, packing and (packer, packing))


def test_reference() -> None:
    """The NumPy loops subtract zero points."""
    rng = np.random.default_rng(0)
    for case, (dtypes, zero_points) in zip(CASES[1::2], OPERANDS):
        face = FaceCase(case.op, geometry_of(case), case.n, None, dtypes)
        a, b = face.arrays(rng)
        want = face.want(*(v.astype("float64") - zero for v, zero in zip((a, b), zero_points)))
        got = getattr(Reference(None, zero_points), case.op)(a, b, face.geometry)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("face", "dtypes", "zeros", "line"),
    [
        ("conv_weight_grad", ("int8", "int8", "int32"), (1, 0), "a gradient has no zero points"),
        ("conv", ("int8", "int8", "int32"), (0, 128), "zero point 128 of int8 must be from -128"),
        ("conv", ("uint8", "int8", "int32"), (-1, 0), "zero point -1 of uint8 must be from 0"),
        ("conv", ("float32",) * 3, (1, 0), "needs an operand of int8 or uint8, not float32"),
    ],
)
def test_what_is_no_zero_point(face: str, dtypes: tuple, zeros: tuple, line: str) -> None:
    case = FaceCase(face, geometry_of(CASES[0]), 1, None, dtypes)
    with pytest.raises(ValueError, match=line):
        replace(problem_of(case), zero_points=zeros)


def test_no_kernel_for_cuda_has_them() -> None:
    """Callers ask, and get none."""
    case = FaceCase("conv", geometry_of(CASES[0]), 1, None, ("uint8", "int8", "int32"))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    problem = Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes)
    assert backend.build(problem, target) is not None
    problem = replace(problem, zero_points=(3, 0))
    reason = backend.supports(problem.kind, target, problem.zero_points).reason
    assert reason == "target kind cuda has no kernels with zero points"
    assert backend.build(problem, target) is None
    assert backend.prepack(problem, target) == (None, None)
