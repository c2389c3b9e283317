# SPDX-License-Identifier: Apache-2.0
"""No read and no write outside of arguments and workspaces: all lie between forbidden pages.

Each kernel also runs with operands and result that begin one element, 16 and 32 bytes behind a
multiple of 64, as tensors of other frameworks may: helpers/guarded_run.py compares the bits.

A processor stops at the page, whatever is read and whether or not it matters.  Workspaces are
filled with NaN first, so that what is read before it is written shows in the results.
"""

from __future__ import annotations

import signal
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from helpers import compare
from helpers.cases import Case, geometry_of
from helpers.faces import OPERANDS, FaceCase
from helpers.guarded import compiled, run, symbolic
from helpers.kernels import STREAMS, kernel_of, problem_of
from helpers.profile import thinned
from helpers.targets import quickly_compiled
from topi_ext import backend
from topi_ext.cpu import emit
from topi_ext.cpu.emit import ATTRIBUTES
from topi_ext.cpu.parts.copies import MOST_STEP, copy
from topi_ext.cpu.parts.transpose import Pitched, Runs, transpose
from topi_ext.cpu.plan.direct import DirectPlan
from topi_ext.cpu.plan.gemm_col2im import GemmCol2imPlan
from topi_ext.cpu.plan.window import Window
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.target import host_target

HOST = quickly_compiled(host_target())
T, C = "conv_transpose", "conv"
CHANNELS_LAST = Layouts("NHWC", "HWIO", "NHWC")

# Sizes whose bytes are multiples of 64 end exactly at the page; the others leave up to 60 bytes.
SHAPES = {
    "DCGAN": Case(
        "conv_transpose", (8, 8), (4, 4), ins=64, outs=32, stride=(2, 2), padding=(1,) * 4
    ),
    # Weights that do not stay near are asked for ahead, the last ones also behind the operand.
    "many weights": Case(T, (2, 3), (4, 4), 1, ins=128, outs=168, stride=(2, 2)),
    "small image": Case(T, (2, 2), (4, 4), ins=64, outs=64, stride=(2, 2)),
    "odd": Case(
        "conv_transpose", (7, 9), (3, 5), ins=17, outs=19, stride=(2, 3), padding=(1, 2, 0, 1)
    ),
    "gaps": Case(T, (8, 16), (2, 2), ins=16, outs=16, stride=(3, 4)),
    "depthwise": Case(C, (16, 32), (3, 3), ins=16, outs=16, groups=16, padding=(1,) * 4),
    "stride": Case(C, (33, 32), (3, 3), ins=16, outs=32, stride=(2, 2), padding=(1, 1, 0, 0)),
    "dilated": Case(
        "conv", (32, 32), (3, 3), ins=32, outs=32, dilation=(3, 2), padding=(3, 2, 3, 2)
    ),
    "1x1": Case(C, (16, 16), (1, 1), ins=256, outs=64),
    "few positions": Case(C, (5, 4), (4, 3), 1, ins=21, outs=40, stride=(2, 2), padding=(1,) * 4),
    "cut off": Case(C, (24, 32), (3, 2), ins=16, outs=16, padding=(-1, 0, -2, -3)),
    # Of the room of a wide block, a narrow one has more positions: less of it is halo.
    "narrow": Case(C, (34, 16), (3, 3), ins=64, outs=64, padding=(1,) * 4),
    # Weights outnumber positions: the inputs of all of them are combined first.
    "deep": Case(C, (4, 6), (3, 3), 4, ins=128, outs=248, padding=(1,) * 4),
    "vocoder": Case(T, (32,), (16,), ins=64, outs=32, stride=(8,), padding=(4, 4)),
    # One channel of one image: tasks share its rows.
    "spectrum": Case(T, (33,), (64,), 1, ins=128, outs=1, stride=(32,), padding=(16, 15)),
    # Tiles of two outputs along depth as well.
    "cube": Case(C, (7, 16, 17), (3, 3, 3), 1, ins=64, outs=64, padding=(1,) * 6),
    # Much of what the taps reach is padding.
    "pyramid": Case(C, (17, 16), (3, 3), ins=64, outs=48, dilation=(6, 7), padding=(6, 7, 6, 7)),
    # Tiles of four outputs along a row.
    "fours": Case(C, (1607,), (6,), ins=64, outs=64, padding=(3, 2)),
    "long": Case(C, (4096,), (9,), ins=4, outs=16, stride=(4,), padding=(4, 4)),
    "volume": Case(
        "conv_transpose", (4, 4, 8), (2, 3, 2), ins=8, outs=16, groups=2, stride=(2,) * 3
    ),
}
SOME_SHAPES = ("odd", "depthwise", "dilated", "narrow", "fours", "long")


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of guard.c."""
    return compiled("guard.c", tmp_path_factory.mktemp("guard"))


@pytest.mark.parametrize("known", ["when compiled", "when run"])
def test_kernels_stay_inside(
    known: str, guard: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    cases = {}
    # Kernels of sizes that are not known take longer to build.
    some = SHAPES if known == "when compiled" else SOME_SHAPES
    for number, name in enumerate(some):
        shape = SHAPES[name]
        for face in OPERANDS if known == "when compiled" else thinned(OPERANDS, 2, number % 2):
            cases[f"{name} {face}"] = FaceCase(face, geometry_of(shape), shape.n)
    square = SHAPES["stride"]
    cases["channels last"] = FaceCase(C, geometry_of(square), 2, CHANNELS_LAST)
    kernels, operands, values = {}, {}, {}
    for number, case in enumerate(cases.values()):
        values[f"f{number}"] = first, second = case.arrays(rng)
        sizes = (case.geometry, case.n) if known == "when compiled" else symbolic(case)
        kernels[f"f{number}"] = backend.build(
            Convolution.of(case.face, sizes[0], case.orders, sizes[1], case.dtypes), HOST
        )
        stored = [case.stored(r, v) for r, v in zip(case.roles, (first, second))]
        operands[f"f{number}"] = [*stored, np.zeros(case.stored_shape(case.roles[2]), "float32")]
    done, results = run(guard, tmp_path, kernels, operands, HOST)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    for name, case in zip(operands, cases.values()):
        case.check(results[name], *values[name])


DTYPES = {
    "float16": ("float16",) * 3,
    "bfloat16": ("bfloat16",) * 3,
    "float64": ("float64",) * 3,
    "int8": ("int8", "int8", "int32"),
}


@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
def test_dtypes(
    dtypes: tuple[str, str, str], guard: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    cases = {
        f"f{number}": FaceCase(face, geometry_of(SHAPES[name]), 2, None, dtypes)
        for number, (name, face) in enumerate(product(("odd", "1x1"), OPERANDS))
    }
    kernels, operands, values = {}, {}, {}
    for name, case in cases.items():
        values[name] = case.arrays(rng)
        kernels[name] = backend.build(
            Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), HOST
        )
        stored = [case.stored(r, v) for r, v in zip(case.roles, values[name])]
        out = np.zeros(case.stored_shape(case.roles[2]), compare.numpy_dtype(dtypes[2]))
        operands[name] = [*stored, out]
    done, results = run(guard, tmp_path, kernels, operands, HOST)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    for name, case in cases.items():
        case.check(results[name], *values[name])


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_copies_of_every_second_element(lanes: int, guard: Path, tmp_path: Path) -> None:
    """And of every third and fourth: vectors end with the last element, and that at the page."""
    kernels, operands, values = {}, {}, {}
    for step, count in product(range(1, MOST_STEP + 1), (lanes, 2 * lanes + 1)):
        reach = (count - 1) * step + 1
        start = -reach % 8
        with emit.kernel(ATTRIBUTES) as made:
            x = emit.argument("x", "W", (start + reach,), "float64")
            y = emit.argument("y", "W", (count,), "float64")
            with emit.body(x, y) as (source, into):
                copy(into, 0, source, start, count, lanes, step)
        name = f"f{len(kernels)}"
        data = np.arange(start + reach, dtype="float64")
        kernels[name], operands[name] = made[0], [data, np.zeros(count, "float64")]
        values[name] = data[start::step]
    done, results = run(guard, tmp_path, kernels, operands, HOST)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    for name, wanted in values.items():
        np.testing.assert_array_equal(results[name], wanted)


def test_turned_channels(guard: Path, tmp_path: Path) -> None:
    """Nothing is read behind the last of few channels and of short runs."""
    lanes, kernels, operands = 8, {}, {}
    for channels, length, step in product((1, 5, 8), (3, 4, 7, 8, 21), (1, 2, MOST_STEP + 1)):
        reach = (length - 1) * step + 1
        with emit.kernel(ATTRIBUTES) as made:
            x = emit.argument("x", "CW", (channels, reach), "float32")
            y = emit.argument("y", "WC", (length, lanes), "float32")
            with emit.body(x, y) as (source, into):
                rows = Pitched(into, 0, lanes)
                transpose(
                    rows,
                    Runs(source, 0, step, channels, length, length, source.strides["C"]),
                    lanes,
                )
        name = f"f{len(kernels)}"
        data = np.arange(channels * reach, dtype="float32").reshape(channels, reach)
        kernels[name], operands[name] = made[0], [data, np.zeros((length, lanes), "float32")]
    done, results = run(guard, tmp_path, kernels, operands, HOST)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    for name, (data, out) in operands.items():
        step = (data.shape[1] - 1) // (len(out) - 1)
        np.testing.assert_array_equal(results[name][:, : len(data)], data[:, ::step].T)


def test_tiles_of_positions(guard: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    """Tiles of small images: neighbours in memory or not, of one image or two, and beyond the
    last."""
    geometry = geometry_of(Case(T, (3, 5), (2, 3), ins=16, outs=4, stride=(2, 2)))
    kernels, operands, values = {}, {}, {}
    for layouts, images, m_tile in product((None, CHANNELS_LAST), (1, 3), (4, 5, 7)):
        case = FaceCase(T, geometry, 3, layouts)
        plan = GemmCol2imPlan(images, 15 * images, 500, 8, 4, 4, m_tile, 2, parallel=False)
        name = f"f{len(kernels)}"
        data, weight = case.arrays(rng)
        kernels[name], values[name] = kernel_of(problem_of(case), plan), (case, data, weight)
        stored = [case.stored(r, v) for r, v in zip(case.roles, (data, weight))]
        operands[name] = [*stored, np.zeros(case.stored_shape("x"), "float32")]
    done, results = run(guard, tmp_path, kernels, operands, HOST)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    for name, (case, *arrays) in values.items():
        case.check(results[name], *arrays)


@pytest.mark.skipif(not STREAMS, reason="TVM's LLVM has no opaque pointers, or this is not x86")
def test_collected_rows(guard: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    """Rows that fill what is collected of a result to its last element, and nearly."""
    kernels, operands, values = {}, {}, {}
    for lanes, row in product((8, 16), (64, 65, 80, 129, 516, 520)):
        geometry = geometry_of(Case(C, (40, row), (1, 1), ins=1, outs=2))
        case = FaceCase(C, geometry, 1)
        problem = problem_of(case)
        window = Window.of((1, *problem.positions[1:]), problem.accesses)
        plan = DirectPlan(window, lanes, 2, 2, 1, 1, streamed=True)
        name = f"f{len(kernels)}"
        data, weight = case.arrays(rng)
        kernels[name], values[name] = kernel_of(problem, plan), (case, data, weight)
        operands[name] = [data, weight, np.zeros(case.stored_shape("y"), "float32")]
    done, results = run(guard, tmp_path, kernels, operands, HOST)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    for name, (case, *arrays) in values.items():
        case.check(results[name], *arrays)


@pytest.mark.parametrize("of", ["argument", "workspace"])
def test_one_element_too_far_is_seen(guard: Path, tmp_path: Path, of: str) -> None:
    """The guards themselves: a kernel that reads one element behind its end is stopped."""
    with emit.kernel(ATTRIBUTES) as made:
        x = emit.argument("x", "A", (1024,), "float32")
        y = emit.argument("y", "A", (1024,), "float32")
        with emit.body(x, y) as (source, into):
            held = emit.scratch(1024, "float32")
            for i in emit.loop(1024):
                emit.store(held, i, source[i])
            array = source if of == "argument" else held
            for i in emit.loop(1024):
                emit.store(into, i, array[i + 1])
    arrays = [np.ones(1024, "float32"), np.zeros(1024, "float32")]
    done, _ = run(guard, tmp_path, {"f0": made[0]}, {"f0": arrays}, HOST)
    assert done.returncode == -signal.SIGSEGV, done.stderr[-2000:]
