# SPDX-License-Identifier: Apache-2.0
"""Read LLVM's assembly of a kernel, instruction by instruction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def assembly(module: Any) -> str:
    """The assembly of a compiled module."""
    pending = [getattr(module, "mod", module)]
    while pending:
        one = pending.pop()
        if str(one.kind) == "llvm":
            return one.inspect_source("s")
        pending += list(one.imports)
    raise AssertionError("no LLVM module was compiled")


def basic_blocks(text: str) -> Iterator[list[str]]:
    """Instructions between labels and branches, single blanks between their parts."""
    found: list[str] = []
    for line in text.splitlines():
        instruction = " ".join(line.split())
        if re.match(r"[.\w$]+:", instruction):
            yield found
            found = []
        elif instruction and not instruction.startswith((".", "#", "//")):
            found.append(instruction)
            if re.match(r"(j|b\.|cbn?z|tbn?z)", instruction):
                yield found
                found = []
    yield found
