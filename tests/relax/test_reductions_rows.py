# SPDX-License-Identifier: Apache-2.0
"""Reductions that the pipeline computes in stages of rows, against float64 of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op
from tvm.script import relax as R

from helpers.profile import compiling
from helpers.whole import compiled
from topi_ext.compat import as_size, tir, with_replaced

TOLERANCE = 4e-7
"""Maximum error, relative to the sum of magnitudes: stages of at most 512 additions round to about
their root in units of 2^-24. One chain of 36,864 additions of positive numbers is off by 1e-6 to
3e-5."""

REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "sum": (op.sum, torch.sum),
    "mean": (op.mean, torch.mean),
    "max": (op.max, torch.amax),
    "min": (op.min, torch.amin),
}

SHAPES = [
    ((2, 4, 96, 96), (0, 2, 3)),  # rows of 96
    ((2, 96, 96, 4), (0, 1, 2)),  # columns, as NHWC has them
    ((3, 5, 41, 37), (0, 1, 2, 3)),  # one result
    ((16, 24, 7, 7), (0, 2, 3)),  # rows of 49, from two axes
    ((40, 6, 3), (0, 2)),  # rows too short
    ((5, 769), (1,)),  # no divisor fits
    ((1, 36871), (0, 1)),  # a prime number of elements, in chunks
    ((4099, 3), (0,)),  # a prime number of rows
    ((2, 769, 1), (1, 2)),  # an axis of one element behind the row
    ((1, 4099, 1, 3), (0, 1, 2)),  # and behind the steps
    ((3, 2, 5000), (0, 2)),  # a long row
]


def module(inputs: list[tuple[tuple[Any, ...], str]], expression: Callable[..., Any]) -> Any:
    """A module with one function of tensors."""
    variables = [
        relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            result = bb.emit_output(expression(*variables))
        bb.emit_func_output(result)
    return bb.get()


def run(expression: Callable[..., Any], *tensors: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The result of the pipeline's code, and the module that it is made of."""
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    shapes = [tuple(tensor.shape) for tensor in tensors]
    function, mod = compiled(module(list(zip(shapes, dtypes)), expression))
    result = function(*(tvm.runtime.tensor(tensor.numpy()) for tensor in tensors))
    return torch.from_numpy(result.numpy()), mod


def check(name: str, x: torch.Tensor, axes: tuple[int, ...], *, keeps: bool = False) -> Any:
    """Compare a reduction with PyTorch in float64; maxima and minima are exact."""
    reduce, oracle = REDUCTIONS[name]
    got, mod = run(lambda v: reduce(v, list(axes), keeps), x)
    want = oracle(x.double(), axes, keeps)
    limit = TOLERANCE * oracle(x.double().abs(), axes, keeps).nan_to_num(0, 0, 0).max().item()
    limit = limit if name in ("sum", "mean") else 0
    torch.testing.assert_close(got.double(), want, rtol=0, atol=limit, equal_nan=True)
    return mod


def stored(mod: Any) -> list[set[tuple[int, ...]]]:
    """For each function that loops, the shapes of what it stores between its loops."""
    return [
        {tuple(int(size) for size in buffer.shape) for buffer in func.body.block.alloc_buffers}
        for _, func in mod.functions_items()
        if isinstance(func, tir.PrimFunc)
    ]


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("name", ["sum", "max"])
def test_values(name: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    torch.manual_seed(len(shape) + sum(shape))
    check(name, torch.rand(shape) + 0.5, axes)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[int, ...], bool, int]:
    """An operator, sizes of which one may be long, axes, whether they are kept, and a seed."""
    rank = draw(st.integers(1, 4))
    size = st.sampled_from([1, 2, 3, 7, 8, 16, 17, 31, 32, 33])
    shape = [draw(size) for _ in range(rank)]
    shape[draw(st.integers(0, rank - 1))] = draw(st.integers(1, 700))
    axes = draw(st.sets(st.integers(0, rank - 1), min_size=1))
    name, keeps = draw(st.sampled_from(sorted(REDUCTIONS))), draw(st.booleans())
    return name, tuple(shape), tuple(sorted(axes)), keeps, draw(st.integers(0, 2**31))


@compiling(12)
@given(case=reductions())
def test_any_reduction(case: tuple[str, tuple[int, ...], tuple[int, ...], bool, int]) -> None:
    name, shape, axes, keeps, seed = case
    torch.manual_seed(seed)
    check(name, torch.randn(shape), axes, keeps=keeps)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nan_and_infinity_are_kept(name: str) -> None:
    """One in the last step that is whole, one in the part that no divisor fits, one alone."""
    x = torch.randn(6, 769)
    x[0, 700], x[1, 768], x[2, 5] = float("nan"), float("nan"), float("inf")
    x[3, 768], x[4] = -float("inf"), -float("inf")
    check(name, x, (1,))
    check(name, torch.stack([x, x]).reshape(2, 6, 769), (0, 2))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_infinities_alone(name: str) -> None:
    """The lanes beyond the end of a row begin with infinity too, not with the largest number."""
    infinity = torch.full((2, 769), float("inf") if name == "min" else -float("inf"))
    check(name, infinity, (1,))


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
def test_other_dtypes(dtype: str) -> None:
    torch.manual_seed(3)
    x = torch.randint(-9, 10, (3, 4, 40, 5)).to(getattr(torch, dtype))
    got, _ = run(lambda v: op.sum(v, [0, 2, 3]), x)
    assert torch.equal(got.double(), x.double().sum((0, 2, 3)))  # below 2^11


def test_producers_are_read_once() -> None:
    """A norm's gradient: the product is one function with its sum, and never stored whole."""
    torch.manual_seed(4)
    dy, x, mean = torch.randn(4, 16, 24, 48), torch.randn(4, 16, 24, 48), torch.randn(16, 1, 1)
    got, mod = run(
        lambda a, b, c: op.sum(op.multiply(a, op.subtract(b, c)), [0, 2, 3]), dy, x, mean
    )
    product = dy.double() * (x.double() - mean.double())
    limit = TOLERANCE * product.abs().sum((0, 2, 3)).max().item()
    torch.testing.assert_close(got.double(), product.sum((0, 2, 3)), rtol=0, atol=limit)
    assert stored(mod) == [{(16, 48), (16, 8)}]


def test_logarithms_are_those_of_sums() -> None:
    """Not one for each channel that is divided by a sum."""
    torch.manual_seed(6)
    x = torch.randn(2, 21, 8, 16)
    got, mod = run(lambda v: op.nn.log_softmax(v, 1), x)
    want = x.double().log_softmax(1)
    limit = TOLERANCE * want.abs().max().item()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=limit)
    (scheduled,) = (f.script() for _, f in mod.functions_items() if isinstance(f, tir.PrimFunc))
    before_the_result = scheduled.rpartition("T_subtract")[0].rpartition("for ")[0]
    assert "topi_ext_log" in before_the_result


def test_bias_gradient() -> None:
    torch.manual_seed(5)
    x = torch.rand(2, 16, 48, 96) + 0.5
    got, mod = run(lambda v: op.collapse_sum_to(v, (16, 1, 1)), x)
    want = x.double().sum((0, 2, 3))[:, None, None]
    limit = TOLERANCE * want.max().item()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=limit)
    assert {(16, 96), (16, 8)} in stored(mod)


@pytest.mark.parametrize("name", ["sum", "max"])
@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (2,), (0, 2)])
def test_symbolic_sizes(name: str, axes: tuple[int, ...]) -> None:
    """A symbolic axis as rows and as columns; steps of a chunk where it has many."""
    n, m = tir.Var("n", "int64"), tir.Var("m", "int64")
    reduce, oracle = REDUCTIONS[name]
    inputs = [((3, n, m), "float32")]
    function, _ = compiled(module(inputs, lambda v: reduce(v, list(axes))))
    rng = np.random.default_rng(6)
    for sizes in ((3, 1, 1), (3, 300, 37), (3, 5, 1000)):
        x = rng.random(sizes, "float32")
        got = torch.from_numpy(function(tvm.runtime.tensor(x)).numpy()).double()
        want = oracle(torch.from_numpy(x).double(), axes)
        limit = TOLERANCE * want.abs().max().item() if name == "sum" else 0
        torch.testing.assert_close(got, want, rtol=0, atol=limit)


SYMBOLIC = {
    "columns": ((None, 5, 7), (0,)),
    "row": ((3, 30, None), (2,)),
    "one row": ((1, None, 1), (0, 1, 2)),
    "image": ((64, None, None), (1, 2)),
    "batch and image": ((None, 3, None, None), (0, 2, 3)),
    "channels last": ((None, None, 6), (0, 1)),
    "constant columns": ((5, None), (0,)),
}
"""Shapes with None for each symbolic size, and the axes that are reduced."""

SIZES = ((1, 1, 1), (2, 33, 31), (3, 5, 1000), (70, 1, 64), (600, 3, 3), (1, 2, 40961), (513, 1, 5))
"""Symbolic sizes in turn: one element, fewer than a vector has lanes, many chunks, odd."""


def symbolic(name: str, axes: tuple[int, ...], shape: tuple[int | None, ...]) -> tuple[Any, Any]:
    """A reduction over some symbolic axes: the pipeline's code, and the module of it."""
    sizes = [tir.Var(f"n{axis}", "int64") if n is None else n for axis, n in enumerate(shape)]
    reduce = {**REDUCTIONS, "prod": (op.prod, None)}[name][0]
    return compiled(module([(tuple(sizes), "float32")], lambda v: reduce(v, list(axes))))


def filled(shape: tuple[int | None, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    rest = iter(sizes)
    return tuple(next(rest) if size is None else size for size in shape)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["sum", "min"])
@pytest.mark.parametrize("case", SYMBOLIC)
def test_any_symbolic_size(name: str, case: str) -> None:
    """One function for short and long reductions, with a guard wherever no size fits."""
    shape, axes = SYMBOLIC[case]
    function, _ = symbolic(name, axes, shape)
    oracle = REDUCTIONS[name][1]
    rng = np.random.default_rng(7)
    for sizes in SIZES:
        x = rng.random(filled(shape, sizes), "float32") + 0.5
        got = torch.from_numpy(function(tvm.runtime.tensor(x)).numpy()).double()
        want = oracle(torch.from_numpy(x).double(), axes)
        limit = 0 if name == "min" else TOLERANCE * want.max().item()
        torch.testing.assert_close(got, want, rtol=0, atol=limit)


@pytest.mark.smoke
def test_several_reductions_of_symbolic_rows() -> None:
    """A maximum and a sum in one function, which has loops in common for short and long rows."""
    n = tir.Var("n", "int64")
    function, _ = compiled(module([((3, n), "float32")], lambda v: op.nn.log_softmax(v, -1)))
    for size in (1, 7, 63, 64, 1000):
        x = torch.rand(3, size)
        got = torch.from_numpy(function(tvm.runtime.tensor(x.numpy())).numpy()).double()
        torch.testing.assert_close(got, x.double().log_softmax(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_sizes_of_zero(case: str) -> None:
    """Sums of nothing, and no results, without a division by the length of no chunk."""
    shape, axes = SYMBOLIC[case]
    function, _ = symbolic("sum", axes, shape)
    for at in range(shape.count(None)):
        x = np.ones(filled(shape, tuple(0 if axis == at else 4 for axis in range(3))), "float32")
        got = function(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(got, x.sum(axes))


def guarded_iterations(func: Any) -> list[int]:
    """Constant numbers of iterations of the loops that are around a guarded element."""
    found = []

    def note(loop: Any) -> None:
        extent = as_size(loop.extent)
        if isinstance(extent, int) and re.search("if_then_else|if .*:", str(loop.body)):
            found.append(extent)

    with_replaced(func.body, {"For": note})
    return found


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["sum", "max", "prod"])
@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_sizes_are_not_padded(name: str, case: str) -> None:
    """Only lanes and results are a constant number: 256 steps were, for a row of one too."""
    shape, axes = SYMBOLIC[case]
    _, mod = symbolic(name, axes, shape)
    funcs = [func for _, func in mod.functions_items() if isinstance(func, tir.PrimFunc)]
    assert max((n for func in funcs for n in guarded_iterations(func)), default=0) <= 64


@pytest.mark.smoke
@pytest.mark.parametrize("case", SYMBOLIC)
def test_elements_are_combined_without_a_condition(case: str) -> None:
    """Loops end where the elements do, and LLVM keeps what whole steps combine in registers."""
    shape, axes = SYMBOLIC[case]
    _, mod = symbolic("sum", axes, shape)
    funcs = [func for _, func in mod.functions_items() if isinstance(func, tir.PrimFunc)]
    assert not any("if_then_else" in str(func) for func in funcs)


@pytest.mark.smoke
def test_padded_operands_of_sums() -> None:
    """An element-wise sum is no reduction, and is stored where a padded operand is zero as well."""
    x, y = torch.randn(2, 3, 8, 9), torch.randn(2, 3, 10, 11)
    got, _ = run(lambda a, b: op.add(b, op.nn.pad(a, [0, 0, 0, 0, 1, 1, 1, 1])), x, y)
    want = y + torch.nn.functional.pad(x, (1, 1, 1, 1))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
