# SPDX-License-Identifier: Apache-2.0
"""The documents, and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


DOCS = ROOT / "docs"


class Block(NamedTuple):
    """A fenced block of code: where it begins, its language, the file that it is, its text."""

    line: int
    language: str
    file: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page."""
    text = page.read_text()
    fence = r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```$'
    fences = re.finditer(fence, text, re.DOTALL | re.MULTILINE)
    return [
        Block(text.count("\n", 0, found.start(3)), found[1], found[2] or "", found[3])
        for found in fences
    ]
