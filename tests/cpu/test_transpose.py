# SPDX-License-Identifier: Apache-2.0
"""Channels turned into neighbours: every run of any length, and which axes are a run."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from topi_ext.compat import tir
from topi_ext.cpu import emit
from topi_ext.cpu.emit import ATTRIBUTES, Operand
from topi_ext.cpu.parts.transpose import Pitched, Runs, transpose
from topi_ext.cpu.plan.vectors import MOST_STEP, NARROW

LANES = 8

LENGTHS = (0, 1, NARROW - 1, NARROW, NARROW + 1, 2 * NARROW - 1, LANES, LANES + 1, 2 * LANES + 5)
"""Around whole squares, wide and narrow."""


@pytest.mark.parametrize("step", [1, 2, MOST_STEP, MOST_STEP + 1])
def test_values(step: int) -> None:
    """Transpose every number of positions and channels, in rows whose elements are `step` apart."""
    length, channels = (tir.Var(name, "int64") for name in ("length", "channels"))
    with emit.kernel(ATTRIBUTES) as made:
        arguments = [
            emit.argument("out", "WC", [length, channels], "float32"),
            emit.argument("data", "CW", [channels, length * step], "float32"),
        ]
        with emit.body(*arguments) as (out, data):
            pitch = LANES + 3
            held = emit.scratch(100 * pitch, "float32")
            rows = Pitched(held, 5, pitch)
            transpose(rows, Runs(data, 0, step, channels, length, length, data.strides["C"]), LANES)
            for p, k in emit.grid(length, channels):
                emit.store(out, p * channels + k, held[5 + p * pitch + k])
    func = made[0].with_attr("global_symbol", "main")
    kernel = tvm.compile(tvm.IRModule({"main": func}), "llvm")["main"]
    for positions in LENGTHS:
        for count in (1, LANES - 1, LANES):
            data = np.arange(count * positions * step, dtype="float32").reshape(count, -1)
            out = tvm.runtime.tensor(np.full((positions, count), -1, "float32"))
            kernel(out, tvm.runtime.tensor(data))
            np.testing.assert_array_equal(out.numpy(), data[:, ::step].T)


@pytest.mark.parametrize(
    ("order", "sizes", "letters", "is_run"),
    [
        ("NCDHW", (2, 3, 4, 5, 6), "W", True),
        ("NCDHW", (2, 3, 4, 5, 6), "DHW", True),
        ("NCDHW", (2, 3, 4, 5, 6), "CD", False),
        ("NCWH", (2, 3, 5, 4), "HW", False),
        ("NCWH", (2, 3, 5, 4), "WH", True),
        ("NHWC", (2, 4, 5, 3), "HW", False),
        ("NHWC", (2, 4, 5, 1), "HW", True),
        ("NHCW", (2, 4, 1, 5), "HW", True),
        ("NHWC", (2, 4, 5, tir.Var("c", "int64")), "HW", False),
        # An axis that the operand lacks has one element.
        ("NCW", (2, 3, 5), "DHW", True),
    ],
)
def test_runs(order: str, sizes: tuple, letters: str, is_run: bool) -> None:
    """Axes of one element may lie anywhere; an unknown size may be more."""
    buffer = tir.decl_buffer(sizes, "float32")
    assert Operand(buffer, "float32", order, sizes).is_run(letters) == is_run
