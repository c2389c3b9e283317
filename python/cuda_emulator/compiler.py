# SPDX-License-Identifier: Apache-2.0
"""Programs from C++: one of the kernels, linked with the runtime; each text is compiled once."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .faults import Unsupported

__all__ = ["MODES", "folder", "program"]

_DEVICE = Path(__file__).parent / "device"
_TRAP = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
_UNDEFINED = "-fsanitize=address,undefined"


class Mode(NamedTuple):
    """Flags of a mode: for both files, for the kernels, for the runtime, for the linker."""

    both: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    link: tuple[str, ...] = ()


MODES = {
    "fibers": Mode(("-DEMU_FIBERS",), _TRAP),
    # The calls that ThreadSanitizer asks for, answered by watch.h and not by its own library.
    "watch": Mode(("-DEMU_FIBERS", "-DEMU_WATCH"), ("-fsanitize=thread", *_TRAP)),
    "threads": Mode(
        ("-DEMU_THREADS", "-DEMU_TSAN", "-pthread"),
        ("-fsanitize=thread", *_TRAP),
        link=("-fsanitize=thread", "-pthread"),
    ),
    "sanitize": Mode(
        ("-DEMU_FIBERS", "-DEMU_ASAN", "-fno-omit-frame-pointer"),
        (_UNDEFINED, "-fno-sanitize-recover=all"),
        ("-fsanitize=address",),
        (_UNDEFINED,),
    ),
}
_COMMON = (
    *("-std=c++17", "-w", "-ffp-contract=fast", "-fno-strict-aliasing"),
    # Lines alone; of version 5 addr2line of binutils 2.40 names the wrong file.
    *("-g1", "-gdwarf-4"),
)


@cache
def compiler() -> str:
    """The first of $CXX, g++ and clang++ that is there."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise Unsupported("no C++ compiler: neither $CXX nor g++ nor clang++")


@cache
def folder() -> Path:
    """Return the folder of compiled programs, which is removed when this process ends."""
    made = tempfile.mkdtemp(prefix="cuda_emulator_")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not remove what its parent still runs
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return Path(made)


@cache
def _accepted(flag: str) -> bool:
    command = [compiler(), "-x", "c++", "-fsyntax-only", flag, "-"]
    return not subprocess.run(command, input="", text=True, capture_output=True).returncode


def _optional() -> list[str]:
    # Old compilers leave locals as they are; other processors have no such name.
    return [f for f in ("-ftrivial-auto-var-init=pattern", "-march=native") if _accepted(f)]


def _run(arguments: list[str], what: str) -> None:
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), done.stderr.strip()[:300])
        raise Unsupported(f"{what} does not compile: {first}")


def _compiled(source: Path, flags: tuple[str, ...], optimise: str, what: str) -> Path:
    made = source.with_suffix(".o") if source.parent == folder() else folder() / f"{what}.o"
    arguments = [*_COMMON, *_optional(), optimise, *flags, "-I", str(_DEVICE)]
    _run([*arguments, "-c", str(source), "-o", str(made)], what)
    return made


@cache
def _runtime(mode: str) -> Path:
    flags = MODES[mode]
    return _compiled(_DEVICE / "runtime.cpp", flags.both + flags.runtime, "-O2", f"runtime_{mode}")


def program(text: str, mode: str) -> Path:
    """The program of these kernels in this mode."""
    name = hashlib.sha256(f"{mode}\n{text}".encode()).hexdigest()[:24]
    made = folder() / name
    if not made.exists():
        source = made.with_suffix(".cpp")
        source.write_text(text)
        flags = MODES[mode]
        kernels = _compiled(source, flags.both + flags.kernels, "-O1", "the code of the kernels")
        linked = made.with_suffix(".new")
        _run([str(kernels), str(_runtime(mode)), *flags.link, "-o", str(linked)], "the program")
        linked.rename(made)
    return made
