# SPDX-License-Identifier: Apache-2.0
"""Copies of neighbours: the right elements of any count and step, by vectors in every program."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from helpers.assembly import assembly
from topi_ext.compat import tir
from topi_ext.cpu import emit
from topi_ext.cpu.emit import ATTRIBUTES
from topi_ext.cpu.parts.copies import MOST_STEP, NARROW, copy, deal

LANES = 8

COUNTS = (1, NARROW - 1, NARROW, NARROW + 1, LANES - 1, LANES, LANES + 1, 3 * LANES, 3 * LANES + 5)
"""Around whole vectors, and narrow ones."""


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
    for n in COUNTS:
        data = np.arange(n * step - (step - 1), dtype="float32")
        out = tvm.runtime.tensor(np.full(n, -1, "float32"))
        run(tvm.runtime.tensor(data), out)
        np.testing.assert_array_equal(out.numpy(), data[::step])


@pytest.mark.parametrize("residues", [(0, 1), (0, 2), (1, 3), (0, 1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("step", range(2, MOST_STEP + 1))
def test_dealt(step: int, residues: tuple[int, ...]) -> None:
    """Elements of some residues, of which the last is the last that there is."""
    residues = tuple(r for r in residues if r < step)
    count = tir.Var("count", "int64")
    with emit.kernel(ATTRIBUTES) as made:
        reach = (count - 1) * step + residues[-1] + 1
        arguments = [
            emit.argument("out", "HW", [len(residues), count], "float32"),
            emit.argument("data", "W", [reach], "float32"),
        ]
        with emit.body(*arguments) as (out, data):
            into = {r: number * count for number, r in enumerate(residues)}
            deal(out, into, data, 0, count, step, LANES)
    kernel = made[0].with_attr("global_symbol", "main")
    run = tvm.compile(tvm.IRModule({"main": kernel}), "llvm")["main"]
    for n in COUNTS:
        array = np.arange((n - 1) * step + residues[-1] + 1, dtype="float32")
        result = tvm.runtime.tensor(np.full((len(residues), n), -1, "float32"))
        run(result, tvm.runtime.tensor(array))
        want = [array[r::step][:n] for r in residues]
        np.testing.assert_array_equal(result.numpy(), want)


def test_vectors_whatever_is_promised() -> None:
    """Also where TVM does not tell LLVM that arguments are apart."""
    kernel = kernel_of(64 * LANES, 1, {**ATTRIBUTES, "tirx.noalias": False})
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    text = assembly(tvm.compile(tvm.IRModule({"main": kernel}), target))
    assert not re.search(r"vmovss\s+%xmm", text)
    assert re.search(r"vmovups\s+%ymm", text)
