# SPDX-License-Identifier: Apache-2.0
"""Kernels in C for Arm and RISC-V, cross-compiled here and run by qemu."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from helpers import cmake
from helpers.c_kernels import HERE, NHWC, WORDS, check_all, compiled, driver, emitted, of_family
from helpers.cmake import CMAKE
from helpers.documents import ROOT
from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.registry import KERNELS
from topi_ext.deploy.request import Words
from topi_ext.spec.conv import OPERANDS

ARM = ROOT / ".venv-aarch64"

TARGETS = {
    "cortex-a72": {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
    "neoverse-n1": {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
    "riscv64": {
        "mtriple": "riscv64-linux-gnu",
        "mcpu": "generic-rv64",
        "mattr": ["+m", "+a", "+f", "+d", "+c"],
        "mabi": "lp64d",
    },
}
TARGETS["riscv64 with vectors"] = {
    **TARGETS["riscv64"],
    "mattr": [*TARGETS["riscv64"]["mattr"], "+v"],
}
DOTS = {"neoverse-n1": "sdot", "neoverse-v1": "usdot"}
"""Processors with dot products, and the one that kernels of int8 use there."""
PROCESSORS = {
    "neoverse-v1": "max",  # qemu 7 knows its instructions, not its name
    "riscv64": "rv64",
    "riscv64 with vectors": "rv64,v=true,vlen=128",
}
"""Names of qemu where they differ from LLVM's: processors with these instructions, not with all
that qemu knows."""
SHORT = ("neoverse-n1", "riscv64 with vectors")
"""Processors that run a few cases, because another one of their instruction set runs all."""


UP, GRAD = "conv2d_transpose", "conv2d_weight_grad"
FAMILIES = {
    "direct": Words("direct", "conv2d", "2x9x9x11", "12x9x3x3", stride="2", padding="1"),
    "winograd": Words("winograd", UP, "1x16x8x9", "16x20x4x4", stride="2", padding="1"),
    "dot_product": Words("dot_product", "conv2d", "1x64x2x2", "40x64x2x2"),
    "gemm": Words("gemm", "conv2d", "2x5x6x24", "1x1x24x40", **NHWC),
    "gemm_col2im": Words("gemm_col2im", UP, "1x32x2x3", "32x16x4x4", stride="2", padding="1"),
    "phase_lanes": Words("phase_lanes", "conv1d_transpose", "1x16x21", "16x8x16", stride="8"),
    "valid_taps": Words(
        "valid_taps", "conv2d", "1x16x12x12", "20x16x3x3", dilation="6", padding="6"
    ),
    "wgrad_positions": Words(
        "wgrad_positions", GRAD, "1x12x13x11", "12x1x3x3", groups=12, padding="1"
    ),
    "wgrad_channels": Words("wgrad_channels", GRAD, "2x12x9x9", "20x12x3x3", padding="1"),
    "wgrad_im2col": Words("wgrad_im2col", GRAD, "2x12x4x4", "20x12x3x3", padding="1"),
    "wgrad_winograd": Words("wgrad_winograd", GRAD, "2x12x9x9", "20x12x3x3", padding="1"),
}
"""One family for each row of the registry that is neither for some processors only nor for symbolic
sizes."""

BYTES = [
    Words("bytes", "conv2d", "2x9x8x9", "12x9x3x3", stride="2,1", padding="1", dtype="int8",
          out_dtype="int32"),
    Words("positive", "conv2d", "1x7x6x8", "3x3x2x8", groups=4, dtype="uint8", out_dtype="int32",
          **NHWC),
    Words("up", UP, "1x6x5x4", "6x5x4x4", stride="2", padding="1", dtype="int8",
          out_dtype="int32"),
]  # fmt: skip


def tools(name: str) -> tuple[str, list[str]]:
    triple = TARGETS.get(name, TARGETS["neoverse-n1"])["mtriple"]
    machine = triple.split("-")[0]
    compiler = shutil.which(f"{triple}-gcc")
    qemu = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if not compiler or not qemu:
        pytest.skip(f"apt-get install qemu-user-static gcc-{triple} g++-{triple}")
    return compiler, [qemu, "-L", f"/usr/{triple}", "-cpu", PROCESSORS.get(name, name)]


@pytest.mark.parametrize("name", TARGETS)
def test_values(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    compiler, qemu = tools(name)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **TARGETS[name]})
    kernels = emitted([] if name in SHORT else WORDS, target)
    for family, words in FAMILIES.items():
        found = of_family(words, family, target)
        assert found, f"{family} does not serve {words}"
        kernels.append(found)
    made = driver(tmp_path, kernels, "PTHREADS", (), compiler)
    check_all(made, kernels, rng, emulator=qemu)


@pytest.mark.parametrize("name", DOTS)
def test_dot_products(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    compiler, qemu = tools(name)
    options = {**TARGETS["neoverse-n1"], "mcpu": name}
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **options})
    assert CpuBackend.of(target).machine.int_dots[0][0] == DOTS[name]
    kernels = [of_family(words, "direct_dot", target) for words in BYTES]
    made = driver(tmp_path, kernels, "PTHREADS", (), compiler)
    check_all(made, kernels, rng, emulator=qemu)


@pytest.mark.parametrize("name", TARGETS)
def test_registers(name: str) -> None:
    """Plans are made for NEON's, for RISC-V's vectors, or for its 32 numbers."""
    machine = CpuBackend.of(tvm.target.Target({"kind": "llvm", **TARGETS[name]})).machine
    assert machine.vector_bytes == 16
    assert machine.registers == (8 if name == "riscv64" else 32)


@pytest.mark.parametrize("name", ["cortex-a72", "riscv64"])
def test_the_examples(name: str, tmp_path: Path) -> None:
    """Kernels in C, and on Arm a whole model, by CMake's toolchain files.

    There is no wheel of apache-tvm for RISC-V, and so no runtime that could run a model.
    """
    tools(name)
    if not CMAKE:
        pytest.skip("no cmake: pip install cmake")
    machine = TARGETS[name]["mtriple"].split("-")[0]
    runtime = [ARM / "tvm/lib/libtvm_runtime.so", ARM / "tvm_ffi/lib/libtvm_ffi.so"]
    if name == "cortex-a72" and not all(map(Path.exists, runtime)):
        pytest.skip("no TVM runtime for Arm: make env-aarch64")
    options = {
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_TOOLCHAIN_FILE": ROOT / "examples" / "toolchains" / f"{machine}.cmake",
        "CONV_EXT_TARGET": json.dumps({"kind": "llvm", "num-cores": 2, **TARGETS[name]}),
        "CONV_EXT_MODEL": "ON" if name == "cortex-a72" else "OFF",
        "TVM_RUNTIME": runtime[0],
        "TVM_FFI": runtime[1],
    }
    given = [f"-D{option}={value}" for option, value in options.items()]
    tested = cmake.run_project(ROOT, tmp_path, *given)
    count = 2 if name == "cortex-a72" else 1
    assert re.search(rf"100% tests passed.* out of {count}$", tested, re.MULTILINE)
    assert "qemu" in tested and tested.count("of the largest value") == count


def test_every_family_is_there() -> None:
    elsewhere = {"direct_amx", "direct_dot", "gemm_amx", "gemm_dot", "runtime_dispatch"}
    assert {row.name for row in KERNELS.of_kind(*OPERANDS)} == FAMILIES.keys() | elsewhere


def test_float16_of_riscv(tmp_path: Path) -> None:
    """The runtime's conversions, of all numbers, and of what lies half-way between two."""
    compiler, qemu = tools("riscv64")
    made = compiled(HERE / "c_float16.c", tmp_path, [], "SERIAL", (), compiler)
    done = subprocess.run([*qemu, made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
