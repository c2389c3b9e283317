# SPDX-License-Identifier: Apache-2.0
"""NaN and infinity through the pipeline for whole models: where PyTorch has them, and only there.

What differs is TVM's own and listed in the limits: the order of NaN (argmax, sort, topk), and
``x ** 0.5`` of minus infinity.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend.torch import from_exported_program

import relax_ext
from helpers import build
from helpers.compare import numpy_dtype
from helpers.whole import TARGET, Function, compiled
from topi_ext.schedules import float_semantics

PIPELINE = import_module("relax_ext.pipeline")  # the package has a function of that name
SPECIAL = [np.nan, np.inf, -np.inf]
RELATIVE = 1e-4
"""Maximum error, relative to the largest finite value: float32 against float64, sums of at most 40
terms."""


def special(shape: tuple[int, ...], seed: int, every: int = 7) -> torch.Tensor:
    """Normal numbers, and NaN and infinities at some places."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape, "float32").ravel()
    places = rng.choice(values.size, max(3, values.size // every // 8), replace=False)
    values[places] = [SPECIAL[i % 3] for i in range(places.size)]
    return torch.from_numpy(values.reshape(shape))


def check(
    got: np.ndarray, want: np.ndarray, relative: float = RELATIVE, least: float = 1e-30
) -> None:
    """Compare; errors are relative to the largest finite value, or to `least`."""
    scale = np.abs(want[np.isfinite(want)]).max(initial=least)
    np.testing.assert_allclose(got, want, rtol=0, atol=relative * scale, equal_nan=True)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_tensor": lambda x: torch.maximum(torch.minimum(x, x.flip(0)), x.flip(1)),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "softmax": lambda x: x.softmax(-1),
    "softmax of channels": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "difference with itself": lambda x: x.exp() - x.exp(),
    "difference of a sum": lambda x: (x * 2 + x.exp()) - x.exp(),
    "product with zero": lambda x: F.relu(x) * 0.0 + 1,
    "softshrink": F.softshrink,
    "is itself": lambda x: (x.exp() == x.exp()).float(),
    "is NaN": lambda x: torch.where(x != x, torch.zeros_like(x), x),
    "not below": lambda x: torch.where(~(x.exp() < 1.5), x, x * 2),
    "not one": lambda x: (x.round() != 1).float(),
    "not equal": lambda x: (x != x.flip(1)).float(),
    "not the same": lambda x: (~(x == x.flip(1))).float(),
    "truth": lambda x: (x * 0).bool().float(),
    "both": lambda x: torch.logical_and(x * 0, x.flip(1)).float(),
    "one of both": lambda x: torch.logical_xor(x * 0, x.flip(1) * 0).float(),
    "none": lambda x: torch.logical_not(x * 0).float(),
    "chosen": lambda x: torch.where(x.round() != 0, 1.0, 2.0),
    "pool of infinity": lambda x: F.max_pool2d(x.abs() * -torch.inf, 2),
    "pool behind relu": lambda x: F.max_pool2d(F.relu(x), 2),
}


def exported(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tvm.IRModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_exported_program(torch.export.export(Function(function).eval(), inputs))


@pytest.mark.parametrize("layer", [False, True], ids=["alone", "behind a convolution"])
def test_functions(layer: bool) -> None:
    x = special((2, 4, 8, 8), 0)
    weight = special((4, 4, 1, 1), 1).nan_to_num(1.0, 1.0, -1.0)

    def model(function: Any, x: torch.Tensor) -> torch.Tensor:
        return function(F.conv2d(x, weight.to(x.dtype)) if layer else x)

    models = {name: partial(model, function) for name, function in FUNCTIONS.items()}
    mod = build.joined({name: exported(one, x) for name, one in models.items()})
    machine = build.compiled(mod, TARGET, pipeline=True)
    for name, one in models.items():
        (got,) = build.run(machine, name, x.numpy())
        try:
            check(got, one(x.double()).numpy())
        except AssertionError as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("seen", [True, False], ids=["ours", "TVM's"])
def test_dtypes(dtype: str, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maxima and minima with numbers and with each other, and of windows; without the rewriting
    TVM loses NaN."""
    if not seen:
        monkeypatch.setattr(PIPELINE, "ieee_floats", lambda func: func)
    x = special((2, 4, 8, 8), 2).numpy().astype(numpy_dtype(dtype))

    def function(x: Any) -> Any:
        one = op.maximum(op.nn.relu(x), op.flip(x, 1))
        return op.nn.max_pool2d(op.minimum(one, op.flip(one, 2)), (2, 2), (2, 2))

    got = compiled(build.module(function, x))[0](tvm.runtime.tensor(x)).numpy().astype("float64")
    wide = torch.from_numpy(x.astype("float64"))
    one = torch.maximum(wide.relu(), wide.flip(1))
    want = F.max_pool2d(torch.minimum(one, one.flip(2)), 2).numpy()
    assert np.array_equal(got, want, equal_nan=True) == seen


UNEQUAL: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda x, y: op.not_equal(x, relax.const(1, x.ty.dtype)),
    "tensor": op.not_equal,
    "itself": lambda x, y: op.not_equal(x, x),
    "truth": lambda x, y: op.astype(x, "bool"),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("piped", [False, True], ids=["plain", "pipeline"])
def test_nan_is_unequal(dtype: str, piped: bool) -> None:
    """By plain ``tvm.compile`` too."""
    x, y = (
        np.array(values, "float32").astype(numpy_dtype(dtype))
        for values in ([np.nan, 0, 1, 2, np.nan], [1, np.nan, 1, 0, np.nan])
    )
    operands = {"number": 1.0, "tensor": y, "itself": x, "truth": 0.0}
    mod = build.joined({name: build.module(one, x, y) for name, one in UNEQUAL.items()})
    machine = build.compiled(mod, relax_ext.host_target(), pipeline=piped)
    for name in UNEQUAL:
        want = x.astype("float64") != np.asarray(operands[name], "float64")
        (got,) = build.run(machine, name, x, y)
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_the_largest_of_nothing_but_minus_infinity() -> None:
    x = np.full((3, 40), -np.inf, "float32")

    def function(x: Any) -> Any:
        return op.concat([op.max(x, [1]), op.min(op.negative(x), [1])])

    got = compiled(build.module(function, x))[0](tvm.runtime.tensor(x)).numpy()
    assert got.tolist() == [-np.inf] * 3 + [np.inf] * 3


@pytest.mark.parametrize("limits", [(-128, 127), (0, 255)])
def test_a_clamped_nan_is_a_limit_where_it_becomes_an_integer(limits: tuple[int, int]) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3], "float32")
    dtype = "int8" if limits[0] else "uint8"

    def function(x: Any) -> Any:
        return op.astype(op.clip(x, *map(float, limits)), dtype)

    got = compiled(build.module(function, x))[0](tvm.runtime.tensor(x)).numpy()
    assert got[0] in limits and list(got[1:]) == [limits[1], limits[0], 3]


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "plain"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantize_alone(dtype: str, pipeline: bool) -> None:
    """NaN is the smallest integer, as in ONNX Runtime; halves round to even, the rest saturates."""
    x = np.array([np.nan, np.inf, -np.inf, 1, 0.25, -0.25, 0.75], "float32")

    def function(x: Any) -> Any:
        zero = relax.const(np.array(3, dtype))
        return op.quantize(x, relax.const(np.float32(0.5)), zero, out_dtype=dtype)

    mod = build.module(function, x)
    run = compiled(mod)[0] if pipeline else build.compiled(mod, "llvm")["main"]
    limits = np.iinfo(dtype)
    want = [limits.min, limits.max, limits.min, 5, 3, 3, 5]
    assert run(tvm.runtime.tensor(x)).numpy().tolist() == want


STEPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "relu": (op.nn.relu, F.relu),
    "leaky": (lambda x: op.nn.leakyrelu(x, 0.1), lambda x: F.leaky_relu(x, 0.1)),
    "clip": (lambda x: op.clip(x, -2.0, 1.5), lambda x: x.clamp(-2, 1.5)),
    "tanh": (op.tanh, torch.tanh),
    "sigmoid": (op.sigmoid, torch.sigmoid),
    "silu": (op.nn.silu, F.silu),
    "max": (lambda x: op.maximum(x, relax.const(0.25)), lambda x: x.clamp(min=0.25)),
    "flip": (lambda x: op.maximum(x, op.flip(x, 2)), lambda x: torch.maximum(x, x.flip(2))),
    "lower": (lambda x: op.minimum(op.flip(x, 3), x), lambda x: torch.minimum(x.flip(3), x)),
    "zero": (lambda x: op.subtract(x, x), lambda x: x - x),
    "double": (lambda x: op.add(x, x), lambda x: x + x),
    "half": (lambda x: op.multiply(x, relax.const(0.5)), lambda x: x * 0.5),
    "abs": (op.abs, torch.abs),
    "negative": (op.negative, torch.neg),
    "softmax": (lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1)),
    "pool": (
        # Padded, so that a window never holds padding and minus infinity alone.
        lambda x: op.nn.max_pool2d(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]), (3, 3), (1, 1)),
        lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1),
    ),
    "mean": (
        lambda x: op.subtract(x, op.mean(x, [2, 3], True)),
        lambda x: x - x.mean((2, 3), True),
    ),
    "largest": (
        lambda x: op.subtract(x, op.max(x, [1], True)),
        lambda x: x - x.amax(1, True),
    ),
    "turn": (lambda x: op.permute_dims(x, (0, 1, 3, 2)), lambda x: x.transpose(2, 3)),
    "conv": (
        lambda x: op.nn.conv2d(x, relax.const(WEIGHT), padding=1),
        lambda x: F.conv2d(x, torch.from_numpy(WEIGHT).double(), padding=1),
    ),
    "transposed": (
        lambda x: op.nn.conv2d_transpose(x, relax.const(WEIGHT), padding=1),
        lambda x: F.conv_transpose2d(x, torch.from_numpy(WEIGHT).double(), padding=1),
    ),
    "matmul": (
        lambda x: op.matmul(x, relax.const(SQUARE)),
        lambda x: x @ torch.from_numpy(SQUARE).double(),
    ),
}
WEIGHT = np.random.default_rng(0).uniform(0.1, 0.3, (4, 4, 3, 3)).astype("float32")
SQUARE = np.random.default_rng(1).uniform(0.1, 0.3, (8, 8)).astype("float32")


@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8), seed=st.integers(0, 99)
)
def test_random_graphs(names: list[str], seed: int) -> None:
    x = special((1, 4, 8, 8), seed)

    def function(x: Any) -> Any:
        for name in names:
            x = STEPS[name][0](x)
        return x

    want = x.double()
    largest = 1e-30
    for name in names:
        want = STEPS[name][1](want)
        largest = max([largest, *want[want.isfinite()].abs().tolist()])
    got = compiled(build.module(function, x.numpy()))[0](tvm.runtime.tensor(x.numpy())).numpy()
    # x - x may be the rounding error of a product: LLVM fuses one of both.
    check(got, want.numpy(), least=largest)


def test_a_function_without_floats_is_left_alone() -> None:
    mod = relax.transform.LegalizeOps()(build.module(op.abs, np.zeros((4,), "int32")))
    (func,) = (f for _, f in mod.functions_items() if not isinstance(f, relax.Function))
    assert float_semantics.ieee_floats(func).same_as(func)
