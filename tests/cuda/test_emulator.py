# SPDX-License-Identifier: Apache-2.0
"""The emulator of CUDA: right kernels give right results, planted faults are named for what they
are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
if not hasattr(tvm, "tirx"):
    pytest.skip("the emulator needs TVM 0.25 or later", allow_module_level=True)

from cuda_kernels import KERNELS  # noqa: E402 - needs TVM

import cuda_emulator  # noqa: E402
from cuda_emulator import Fault, Unsupported  # noqa: E402
from cuda_emulator.__main__ import main  # noqa: E402
from cuda_emulator.lowering import lower  # noqa: E402

if not any(shutil.which(name) for name in ("g++", "clang++")):
    pytest.skip("no C++ compiler", allow_module_level=True)

MODES = ("fibers", "watch", "threads", "sanitize")


def run_of(name: str, mode: str = "fibers", edit=None) -> cuda_emulator.Run:
    return cuda_emulator.build(KERNELS[name], "sm_90", mode=mode, edit=edit)


def edited(old: str, new: str, count: int = -1):
    """An edit of CUDA text; text that is not there fails the test."""

    def edit(text: str) -> str:
        assert old in text, text
        return text.replace(old, new, count)

    return edit


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype("float32").view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


# ---- right kernels ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_sums_through_shared_memory(mode: str, rng: np.random.Generator) -> None:
    x, run = rng.random((5, 64), "float32"), run_of("total", mode)
    for order in (0, 1, 2):
        y = np.full(5, np.nan, "float32")
        run(x, y, order=order)
        np.testing.assert_allclose(y, x.sum(1), rtol=1e-6)


def test_sizes_workspaces_and_dynamic_shared_memory(rng: np.random.Generator) -> None:
    x, run = rng.random((3, 4), "float32"), run_of("two_kernels", "watch")
    y = np.full(6, np.nan, "float32")
    run(x, y, 3)
    np.testing.assert_array_equal(y, np.append(2 * x[:, ::-1].sum(1) + 3, np.full(3, 7 + 3)))
    launches = run.launches(x, y, 3)
    assert [launch.grid for launch in launches] == [(3, 1, 1), (6, 1, 1)]
    assert launches[0].dynamic_shared == 16
    assert run.launches((3, 4), (6,), 3) == launches
    with pytest.raises(ValueError, match="a call takes arrays"):
        run((3, 4), y, 3)
    with pytest.raises(ValueError, match="shape"):
        run(x, y, 4)
    with pytest.raises(ValueError, match="float64 given"):
        run(x.astype("float64"), y, 3)
    threads = {kernel.name: kernel.threads for kernel in run.kernels}
    assert threads["two_kernels_kernel"] == 4


def test_shapes_tell_what_is_launched() -> None:
    """Launches follow from shapes, including shifted sizes, for which TVM 0.27 has classes of
    expressions."""
    (launch,) = run_of("pairs").launches((14,), (7,))
    assert launch.grid == (7, 1, 1)
    assert launch.types[:2] == ("handle", "handle") and set(launch.types[2:]) <= {"int64"}


@pytest.mark.parametrize("mode", MODES)
def test_copies_and_matrices(mode: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((n, 16)).astype("float16") for n in (16, 8))
    c = np.full((16, 8), np.nan, "float32")
    run_of("matrices", mode)(a.ravel(), b.ravel(), c)
    np.testing.assert_allclose(c, a.astype("float32") @ b.astype("float32").T, atol=1e-5)


def operands(kind: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 32 bytes, and the numbers that they are."""
    if kind in {"s8", "u8"}:
        low, high = (-128, 128) if kind == "s8" else (0, 256)
        given = rng.integers(low, high, (rows, 32)).astype("int8" if kind == "s8" else "uint8")
        return given, given.astype("int64")
    values = rng.standard_normal((rows, 32 // {"f16": 2, "bf16": 2, "tf32": 4}[kind]))
    if kind == "f16":
        return values.astype("float16"), values.astype("float16").astype("float64")
    if kind == "bf16":
        bits = bfloat16_bits(values)
        return bits, (bits.astype(np.uint32) << 16).view("float32").astype("float64")
    given = values.astype("float32")
    return given, (given.view(np.uint32) & 0xFFFFE000).view("float32").astype("float64")


@pytest.mark.parametrize(
    ("shape", "a_kind", "b_kind", "sums"),
    [
        ("m16n8k16", "f16", "f16", "f32"),
        ("m16n8k16", "bf16", "bf16", "f32"),
        ("m16n8k8", "tf32", "tf32", "f32"),
        ("m16n8k32", "s8", "s8", "s32"),
        ("m16n8k32", "u8", "s8", "s32"),
        ("m16n8k32", "s8", "u8", "s32"),
        ("m16n8k32", "u8", "u8", "s32"),
    ],
)
def test_products_of_matrices(
    shape: str, a_kind: str, b_kind: str, sums: str, rng: np.random.Generator
) -> None:
    """ldmatrix gives every kind of mma its operands, where a row of A and of B has 32 bytes."""
    (a, a_wide), (b, b_wide) = operands(a_kind, 16, rng), operands(b_kind, 8, rng)
    opcode = f"{shape}.row.col.{sums}.{a_kind}.{b_kind}.{sums}"
    edit = edited("m16n8k16.row.col.f32.f16.f16.f32", opcode)
    c = np.full((16, 8), np.nan, "float32")
    flat = (x.view("uint8").ravel() for x in (a, b))
    run_of("rows_of_bytes", edit=edit)(*flat, c)
    if sums == "s32":
        np.testing.assert_array_equal(c.view("int32"), a_wide @ b_wide.T)
    else:
        np.testing.assert_allclose(c, a_wide @ b_wide.T, atol=1e-5)


def test_products_of_matrices_in_half(rng: np.random.Generator) -> None:
    (a, a_wide), (b, b_wide) = operands("f16", 16, rng), operands("f16", 8, rng)

    def edit(text: str) -> str:
        """Sums of half, two in a word: those of rows 0 to 7 come first."""
        start = text.index('asm volatile("mma.sync')
        end = text.index(";\n}", start)
        return (
            text[:start]
            + 'unsigned h[2] = {0, 0}; asm volatile("mma.sync.aligned.m16n8k16.row.col'
            + '.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};" : "+r"(h[0]), "+r"(h[1])'
            + ' : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));'
            + " for (int j = 0; j < 4; j++) c[j] = (float)((half*)h)[j]"
            + text[end:]
        )

    c = np.full((16, 8), np.nan, "float32")
    run_of("matrices", edit=edit)(a.ravel(), b.ravel(), c)
    np.testing.assert_array_equal(c, c.astype("float16").astype("float32"))
    np.testing.assert_allclose(c, a_wide @ b_wide.T, atol=2e-2)


def test_half(rng: np.random.Generator) -> None:
    x = rng.standard_normal(64).astype("float16")
    y = np.zeros_like(x)
    run_of("halves")(x, y)
    np.testing.assert_array_equal(y, x * x + np.float16(1.5))


def test_bfloat16(rng: np.random.Generator) -> None:
    values = rng.standard_normal(64).astype("float32")
    x = bfloat16_bits(values)
    wide = (x.astype(np.uint32) << 16).view("float32")
    square = (bfloat16_bits(wide * wide).astype(np.uint32) << 16).view("float32")
    y = np.zeros_like(x)
    run_of("bfloats")(x, y)
    np.testing.assert_array_equal(y, bfloat16_bits(square + 1.5))


def test_shuffles_and_dot_products(rng: np.random.Generator) -> None:
    x = rng.integers(-128, 128, (32, 4)).astype("int8")
    y = np.zeros(1, "int32")
    run_of("dots", "watch")(x, x, y)
    assert y[0] == (x.astype("int32") ** 2).sum()


def test_many_barriers_are_fast() -> None:
    x = np.zeros(128, "float32")
    run = run_of("barriers")
    run(x)
    start = time.perf_counter()
    run(x)
    assert time.perf_counter() - start < 0.1
    np.testing.assert_array_equal(x, np.full(128, 2000, "float32"))


# ---- planted faults ---------------------------------------------------------------------------

LOAD = "s_ptr[((int)threadIdx.x)] = a_ptr["
BARRIER = "__syncthreads();"
# Of the function `total`: edit of its text, kind of the fault, modes that must find it.
FAULTS = {
    "missing barrier": (edited(BARRIER, ""), "race", ("watch", "threads")),
    "divergent barrier": (
        edited(BARRIER, f"if (threadIdx.x < 40) {BARRIER}", 1),
        "divergence",
        MODES,
    ),
    "barrier left out by some": (
        edited("__launch_bounds__(64) total_kernel(float* __restrict__ a_ptr, float* __restrict__ "
               "b_ptr, int64_t n) {", "total_kernel(float* a_ptr, float* b_ptr, int64_t n) {"
               "if (threadIdx.x > 50) return;"),
        "divergence",
        MODES,
    ),
    "read past a tensor": (edited(LOAD, LOAD + "64 + "), "out-of-bounds", MODES),
    "read far past a tensor": (edited(LOAD, LOAD + "100000 + "), "out-of-bounds", MODES),
    "read one past a tensor": (edited(LOAD, LOAD + "1 + "), "out-of-bounds", ("watch", "sanitize")),
    "read before a tensor": (edited(LOAD, LOAD + "-1 + "), "out-of-bounds", ("watch", "sanitize")),
    "write past a tensor": (edited("b_ptr[", "b_ptr[1 + "), "out-of-bounds", MODES),
    "write past a shared array": (
        edited(LOAD, LOAD.replace("[", "[1 + ", 1)),
        "out-of-bounds",
        ("watch", "sanitize"),
    ),
    "misaligned vector": (
        edited(LOAD, f"float4 v = *(float4*)(a_ptr + 1); {LOAD[:-6]} v.x + a_ptr["),
        "misaligned",
        MODES,
    ),
    "uninitialised shared memory": (
        edited(LOAD, f"if (threadIdx.x != 5) {LOAD}"),
        "uninitialised",
        ("watch",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("planted", "mode"), [(name, mode) for name, row in FAULTS.items() for mode in row[2]]
)
def test_a_planted_fault_is_named(planted: str, mode: str, rng: np.random.Generator) -> None:
    edit, kind, _ = FAULTS[planted]
    x, y = rng.random((5, 64), "float32"), np.zeros(5, "float32")
    with pytest.raises(Fault) as caught:
        run_of("total", mode, edit)(x, y)
    assert caught.value.kind == kind, caught.value
    assert caught.value.kernel == "total_kernel"
    assert "\n" not in str(caught.value)
    if mode == "watch" and kind != "divergence" and shutil.which("addr2line"):
        assert "in line " in str(caught.value)


@pytest.mark.parametrize("mode", ["watch"])
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("emu_test_wait();", ";", "uninitialised"),
        ('wait_group 0;"', 'wait_group 1;"', "uninitialised"),
        ('"r"(emu_test_shared(to + at))', '"r"(emu_test_shared(to + at) + 4)', "misaligned"),
        (BARRIER, "", "race"),
    ],
)
def test_a_fault_of_copies_is_named(
    mode: str, old: str, new: str, kind: str, rng: np.random.Generator
) -> None:
    a, b = (rng.standard_normal((n, 16)).astype("float16") for n in (16, 8))
    c = np.zeros((16, 8), "float32")

    def edit(text: str) -> str:
        head, start, body = text.partition('extern "C"')
        assert old in text
        if old == "emu_test_wait();":
            return head + start + body.replace(old, new)
        return text.replace(old, new)

    with pytest.raises(Fault) as caught:
        run_of("matrices", mode, edit)(a.ravel(), b.ravel(), c)
    assert caught.value.kind == kind, caught.value


def test_launches_that_the_driver_refuses(rng: np.random.Generator) -> None:
    """A grid of no blocks, and more shared memory than the driver gives without being asked."""
    with pytest.raises(Fault, match=r"^launch: .*grid \(0, 1, 1\) .* must be positive"):
        run_of("pairs")(np.zeros(0, "float32"), np.zeros(0, "float32"))
    x, y = rng.random((5, 64), "float32"), np.zeros(5, "float32")
    large = re.compile(r"(__shared__ alignas\(64\) float \w+)\[\d+\]")
    run = run_of("total", edit=lambda text: large.sub(r"\1[12289]", text, count=1))
    with pytest.raises(Fault, match=r"^launch: .*49156 bytes of shared memory.* at most 49152"):
        run(x, y)


@pytest.mark.parametrize(
    ("arch", "kib"), [("sm_75", 64), ("sm_80", 163), ("sm_89", 99), ("sm_90a", 227), ("sm_120", 99)]
)
def test_shared_memory_of_a_block(arch: str, kib: int) -> None:
    assert lower(KERNELS["total"], arch).shared == kib << 10


def test_a_copy_that_is_not_waited_for_is_poison(rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((n, 16)).astype("float16") for n in (16, 8))
    c = np.zeros((16, 8), "float32")
    run_of("matrices", edit=edited('wait_group 0;"', 'wait_group 1;"'))(a.ravel(), b.ravel(), c)
    assert np.isnan(c).any()


def test_what_is_unknown_is_named(rng: np.random.Generator) -> None:
    with pytest.raises(Unsupported, match=r"^inline PTX: nanosleep\.u32 3$"):
        run_of("total", edit=edited(BARRIER, 'asm volatile("nanosleep.u32 3;");', 1))
    with pytest.raises(Unsupported, match=r"other operands: cp\.async\.cg"):
        run_of("matrices", edit=edited("16, %2;", "8, %2;"))
    x, y = rng.random((5, 64), "float32"), np.zeros(5, "float32")
    with pytest.raises(Unsupported, match="__nanosleep"):
        run_of("total", edit=edited(BARRIER, "__nanosleep(3);", 1))(x, y)


# ---- the command ------------------------------------------------------------------------------


@pytest.fixture
def module_file(tmp_path: Path) -> str:
    path = tmp_path / "kernels.json"
    path.write_text(tvm.ir.save_json(KERNELS))
    return str(path)


def test_the_command_compares_orders_and_results(
    module_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    only = ("--function", "total", "--size", "n=5")
    assert main([module_file, *only, "--orders", "2"]) == 0
    assert capsys.readouterr().out == "total: 2 orders agree (fibers, seed 0)\n"
    x = rng.random((5, 64), "float32")
    np.savez(tmp_path / "in.npz", a=x)
    np.savez(tmp_path / "right.npz", b=x.sum(1))
    np.savez(tmp_path / "wrong.npz", b=x.sum(1) + 1)
    given = [module_file, *only, "--inputs", str(tmp_path / "in.npz"), "--expect"]
    assert main([*given, str(tmp_path / "right.npz")]) == 0
    assert main([*given, str(tmp_path / "wrong.npz")]) == 1
    assert "b differs from what is expected" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["fibers", "watch"])
def test_the_command_finds_a_race(
    mode: str, module_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([module_file, "--function", "racy", "--mode", mode]) == 1
    assert "race: " in capsys.readouterr().out


def test_the_command_runs_a_file_of_tvmscript() -> None:
    path = Path(__file__).parent / "cuda_kernels.py"
    command = [sys.executable, "-m", "cuda_emulator", str(path), "--function", "halves"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "halves: 3 orders agree (fibers, seed 0)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--function", "nothing"], "--function nothing is none of"),
        (["--function", "total"], "--size n=... is missing"),
        (["--function", "total", "--size", "n"], "not NAME=VALUE"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], said: str, module_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([module_file, *arguments]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1
