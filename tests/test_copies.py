# SPDX-License-Identifier: Apache-2.0
"""Copies of neighbours: the right elements of any count and step, by vectors in every program."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from test_assembly import assembly
from topi_ext import emit
from topi_ext.kernels import ATTRIBUTES
from topi_ext.kernels.copies import MOST_STEP, copy
from topi_ext.tvm_compat import tir

LANES = 8


def kernel_of(count: int | tir.Var, step: int, attributes: dict[str, object]) -> tir.PrimFunc:
    """Every `step`-th element of the first argument goes to the second, by way of memory."""
    with emit.kernel(attributes) as made:
        reach = count * step - (step - 1)
        arguments = [
            emit.argument(name, "W", [size], "float32")
            for name, size in (("data", reach), ("out", count))
        ]
        with emit.body(*arguments) as (data, out):
            held = emit.scratch(1000, "float32")
            copy(held, 3, data, 0, count, LANES, step)
            copy(out, 0, held, 3, count, LANES)
    return made[0].with_attr("global_symbol", "main")


@pytest.mark.parametrize("step", range(1, MOST_STEP + 2))
def test_values(step: int) -> None:
    """Counts around whole vectors; steps beyond the longest go one by one."""
    count = tir.Var("count", "int64")
    run = tvm.compile(tvm.IRModule({"main": kernel_of(count, step, ATTRIBUTES)}), "llvm")["main"]
    for n in (1, LANES - 1, LANES, LANES + 1, 3 * LANES, 3 * LANES + 5):
        data = np.arange(n * step - (step - 1), dtype="float32")
        out = tvm.runtime.tensor(np.full(n, -1, "float32"))
        run(tvm.runtime.tensor(data), out)
        np.testing.assert_array_equal(out.numpy(), data[::step])


def test_vectors_whatever_is_promised() -> None:
    """Also where TVM does not tell LLVM that arguments are apart."""
    kernel = kernel_of(64 * LANES, 1, {**ATTRIBUTES, "tirx.noalias": False})
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    text = assembly(tvm.compile(tvm.IRModule({"main": kernel}), target))
    assert not re.search(r"vmovss\s+%xmm", text)
    assert re.search(r"vmovups\s+%ymm", text)
