# SPDX-License-Identifier: Apache-2.0
"""The start and the end of ``python -m PACKAGE``; it starts before TVM is imported.

Python imports a package before it runs its ``__main__``, and importing ours imports TVM, which
takes seconds. So the package first checks whether it is being run, and calls `ahead`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from topi_ext import interrupts

if TYPE_CHECKING:
    from .args import Usage

CLOSED_PIPE = 128 + 13
"""Exit status if the reader of the output has ended, as after SIGPIPE."""


def ahead(package: str, usage: Callable[[], Usage]) -> None:
    """Prepare a process that runs ``python -m PACKAGE``: handle Ctrl-C, and report errors that need
    no TVM.
    """
    answer_interrupts(package)
    # Warnings are shown, not raised: those of TVM and torch are not the user's to mend, and raised
    # in an import or a compile they would end it.
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.simplefilter("default")
    words = sys.argv[1:]
    if words == ["doctor"] or words[:1] == ["cache"]:
        return
    from .args import read  # not before Ctrl-C is answered
    from .errors import CliError, tell

    try:
        read(usage(), words[1:] if words[:1] == ["doctor"] else words)
    except CliError as error:
        tell(package, error)
        sys.exit(2)


def run(package: str, main: Callable[[], int]) -> None:
    """End this process with the status that ``main`` returns."""
    answer_interrupts(package)
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output, such as head, has ended. Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = CLOSED_PIPE
    interrupts.ignore_interrupts()
    sys.exit(status)


def answer_interrupts(package: str) -> None:
    """Make Ctrl-C end this process with one line and status 130, and its sessions on boards."""
    interrupts.answer_interrupts(package, _hang_up)


def _hang_up() -> None:
    if boards := sys.modules.get("topi_ext.tuning.rpc"):
        boards.hang_up()
