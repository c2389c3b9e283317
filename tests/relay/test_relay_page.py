# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/relay.md: its program runs in the environment of Relay."""

from __future__ import annotations

from helpers.documents import DOCS, blocks

PAGE = DOCS / "how-to" / "relay.md"


def test_the_program_of_the_page() -> None:
    (program,) = (block for block in blocks(PAGE) if block.language == "python")
    exec(compile("\n" * program.line + program.text, str(PAGE), "exec"), {"__name__": "page"})
