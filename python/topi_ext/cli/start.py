# SPDX-License-Identifier: Apache-2.0
"""The first moments of ``python -m PACKAGE``, before TVM is imported.

Python imports a package before it runs its ``__main__``, and importing ours imports TVM, which
takes seconds. So the package itself asks, first of all, whether it is being run.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any

from topi_ext.cli import args
from topi_ext.cli.errors import CliError, tell


def ahead(usage: args.Usage) -> None:
    """Of a process that is ``python -m PACKAGE``: answer Ctrl-C, refuse what can be refused."""
    if not _is_run(usage.package):
        return
    answer_interrupts(usage.package)
    # Warnings are shown, not raised: those of TVM and torch are not the user's to mend, and raised
    # in an import or a compile they would end it.
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.simplefilter("default")
    if sys.argv[1:] == ["doctor"]:
        return
    try:
        args.read(usage, sys.argv[1:])
    except CliError as error:
        tell(usage.package, error)
        sys.exit(2)


def _is_run(package: str) -> bool:
    """Whether Python was started with ``-m PACKAGE`` and is still looking for it."""
    if getattr(sys, "argv", [])[:1] != ["-m"]:
        return False
    line = getattr(sys, "orig_argv", [])  # Python 3.10
    before = line[: len(line) - len(sys.argv) + 1]
    return bool(before) and before[-1] in (package, f"-m{package}")


def answer_interrupts(package: str) -> None:
    """Make Ctrl-C end this process with one line and status 130, whatever it is doing.

    As KeyboardInterrupt it would travel through TVM's and torch's code, which turn it into errors
    of their own or lose it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # ignored, as behind nohup, or answered already
    process = os.getpid()
    # The progress bar has hidden the cursor.
    line = ("\r\x1b[2K\x1b[?25h" if os.isatty(2) else "") + f"{package}: interrupted\n"

    def stop(*_: Any) -> None:
        if os.getpid() == process:  # not its children, who hear of it too
            os.write(2, line.encode())
        os._exit(130)

    signal.signal(signal.SIGINT, stop)
