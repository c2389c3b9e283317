# SPDX-License-Identifier: Apache-2.0
"""Functions of numbers that LLVM makes vectors of, against NumPy and PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import te

from helpers.assembly import assembly
from topi_ext import compat
from topi_ext.schedules.vector_math import vectorized_math
from topi_ext.target import host_target

pytestmark = pytest.mark.skipif(
    not compat.reads_llvm(), reason="this TVM's LLVM has no opaque pointers: functions stay TVM's"
)
tir = compat.tir
FUNCTIONS = {
    "exp": (torch.exp, 1.0),
    "log": (torch.log, 1.0),
    "erf": (torch.erf, 5.0),
    "tanh": (torch.tanh, 5.0),
    "sigmoid": (torch.sigmoid, 3.0),
}
"""PyTorch's functions, and the maximum errors that the module states, in units in the last
place."""

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-30, -1e-30, 1e-41, 88.7, 88.8, -103.9]


def numbers(rng: np.random.Generator, count: int = 1 << 16) -> np.ndarray:
    """Return numbers of every exponent, and many where the functions change."""
    bits = rng.integers(0, 1 << 32, count // 2, dtype=np.uint32).view(np.float32)
    near = rng.uniform(-12, 12, count // 2 - len(SPECIAL)).astype("float32")
    return np.concatenate([bits, near, np.array(SPECIAL, "float32")])


def elementwise(name: str, size: int, dtype: str = "float32") -> object:
    x = te.placeholder((size,), dtype, name="x")
    return te.create_prim_func([x, te.compute((size,), lambda i: getattr(tir, name)(x[i]))])


def library(*funcs: object) -> object:
    named = {f"f{i}": one.with_attr("global_symbol", f"f{i}") for i, one in enumerate(funcs)}
    return tvm.compile(tvm.IRModule(named), host_target())


def result(run: object, x: np.ndarray) -> np.ndarray:
    out = tvm.runtime.empty(x.shape, str(x.dtype))
    run(tvm.runtime.tensor(x), out)
    return out.numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error(name: str, rng: np.random.Generator) -> None:
    x = numbers(rng)
    func = elementwise(name, x.size)
    got = result(library(vectorized_math(func))["f0"], x)
    of_torch, most = FUNCTIONS[name]
    want = of_torch(torch.from_numpy(x).double()).numpy()
    with np.errstate(over="ignore"):
        rounded = want.astype("float32")
    special = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(got[special], rounded[special])
    # Below the normal range a result may be zero.
    tiny = np.finfo("float32").tiny
    unit = np.where(np.abs(rounded) < tiny, tiny, np.spacing(np.abs(rounded)))[~special]
    assert (np.abs(got - want)[~special] / unit).max() <= most
    if name in ("erf", "tanh"):  # gelu multiplies what is missing to 1 by its argument
        ends = np.abs(x) > 9.1
        np.testing.assert_array_equal(got[ends], rounded[ends])


def test_is_vectorized() -> None:
    """No call of the C library is left."""
    funcs = [elementwise(name, 64) for name in FUNCTIONS]
    for func, has_calls in ((funcs, True), (list(map(vectorized_math, funcs)), False)):
        text = assembly(library(*func))
        called = [name for name in ("expf", "logf", "erff") if name in text]
        assert called == (["expf", "logf", "erff"] if has_calls else [])


def test_what_is_left_alone() -> None:
    """Other dtypes, other functions, and functions with none of them."""
    for func in (elementwise("exp", 8, "float64"), elementwise("sqrt", 8)):
        assert vectorized_math(func) is func
