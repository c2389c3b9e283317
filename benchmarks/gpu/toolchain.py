# SPDX-License-Identifier: Apache-2.0
"""CUDA's tools, from PATH or the wheels of ``cuda-check``, and what its compiler makes."""

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
    """A tool is nowhere; the message says which, and how it comes."""


@cache
def find(name: str) -> Path:
    """Where a tool is.

    Raises
    ------
    MissingError
        In one line.
    """
    found = shutil.which(name) or next(
        (str(folder / name) for folder in _folders() if (folder / name).is_file()), None
    )
    if found is None:
        raise MissingError(f"no {name}: install CUDA, or pip install 'tvm-conv-ext[cuda-check]'")
    return Path(found)


def _folders() -> Iterator[Path]:
    """Where wheels of CUDA put programs."""
    roots = [sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()]
    for root in dict.fromkeys(roots):
        yield from sorted(Path(root).glob("nvidia/cu*/bin"))
    if "CUDA_HOME" in os.environ:
        yield Path(os.environ["CUDA_HOME"]) / "bin"


def release() -> str:
    """Return that of the compiler."""
    done = subprocess.run([find("nvcc"), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"V(\d[\d.]*)", done.stdout)
    return found[1] if found else "unknown"


@dataclass(frozen=True)
class Usage:
    """What the assembler says of a kernel.

    Attributes
    ----------
    registers : int
        Of a thread.
    spills : int
        Bytes that a thread stores and loads for want of registers.
    stack : int
        Bytes of a thread's stack: arrays with an index that is not known when it is compiled.
    shared : int
        Static bytes of a block.
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
"""Those that TVM gives the compiler, by its own compiler or NVRTC."""


def compile_source(source: str, arch: str, folder: Path) -> tuple[Path, dict[str, Usage]]:
    """Machine code, and what each kernel takes.

    Raises
    ------
    ValueError
        What the compiler says.
    """
    text, binary = folder / "kernels.cu", folder / f"kernels_{arch}.cubin"
    text.write_text(source)
    nvcc = str(find("nvcc"))
    command = [nvcc, "--cubin", f"-arch={arch}", *FLAGS, "-o", str(binary), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"nvcc {arch}: {done.stderr.strip()[:2000]}")
    return binary, usage_of(done.stderr)


def usage_of(said: str) -> dict[str, Usage]:
    """What ``ptxas -v`` says, by kernel."""
    found = {}
    for name, stack, stored, loaded, registers, rest in _KERNEL.findall(said):
        shared = re.search(r"(\d+) bytes smem", rest)
        spills = int(stored) + int(loaded)
        found[name] = Usage(int(registers), spills, int(stack), int(shared[1]) if shared else 0)
    return found
