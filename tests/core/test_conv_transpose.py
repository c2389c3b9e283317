# SPDX-License-Identifier: Apache-2.0
"""The transposed convolution that goes upstream, as TOPI would be called, against PyTorch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import te

from helpers.cases import SPATIAL
from helpers.compare import numpy_dtype
from helpers.oracle import permute
from topi_ext.te.conv_transpose import ConvTranspose, PhaseAxis, conv_transpose


def random_call(rnd: random.Random) -> dict[str, Any]:
    """Shapes and attributes of one call; output padding up to the dilation, padding beyond the
    kernel, strides beyond it, and sizes of one among them."""
    rank = rnd.choice([1, 2, 2, 3])
    axes: list[tuple[int, ...]] = []
    while len(axes) < rank:
        y, r, s, d = (rnd.randint(1, most) for most in (5, 5, 4, 4))
        p, o = rnd.randint(0, 4), rnd.randint(0, max(s, d) - 1)
        if (y - 1) * s + d * (r - 1) + 1 - 2 * p + o >= 1:
            axes.append((y, r, s, d, p, o))
    size, kernel, strides, dilation, padding, extra = zip(*axes)
    groups = rnd.choice([1, 1, 2, 3])
    ins, outs = groups * rnd.randint(1, 3), rnd.randint(1, 3)
    layouts = [list(letters + SPATIAL[rank]) for letters in ("NC", "IO", "NC")]
    if rnd.random() < 0.7:
        for layout in layouts:
            rnd.shuffle(layout)
    return {
        "shapes": ((rnd.randint(1, 2), ins, *size), (ins, outs, *kernel)),
        "window": (strides, padding, extra, dilation, groups),
        "layouts": tuple(map("".join, layouts)),
    }


def run_all(calls: list[dict[str, Any]], rng: np.random.Generator, dtype: str, limit: float):
    functions, wanted = {}, []
    for number, call in enumerate(calls):
        rank = len(call["shapes"][0]) - 2
        letters = [first + SPATIAL[rank] for first in ("NC", "IO", "NC")]
        x, w = (rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in call["shapes"])
        strides, padding, extra, dilation, groups = call["window"]
        torch_op = getattr(torch.nn.functional, f"conv_transpose{rank}d")
        wide = (torch.tensor(a.astype("float64")) for a in (x, w))
        y = torch_op(*wide, None, strides, padding, extra, groups, dilation).numpy()
        stored = [
            np.ascontiguousarray(permute(a, canonical, layout))
            for a, canonical, layout in zip((x, w, y), letters, call["layouts"])
        ]
        ins = [te.placeholder(a.shape, dtype) for a in stored[:2]]
        out = conv_transpose(*ins, *call["window"], *call["layouts"])
        assert tuple(map(int, out.shape)) == stored[2].shape, call
        func = te.create_prim_func([*ins, out])
        functions[f"f{number}"] = func.with_attr("global_symbol", f"f{number}")
        wanted.append(stored)
    built = tvm.compile(tvm.IRModule(functions), tvm.target.Target({"kind": "llvm"}))
    for number, (x, w, y) in enumerate(wanted):
        # Not zeros: an element that is never written has to show.
        result = tvm.runtime.tensor(np.full(y.shape, 77, numpy_dtype(dtype)))
        built[f"f{number}"](tvm.runtime.tensor(x), tvm.runtime.tensor(w), result)
        worst = np.abs(result.numpy().astype("float64") - y).max()
        assert worst <= limit * max(1, np.abs(y).max()), (worst, calls[number])


def test_random_calls() -> None:
    """Sums of at most 375 products in float64: 1e-13 is 400 units in the last place."""
    rnd = random.Random(20260823)
    run_all([random_call(rnd) for _ in range(40)], np.random.default_rng(0), "float64", 1e-13)


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 6e-4), ("bfloat16", 5e-3)])
def test_half_precision_is_summed_in_float32(dtype: str, limit: float) -> None:
    """The error is that of rounding once: half a unit of 11 bits, of 8 bits; a margin of a fifth.

    Summed in its own dtype bfloat16 would be 13 % wrong."""
    call = {
        "shapes": ((1, 512, 3, 3), (512, 2, 4, 4)),
        "window": ((2, 2), (1, 1), (0, 0), (1, 1), 1),
        "layouts": ("NCHW", "IOHW", "NCHW"),
    }
    run_all([call], np.random.default_rng(1), dtype, limit)


@pytest.mark.parametrize("groups", [1, 2])
def test_nan_reaches_what_meets_it(groups: int) -> None:
    """No zero in place of a missing tap is multiplied: kernel 3 and 5, stride 2 and 3."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 4, 5, 5)), rng.standard_normal((4, 2, 3, 5))
    x[0, 1, 2, 3], x[0, 3, 0, 0] = np.nan, np.inf
    window = ((2, 3), (1, 2), (1, 0), (1, 1), groups)
    y = torch.nn.functional.conv_transpose2d(
        torch.tensor(x), torch.tensor(w), None, *window[:3], groups, 1
    ).numpy()
    ins = [te.placeholder(a.shape, "float64") for a in (x, w)]
    out = conv_transpose(*ins, *window, "NCHW", "IOHW")
    built = tvm.compile(te.create_prim_func([*ins, out]), tvm.target.Target({"kind": "llvm"}))
    result = tvm.runtime.tensor(np.zeros_like(y))
    built(tvm.runtime.tensor(x), tvm.runtime.tensor(w), result)
    assert not np.isfinite(y).all()
    np.testing.assert_array_equal(np.isfinite(result.numpy()), np.isfinite(y))


def test_reduction_is_over_the_taps_that_meet() -> None:
    """Stride 2, 3, 4 and dilation 2: 4 of 4x4, 1 of 3x3, 1 of 3 taps, 9 with a dilation alone."""

    def taps(kernel: int, stride: int, dilation: int) -> list[int]:
        data, weight = te.placeholder((1, 8, 5, 5)), te.placeholder((8, 4, kernel, kernel))
        window = (stride,) * 2, (0, 0), (0, 0), (dilation,) * 2, 1
        plan = ConvTranspose.of(data.shape, weight.shape, *window, "NCHW", "IOHW")
        return [
            int(axis.dom.extent) for axis in plan.phases(data, weight, "float32").op.reduce_axis
        ]

    assert taps(4, 2, 1) == [8, 2, 2]
    assert taps(3, 3, 1) == [8, 1, 1]
    assert taps(3, 4, 1) == [8, 1, 1]
    assert taps(3, 1, 2) == [8, 3, 3]
    assert taps(3, 2, 2) == [8, 3, 3]  # every second position meets all taps, the others none
    assert taps(4, 4, 2) == [8, 2, 2]


def test_every_meeting_has_a_place() -> None:
    """The phases of an axis contain exactly the positions that are computed, whatever is cut
    off."""
    for kernel, stride, dilation in np.ndindex(4, 5, 5):
        for before, size in np.ndindex(11, 7):
            axis = PhaseAxis(kernel + 1, stride + 1, dilation + 1, before - 4, size + 1)
            assert axis.count >= 1
            for o in range(axis.size):
                reads = [o + axis.pad_before - axis.dilation * r for r in range(axis.kernel)]
                meets = [r for r, read in enumerate(reads) if read % axis.stride == 0]
                m, phase, tests = axis.place(te.const(o, "int64"))
                if not meets:
                    assert not all(int(test) for test in tests)
                    continue
                assert all(int(test) for test in tests)
                assert int(phase) == meets[0] and 0 <= int(m) < axis.count
                assert len(meets) <= axis.terms
