# SPDX-License-Identifier: Apache-2.0
"""``main``: from the command line to the exit status."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from . import args
from .errors import CliError, tell
from .usage import SERVED, Usage


def main(usage: Usage, argv: Sequence[str] | None = None, program: str = "") -> int:
    """Run a command line; TVM is imported when all that needs none is known to be right.

    Parameters
    ----------
    usage : Usage
        The adapter that runs it.
    argv : sequence of str, optional
        Arguments; those of the process unless given.
    program : str, optional
        How help names the program; ``python -m PACKAGE`` unless given.

    Returns
    -------
    int
        0: all is right. 1: something that ours computed is wrong. 2: the command line, the file
        or its inputs cannot be used, reported in one line on standard error.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        chosen = args.read(usage, arguments, program or f"python -m {usage.package}")
        adapter = _adapter(usage)
        from .commands import run

        return run(adapter, chosen)
    except CliError as error:
        tell(usage.package, error)
        return 2


def _adapter(usage: Usage) -> Any:
    """Import an adapter, by its name: no adapter stands below this package.

    Raises
    ------
    CliError
        This TVM is not one that it serves, or there is none.
    """
    try:
        return import_module(f"{usage.package}.cli.adapter").ADAPTER
    except ImportError as error:
        reason = re.sub(r"^\w+_ext: ", "", str(error))
        raise CliError(f"{reason}; {SERVED}") from error
