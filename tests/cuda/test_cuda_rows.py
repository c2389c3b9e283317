# SPDX-License-Identifier: Apache-2.0
"""Softmax and norms for CUDA: emulated, against PyTorch in float64."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from helpers import cuda
from helpers.compare import numpy_dtype
from helpers.emulated import BACKEND, emulated
from topi_ext.compat import size_var
from topi_ext.cuda.machine import GRID
from topi_ext.cuda.plan.rowwise import RowwisePlan, rowwise_candidates
from topi_ext.spec.post_ops import PostOp
from topi_ext.spec.rowwise import MASKED_SOFTMAX, NORMALIZE, SOFTMAX, RowWise

AFFINE = (PostOp("multiply", "gc", "gc"), PostOp("add", "gc", "gc"))
RESIDUAL = (PostOp("add", "ngcs", "ngcs"), PostOp("silu"))

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""Relative to the largest result: the mean, a hundred deviations, is rounded to float32."""


class Rows(NamedTuple):
    """An operator on a tensor of these axes, and its plan."""

    sizes: tuple[int, ...]
    plan: RowwisePlan
    dtype: str = "float32"
    op: str = NORMALIZE
    columns: str = "cs"
    epilogue: tuple[PostOp, ...] = AFFINE
    is_symbolic: bool = False
    letters: str = "ngcs"

    @property
    def problem(self) -> RowWise:
        sizes = tuple(zip(self.letters, self.sizes))
        dtypes = (self.dtype, self.dtype)
        made = RowWise(self.op, sizes, self.columns, dtypes, 1e-5, self.epilogue).merged()
        if not self.is_symbolic:
            return made
        any_size = tuple((a, None if a in "ns" else size) for a, size in made.sizes)
        return replace(made, sizes=any_size).with_sizes(size_var)


CASES = {
    "in registers": Rows((2, 3, 5, 12), RowwisePlan(8, 4, 2), epilogue=(*AFFINE, *RESIDUAL)),
    "odd rows by warps": Rows((1, 3, 3, 7), RowwisePlan(32, 1, 1)),
    "several warps, read again": Rows(
        (1, 3, 5, 120), RowwisePlan(64, 8, 1), "float16", epilogue=(*AFFINE, *RESIDUAL)),
    "a block": Rows((1, 1, 3, 700), RowwisePlan(512, 4, 1)),
    "parts, of which one is empty": Rows((1, 2, 3, 12), RowwisePlan(8, 4, 1, 8)),
    "bfloat16": Rows((2, 3, 2, 16), RowwisePlan(8, 8, 1), "bfloat16"),
    "instance norm in float64": Rows((3, 2, 5, 6), RowwisePlan(16, 2, 1), "float64", columns="s"),
    "symbolic": Rows(
        (2, 3, 4, 9), RowwisePlan(16, 1, 2), epilogue=(*AFFINE, *RESIDUAL), is_symbolic=True),
    "channels last": Rows(
        (2, 9, 3, 4), RowwisePlan(16, 4, 1), columns="sc", letters="nsgc"),
    "channels last, any size, read again": Rows(
        (2, 9, 3, 4), RowwisePlan(8, 2, 1), "float16", columns="sc", is_symbolic=True,
        letters="nsgc"),
    "softmax": Rows((2, 2, 3, 37), RowwisePlan(16, 1, 4), "float32", SOFTMAX, "s", ()),
    "softmax, read again": Rows(
        (1, 1, 3, 1040), RowwisePlan(64, 8, 1), "float16", SOFTMAX, "s", ()),
    "softmax of masked rows": Rows(
        (2, 2, 3, 8), RowwisePlan(8, 4, 1), "float32", MASKED_SOFTMAX, "s", ()),
}  # fmt: skip


def operands_of(case: Rows, rng: np.random.Generator) -> list[np.ndarray]:
    """The tensor, then the operands of the epilogue."""
    size = dict(zip(case.letters, case.sizes))
    shapes = [case.sizes, *([size[a] for a in s.order] for s in case.epilogue if s.order)]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    if case.op == NORMALIZE:
        arrays[0] += 100
    else:
        arrays[0] *= 60
        arrays[0][0, 0, :2] = -inf
        arrays[0][0, 0, 1, 3] = 1.0
    return [array.astype(numpy_dtype(case.dtype)) for array in arrays]


def expected(case: Rows, arrays: list[np.ndarray]) -> np.ndarray:
    x, *others = (torch.from_numpy(array.astype("float64")) for array in arrays)
    rows = tuple(case.letters.index(letter) for letter in case.columns)
    if case.op != NORMALIZE:
        y = x.softmax(-1)
        return (y.nan_to_num(0.0) if case.op == MASKED_SOFTMAX else y).numpy()
    y = (x - x.mean(rows, True)) / (x.var(rows, correction=0, keepdim=True) + 1e-5).sqrt()
    scale, shift, *residual = others
    if case.letters.endswith("s"):
        scale, shift = scale[..., None], shift[..., None]
    y = y * scale + shift
    return torch.nn.functional.silu(y + residual[0]).numpy() if residual else y.numpy()


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Threads in ascending and in shuffled order, every access watched."""
    case = CASES[name]
    run = emulated(BACKEND.build(case.problem, case.plan))
    assert len(run.kernels) == (1 if case.plan.parts == 1 else 2)
    cuda.check_compiles(run.source, tmp_path)
    arrays = operands_of(case, rng)
    want = expected(case, arrays)
    limit = TOLERANCE[case.dtype] * np.nanmax(np.abs(want))
    if not case.is_symbolic:
        shapes = [tuple(map(int, one.shape)) for one in run.parameters()]
        arrays = [array.reshape(shape) for array, shape in zip(arrays, shapes)]
    for order in (0, 2):
        out = np.full_like(arrays[0], 77)
        run(*arrays, out, order=order)
        got = out.astype("float64").reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=0, atol=limit)


def test_no_rows() -> None:
    case = CASES["symbolic"]
    run = emulated(BACKEND.build(case.problem, case.plan))
    empty = case._replace(sizes=(0, *case.sizes[1:]))
    arrays = operands_of(empty, np.random.default_rng(0))
    run(*arrays, arrays[0].copy())


@pytest.mark.parametrize("length", [3, 32, 77, 1280, 40960, 1 << 20])
def test_plans(length: int) -> None:
    """Vectors divide rows, teams fit a block, and what is held fits its registers."""
    for dtype in ("float16", "float32", "float64"):
        case = Rows((2, 1, 1, length), RowwisePlan(8, 1, 1), dtype, columns="s", epilogue=())
        plans = [plan for _, plan in rowwise_candidates(case.problem, BACKEND.machine)]
        assert plans
        for plan in plans:
            assert length % plan.vector == 0 and plan.threads <= 1024
            assert plan.vector * plan.turns * (8 if dtype == "float64" else 4) <= 128


def test_long_rows_are_divided_only_if_there_are_few() -> None:
    def parts(rows: int) -> int:
        case = Rows((rows, 1, 1, 1 << 15), RowwisePlan(8, 1, 1), columns="s", epilogue=())
        return BACKEND.choice(case.problem).plan.parts

    assert parts(1) > 1 and parts(1000) == 1


def test_a_row_that_cannot_be_numbered() -> None:
    case = Rows((1, 1, 1, GRID), RowwisePlan(8, 1, 1), columns="s", epilogue=())
    with pytest.raises(ValueError, match="elements of a row with 32 bits: at most 1073741823"):
        BACKEND.build(case.problem)
