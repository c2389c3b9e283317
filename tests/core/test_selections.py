# SPDX-License-Identifier: Apache-2.0
"""Selections by values of tensors: the values of NumPy, vectors, and guards left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from helpers.assembly import assembly
from topi_ext import compat
from topi_ext.schedules.selections import without_branches
from topi_ext.target import host_target

pytestmark = pytest.mark.skipif(
    not compat.reads_llvm(), reason="this TVM's LLVM has no opaque pointers: selections stay TVM's"
)
tir = compat.tir
SIZE = 96


def selecting(dtype: str, value: Callable[..., Any], size: int = SIZE) -> Any:
    """Return a function of three vectors whose elements are ``value(i, mask, x, y)``."""
    mask = te.placeholder((size,), "bool", name="mask")
    x, y = (te.placeholder((size,), dtype, name=name) for name in "xy")
    out = te.compute((size,), lambda i: value(i, mask, x, y))
    return te.create_prim_func([mask, x, y, out])


def where(i: Any, mask: Any, x: Any, y: Any) -> Any:
    return tir.Select(mask[i], x[i], y[i])


def compiled(func: Any) -> Any:
    named = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(named, host_target())


def expected(mask: np.ndarray, x: np.ndarray, y: np.ndarray, func: Any) -> np.ndarray:
    out = tvm.runtime.empty(x.shape, str(x.dtype))
    compiled(func)["main"](*map(tvm.runtime.tensor, (mask, x, y)), out)
    return out.numpy()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int8", "uint8", "int64", "bool"]
)
def test_values(dtype: str, rng: np.random.Generator) -> None:
    """Every bit of the operand that is chosen, NaN and infinities of the other one included."""
    mask = rng.integers(0, 2, SIZE).astype(bool)
    x, y = (rng.integers(-100, 100, SIZE).astype(dtype) for _ in range(2))
    if dtype.startswith("float"):
        x[::5], y[1::5], x[2::5], y[3::5] = np.nan, np.nan, np.inf, -np.inf
        x[4::5] = -0.0
    func = without_branches(selecting(dtype, where))
    assert "topi_ext_select" in func.script()
    found = expected(mask, x, y, func)
    np.testing.assert_array_equal(found, np.where(mask, x, y))
    zeros = found == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(np.where(mask, x, y)[zeros]))


def test_are_vectors() -> None:
    """With a number of another tensor, as the gradient of relu has it, TVM branches each time."""

    def by_sign(i: Any, mask: Any, x: Any, y: Any) -> Any:
        return tir.Select(x[i] > tir.const(0, "float32"), x[i] + y[i], mask[0].astype("float32"))

    func = selecting("float32", by_sign)
    ours, theirs = (assembly(compiled(each)) for each in (without_branches(func), func))
    if "vaddss" not in theirs:
        pytest.skip("the instructions are those of x86 with AVX")
    assert "vaddps" in ours and "vaddps" not in theirs


def test_an_operand_that_guards_its_own_reads(rng: np.random.Generator) -> None:
    """The gradient of relu of what a border is added to: a branch at each sign is mispredicted."""

    def shifted(i: Any, mask: Any, x: Any, y: Any) -> Any:
        return tir.Select(mask[i], tir.if_then_else(i >= 1, x[i - 1], y[i]), y[i])

    func = without_branches(selecting("float32", shifted))
    assert "topi_ext_select" in func.script()
    mask = rng.integers(0, 2, SIZE).astype(bool)
    x, y = rng.standard_normal((2, SIZE)).astype("float32")
    before = np.concatenate([y[:1], x[:-1]])
    np.testing.assert_array_equal(expected(mask, x, y, func), np.where(mask, before, y))


GUARDS: dict[str, Callable[..., Any]] = {
    "of the place": lambda i, m, x, y: tir.Select(i < SIZE - 1, x[i + 1], y[i]),
    "of the place and of values": lambda i, m, x, y: tir.Select(
        tir.all(m[i], i < SIZE - 1), x[i + 1], y[i]
    ),
    "of a place that values give": lambda i, m, x, y: tir.Select(
        x[i] < tir.const(SIZE, "int32"), y[x[i]], x[i]
    ),
    "of a divisor": lambda i, m, x, y: tir.Select(
        y[i] != tir.const(0, "int32"), tir.truncdiv(x[i], y[i]), x[i]
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_guards_are_left_alone(guard: str) -> None:
    """A condition that keeps a read within a tensor, or a division from trapping, stays one."""
    func = selecting("int32", GUARDS[guard])
    assert without_branches(func) is func
