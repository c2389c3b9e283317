# SPDX-License-Identifier: Apache-2.0
"""Instructions of a kernel's machine code, and of its main loop."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.gpu import toolchain

PRODUCTS = ("FFMA", "FFMA2", "HMMA", "IMMA", "DFMA", "DMMA", "IDP")
"""Instructions that multiply: the loop with most of them is the main loop."""

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+([^;]+);")
_BRANCH = re.compile(r"BRA(?:\.\w+)*\s+(?:!?U?P\w+,\s*)?`?\(?\.?(0x[0-9a-f]+)")
_GUARD = re.compile(r"^@!?U?P\w+\s+")
_WHOLE = ("LDS", "STS", "LDG", "STG", "LDSM", "LDGSTS", "LDL", "STL")


@dataclass(frozen=True)
class Code:
    """Instructions of a kernel.

    Attributes
    ----------
    all, loop : Counter
        By name; with their width where they access memory.  Those of the main loop: of loops with
        a product, an innermost one that has most of them; all of a kernel without such a loop.
    """

    all: Counter[str]
    loop: Counter[str]

    @property
    def products(self) -> int:
        """Products of the main loop; an instruction that computes a pair counts as two."""
        return _count(self.loop, PRODUCTS) + self.loop["FFMA2"]

    @property
    def share(self) -> float:
        """Products in the instructions of the main loop."""
        return _count(self.loop, PRODUCTS) / max(1, sum(self.loop.values()))

    @property
    def per_load(self) -> float:
        """Products for each 16 bytes a thread that the main loop reads of shared memory."""
        loads = sum(
            count * wide(name) / 16 for name, count in self.loop.items() if name.startswith("LDS")
        )
        return self.products / loads if loads else float("inf")

    def widths(self, verb: str) -> dict[int, int]:
        """Return how many accesses of each width in bytes an instruction such as ``LDG`` has."""
        found: Counter[int] = Counter()
        for name, count in self.all.items():
            if name.split(".")[0] == verb:
                found[wide(name)] += count
        return dict(sorted(found.items()))

    def has(self, name: str) -> bool:
        """Return whether there is an instruction of this name."""
        return any(one.split(".")[0] == name for one in self.all)


def _count(found: Counter[str], names: tuple[str, ...]) -> int:
    return sum(count for name, count in found.items() if name.split(".")[0] in names)


def wide(name: str) -> int:
    """Return the bytes that an instruction moves for a thread."""
    if name.startswith("LDSM"):
        return 16
    bits = re.search(r"\.(?:U|S)?(8|16|32|64|128|256)\b", name)
    return int(bits[1]) // 8 if bits else 4


def read(text: str) -> dict[str, Code]:
    """Return all kernels of what ``cuobjdump -sass`` prints."""
    found = {}
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name = part.split(None, 1)[0]
        listed = [(int(at, 16), what) for at, what in _INSTRUCTION.findall(part)]
        whole = _names(what for _, what in listed)
        found[name] = Code(whole, _main_loop(listed) or whole)
    return found


def _names(instructions: Iterator[str] | list[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for what in instructions:
        name = _GUARD.sub("", what.strip()).split()[0]
        first = name.split(".")[0]
        counted[name if first in _WHOLE else first] += 1
    return counted


def _main_loop(listed: list[tuple[int, str]]) -> Counter[str]:
    """Return the innermost loop with most products; of equal ones the shortest.

    Where a tensor begins at no multiple of 16 bytes another loop runs, of as many products.
    """
    loops = [
        _names([what for _, what in listed[begin : end + 1]]) for begin, end in _innermost(listed)
    ]
    return max(loops, key=lambda one: (_count(one, PRODUCTS), -one.total()), default=Counter())


def _innermost(listed: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """First and last instruction of loops with products in which there is no other such loop."""
    places = {at: number for number, (at, _) in enumerate(listed)}
    loops = []
    for number, (at, what) in enumerate(listed):
        found = _BRANCH.search(what)
        to = int(found[1], 16) if found else at
        if to < at and to in places:
            inside = _names([one for _, one in listed[places[to] : number + 1]])
            if _count(inside, PRODUCTS):
                loops.append((places[to], number))
    return [
        (begin, end)
        for begin, end in loops
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)
    ]


def disassemble(binary: Path) -> str:
    """Return the machine code as text."""
    reader, other = toolchain.find("cuobjdump"), toolchain.find("nvdisasm")
    path = os.pathsep.join([str(other.parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [str(reader), "-sass", str(binary)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    return done.stdout
