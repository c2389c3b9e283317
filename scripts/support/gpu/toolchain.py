# SPDX-License-Identifier: Apache-2.0
"""Tools of CUDA, from PATH or the wheels of ``cuda-check``, and results of its compiler."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


class MissingError(Exception):
    """A tool is missing; the message names it and how to install it."""


@cache
def find(name: str) -> Path:
    """Return the path of a tool.

    Raises
    ------
    MissingError
        If it is neither in PATH nor in a wheel.
    """
    found = shutil.which(name) or next(
        (str(folder / name) for folder in _folders() if (folder / name).is_file()), None
    )
    if found is None:
        raise MissingError(f"no {name}: install CUDA, or pip install 'tvm-conv-ext[cuda-check]'")
    return Path(found)


def _folders() -> Iterator[Path]:
    """Yield the folders in which wheels of CUDA install programs."""
    roots = [sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()]
    for root in dict.fromkeys(roots):
        yield from sorted(Path(root).glob("nvidia/cu*/bin"))
    if "CUDA_HOME" in os.environ:
        yield Path(os.environ["CUDA_HOME"]) / "bin"


def release() -> str:
    """Return the release of the compiler."""
    done = subprocess.run([find("nvcc"), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"V(\d[\d.]*)", done.stdout)
    return found[1] if found else "unknown"


@dataclass(frozen=True)
class Usage:
    """Resources of a kernel, as the assembler reports them.

    Attributes
    ----------
    registers : int
        Registers of a thread.
    spills : int
        Bytes that a thread stores and loads because registers are missing.
    stack : int
        Bytes of a thread's stack: arrays with an index that is not known at compile time.
    shared : int
        Bytes of static shared memory of a block.
    """

    registers: int
    spills: int
    stack: int
    shared: int


_KERNEL = re.compile(
    r"Function properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*?Used (\d+) registers(.*)"
)


FLAGS = ("-O3", "-std=c++17", "--use_fast_math", "-Xptxas", "-v,--register-usage-level=10")
"""Flags that TVM passes to nvcc or NVRTC."""


def compile_source(source: str, arch: str, folder: Path) -> tuple[Path, dict[str, Usage]]:
    """Return machine code, and the resources of each kernel.

    Raises
    ------
    ValueError
        With the message of the compiler.
    """
    text, binary = folder / "kernels.cu", folder / f"kernels_{arch}.cubin"
    text.write_text(source)
    nvcc = str(find("nvcc"))
    command = [nvcc, "--cubin", f"-arch={arch}", *FLAGS, "-o", str(binary), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise ValueError(f"nvcc {arch}: {' '.join(errors)[:2000] or done.returncode}")
    return binary, usage_of(done.stderr)


def usage_of(said: str) -> dict[str, Usage]:
    """Return the resources that ``ptxas -v`` reports, by kernel."""
    found = {}
    for name, stack, stored, loaded, registers, rest in _KERNEL.findall(said):
        shared = re.search(r"(\d+) bytes smem", rest)
        spills = int(stored) + int(loaded)
        found[name] = Usage(int(registers), spills, int(stack), int(shared[1]) if shared else 0)
    return found
