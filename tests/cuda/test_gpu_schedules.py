# SPDX-License-Identifier: Apache-2.0
"""Operators around ours on GPUs, scheduled by ours and emulated, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax
from tvm.script import relax as R

import cuda_emulator
import relax_ext
from helpers import cuda
from topi_ext.compat import tir

OP = relax.op


class Operator(NamedTuple):
    """An operator in Relax and in PyTorch, the shapes of its operands, and how many elements are
    added up for a result."""

    relax: Callable[..., relax.Expr]
    torch: Callable[..., torch.Tensor]
    shapes: Sequence[tuple[Any, ...]]
    terms: int = 1
    dtype: str = "float32"


def cat(axis: int) -> tuple[Callable, Callable]:
    return (
        lambda *xs: OP.concat(list(xs), axis=axis),
        lambda *xs: torch.cat(xs, axis),
    )


def summed(*axes: int) -> tuple[Callable, Callable]:
    """A fused square before a sum, and a root after it."""
    return (
        lambda x: OP.sqrt(OP.sum(OP.multiply(x, x), list(axes))),
        lambda x: (x * x).sum(axes).sqrt(),
    )


def silu_in_float32(x: relax.Expr) -> relax.Expr:
    """PyTorch's decomposition of it for halves."""
    wide = OP.astype(x, "float32")
    return OP.astype(OP.multiply(wide, OP.sigmoid(wide)), "float16")


POOL = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}


def max_pool_grad(dilation: int) -> tuple[Callable, Callable]:
    def gradient(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        F.max_pool2d(x, 3, 2, 1, dilation).backward(dy)
        return x.grad

    taps = {"dilation": (dilation, dilation), **POOL}
    return (lambda dy, x: OP.grad.max_pool2d_backward(dy, x, **taps)), gradient


OPERATORS = {
    "concatenation in vectors": Operator(*cat(1), [(2, 3, 8), (2, 5, 8)]),
    "concatenation along rows": Operator(*cat(2), [(2, 3, 5), (2, 3, 6)]),
    "halves in vectors": Operator(
        lambda x, y: OP.nn.relu(OP.add(x, y)), lambda x, y: F.relu(x + y),
        [(3, 5, 24), (3, 5, 24)], dtype="float16"),
    "halves by a condition": Operator(
        lambda x: OP.nn.leakyrelu(x, 0.25), lambda x: F.leaky_relu(x, 0.25), [(3, 5, 24)],
        dtype="float16"),
    "halves by float32": Operator(silu_in_float32, F.silu, [(3, 5, 24)], dtype="float16"),
    "windows": Operator(
        lambda x: OP.nn.max_pool2d(x, **POOL), lambda x: F.max_pool2d(x, 3, 2, 1), [(2, 3, 9, 8)]),
    "windows of sums": Operator(
        lambda x: OP.nn.avg_pool2d(x, (2, 2), (2, 2)), lambda x: F.avg_pool2d(x, 2),
        [(2, 3, 8, 6)], 4),
    "gradients of windows": Operator(*max_pool_grad(1), [(2, 3, 5, 4), (2, 3, 9, 8)], 4),
    "gradients of dilated windows": Operator(*max_pool_grad(2), [(2, 3, 4, 3), (2, 3, 9, 8)], 4),
    "short rows, by warps": Operator(*summed(2), [(3, 4, 70)], 70),
    "long rows, by blocks": Operator(*summed(1), [(5, 1500)], 1500),
    "few rows, in parts": Operator(*summed(0, 2, 3), [(4, 3, 32, 33)], 4224),
    "columns": Operator(*summed(1), [(2, 90, 24)], 90),
    "columns in parts": Operator(*summed(0), [(1200, 32)], 1200),
    "columns without a common divisor": Operator(*summed(0), [(50, 37)], 50),
    "softmax of columns": Operator(
        lambda x: OP.nn.softmax(x, 1), lambda x: torch.softmax(x, 1), [(2, 40, 16)], 40),
    "logarithms of softmax": Operator(
        lambda x: OP.nn.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1), [(3, 5, 300)], 300),
    "root of mean squares": Operator(
        lambda *xs: OP.nn.rms_norm(*xs, axes=[-1]),
        lambda x, scale: F.rms_norm(x, (70,), scale, 1e-5), [(6, 70), (70,)], 70),
    "group norm, our kernel": Operator(
        lambda *xs: OP.nn.silu(OP.nn.group_norm(*xs, 3, 1, [2, 3])),
        lambda x, *affine: F.silu(F.group_norm(x, 3, *affine)), [(2, 6, 5, 8), (6,), (6,)], 80),
    "group norm, channels last": Operator(
        lambda *xs: OP.nn.group_norm(*xs, 2, 3, [1, 2]),
        lambda x, *affine: F.group_norm(x.movedim(3, 1), 2, *affine).movedim(1, 3),
        [(2, 5, 4, 8), (8,), (8,)], 80),
    "variances": Operator(
        lambda x: OP.variance(x, [0, 2, 3]), lambda x: x.var((0, 2, 3), correction=0),
        [(3, 4, 8, 9)], 216),
    "halves, summed": Operator(
        lambda x: OP.sum(x, [1]), lambda x: x.sum(1), [(3, 40)], 1, "float16"),
    "rows of any batch": Operator(*summed(1), [("n", 200)], 200),
    "columns of any batch": Operator(*summed(0), [("n", 24)], 5),
}  # fmt: skip
BATCH = 5


@tvm.instrument.pass_instrument
class _Scheduled:
    """The module before and after TVM's rules, which find what has no schedule."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.module: tvm.IRModule | None = None

    def run_before_pass(self, module: tvm.IRModule, info: Any) -> None:
        if info.name == "ApplyDefaultSchedule":
            self.left = [
                gv.name_hint
                for gv, func in module.functions_items()
                if isinstance(func, tir.PrimFunc) and "tirx.is_scheduled" not in func.attrs
            ]

    def run_after_pass(self, module: tvm.IRModule, info: Any) -> None:
        if info.name == "ApplyDefaultSchedule":
            self.module = module


def scheduled(operators: Sequence[Operator]) -> tuple[_Scheduled, list[str]]:
    """The kernels of operators by the pipeline, and the name of the kernel of each."""
    bb = relax.BlockBuilder()
    for number, operator in enumerate(operators):
        n = tir.Var("n", "int64")
        shapes = [[n if size == "n" else size for size in shape] for shape in operator.shapes]
        xs = [relax.Var(f"x{i}", R.Tensor(shape, operator.dtype)) for i, shape in enumerate(shapes)]
        with bb.function(f"f{number}", xs):
            with bb.dataflow():
                out = bb.emit_output(operator.relax(*xs))
            bb.emit_func_output(out)
    seen = _Scheduled()
    with tvm.transform.PassContext(opt_level=3, instruments=[seen]):
        relax_ext.pipeline(cuda.target())(bb.get())
    # Reshapes become views later.
    calls = [
        [name for binding in seen.module[f"f{i}"].body.blocks[0].bindings
         if isinstance(binding.value, relax.Call)
         and not (name := binding.value.args[0].name_hint).startswith("reshape")]
        for i in range(len(operators))
    ]  # fmt: skip
    return seen, calls


@pytest.fixture(scope="module")
def kernels() -> tuple[_Scheduled, dict[str, list[str]], cuda_emulator.Run]:
    seen, calls = scheduled(list(OPERATORS.values()))
    run = cuda_emulator.build(
        tvm.IRModule({
            gv: func.with_attr("global_symbol", gv.name_hint)
            for gv, func in seen.module.functions_items() if isinstance(func, tir.PrimFunc)
        }), cuda.target(), mode="watch")  # fmt: skip
    return seen, dict(zip(OPERATORS, calls)), run


def test_nothing_is_left_to_the_default_rules(kernels: tuple, tmp_path: Path) -> None:
    seen, _, run = kernels
    assert seen.left == []
    cuda.check_compiles(run.source, tmp_path)


def test_a_norm_with_what_follows_is_one_launch(kernels: tuple) -> None:
    _, calls, run = kernels
    for case, steps in {"our kernel": "multiply_add_silu", "channels last": "multiply_add"}.items():
        (name,) = calls[f"group norm, {case}"]
        shapes = [tuple(map(int, one.shape)) for one in run.parameters(name)]
        assert name == f"group_norm_{steps}" and len(run.launches(*shapes, name=name)) == 1


@pytest.mark.parametrize("name", OPERATORS)
def test_values(name: str, kernels: tuple, rng: np.random.Generator) -> None:
    """Threads in ascending and in shuffled order: no thread reads what another one may not have
    written."""
    _, calls, run = kernels
    operator = OPERATORS[name]
    shapes = [[BATCH if size == "n" else size for size in shape] for shape in operator.shapes]
    operands = [rng.standard_normal(shape).astype(operator.dtype) for shape in shapes]
    doubles = [torch.from_numpy(x).double() for x in operands]
    want = operator.torch(*doubles).numpy()
    # A sum of n random terms rounds by about sqrt(n) units; functions by a few.
    bound = 4 * (operator.terms**0.5 + 1) * np.finfo(operator.dtype).eps * np.abs(want).max()
    for order in (0, 2):
        values = operands
        for call in calls[name]:
            parameters = run.parameters(call)
            shapes = [
                [BATCH if not isinstance(size, tir.IntImm) else int(size) for size in one.shape]
                for one in parameters
            ]
            out = np.full(shapes[-1], 77, str(parameters[-1].dtype))
            given = [value.reshape(shape) for value, shape in zip(values, shapes)]
            run(*given, out, name=call, order=order)
            values = [out]
        assert np.abs(values[0].reshape(want.shape) - want).max() <= bound


def test_gradients_of_ties_and_nan(kernels: tuple, rng: np.random.Generator) -> None:
    """The gradient of a window belongs to its first maximum, or to its last NaN."""
    _, calls, run = kernels
    operator = OPERATORS["gradients of windows"]
    dy, x = (rng.integers(-2, 3, shape).astype("float32") for shape in operator.shapes)
    x[0, 0, 2:5, 3] = x[0, 1, :2, :2] = np.nan
    x[1] = -np.inf
    out = np.full(x.shape, 77, "float32")
    run(dy, x, out, name=calls["gradients of windows"][0])
    np.testing.assert_array_equal(out, operator.torch(*map(torch.from_numpy, (dy, x))))
