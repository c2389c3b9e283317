# SPDX-License-Identifier: Apache-2.0
"""The first moments of ``python -m PACKAGE``, before TVM is imported.

Python imports a package before it runs its ``__main__``, and importing ours imports TVM, which
takes seconds. So the package itself asks, first of all, whether it is being run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .args import Usage


def ahead(package: str, usage: Callable[[], Usage]) -> None:
    """Of a process that is ``python -m PACKAGE``: answer Ctrl-C, refuse what can be refused."""
    if not _is_run(package):
        return
    answer_interrupts(package)
    # Warnings are shown, not raised: those of TVM and torch are not the user's to mend, and raised
    # in an import or a compile they would end it.
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.simplefilter("default")
    if sys.argv[1:] == ["doctor"] or sys.argv[1:2] == ["cache"]:
        return
    from .args import read  # not before Ctrl-C is answered
    from .errors import CliError, tell

    try:
        read(usage(), sys.argv[1:])
    except CliError as error:
        tell(package, error)
        sys.exit(2)


def run(package: str, main: Callable[[], int]) -> None:
    """End this process with the status that ``main`` returns."""
    answer_interrupts(package)  # Python 3.9 does not say which module it runs: not asked ahead
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said, only Python's own end is left
    sys.exit(status)


def _is_run(package: str) -> bool:
    """Whether Python was started with ``-m PACKAGE`` and is still looking for it."""
    if getattr(sys, "argv", [])[:1] != ["-m"]:
        return False
    line = getattr(sys, "orig_argv", [])  # Python 3.10
    before = line[: len(line) - len(sys.argv) + 1]
    return bool(before) and before[-1] in (package, f"-m{package}")


def answer_interrupts(package: str) -> None:
    """Make Ctrl-C end this process with one line and status 130, whatever it is doing.

    As KeyboardInterrupt it would wait for the end of what TVM runs, which can be a minute, and then
    travel through code of TVM and torch that turns it into another error or loses it. So it is a
    thread that hears of it, by the byte that Python's own handler writes at once.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # ignored, as behind nohup, or answered already
    # The progress bar has hidden the cursor.
    line = ("\r\x1b[2K\x1b[?25h" if os.isatty(2) else "") + f"{package}: interrupted\n"
    heard, told = os.pipe()
    os.set_blocking(told, False)

    def stop() -> None:
        while os.read(heard, 1) != bytes([signal.SIGINT]):
            pass
        os.write(2, line.encode())
        if boards := sys.modules.get("conv_cli.boards"):
            boards.hang_up()
        os._exit(130)

    threading.Thread(target=stop, daemon=True).start()
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
