# SPDX-License-Identifier: Apache-2.0
"""The start and the end of a process that runs the command line."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from topi_ext import interrupts

from .errors import CliError, tell

CLOSED_PIPE = 128 + 13
"""Exit status if the reader of the output has ended, as after SIGPIPE."""

NOT_WRITTEN = 3
"""Exit status if the output cannot be written, as to a full disk."""


def run(package: str, main: Callable[[], int]) -> None:
    """Run ``main`` in this process, and end it with the status that is returned.

    Ctrl-C and an output that cannot be written end it in one line.
    """
    _prepare(package)
    with _telling_output_errors(package):
        status = main()
    interrupts.ignore_interrupts()
    sys.exit(status)


class OutputError(Exception):
    """Standard output cannot be written.  No library takes it for an error of its own."""


class _Output(io.TextIOWrapper):
    """Standard output that raises :class:`OutputError`, and prints ? for what it cannot encode."""

    def write(self, text: str) -> int:
        with _output_errors():
            return super().write(text)

    def flush(self) -> None:
        with _output_errors():
            super().flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError from error


def _prepare(package: str) -> None:
    """Prepare warnings, the output and Ctrl-C."""
    # Warnings are shown, not raised: those of TVM and torch are not the user's to mend, and raised
    # in an import or a compile they would end it.
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.simplefilter("default")
    # Files and sockets must not get the numbers of the streams, which C++ writes to.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until this process ends)
    if sys.stdout is None:
        _end(package, OSError("it is closed"))
    sys.stdout = _Output(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)),
        sys.stdout.encoding,
        "replace",
        line_buffering=True,
    )
    interrupts.answer_interrupts(package, _hang_up)


@contextmanager
def _telling_output_errors(package: str) -> Iterator[None]:
    """End this process with one line if the output of the block cannot be written."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputError as error:
        # Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end(package, error.__cause__)


def _end(package: str, error: BaseException | None) -> None:
    """End this process because of an error of its output."""
    interrupts.ignore_interrupts()
    if isinstance(error, BrokenPipeError):  # the reader, such as head, has ended
        sys.exit(CLOSED_PIPE)
    reason = getattr(error, "strerror", None) or error
    tell(package, CliError(f"standard output cannot be written: {reason}"))
    sys.exit(NOT_WRITTEN)


def _hang_up() -> None:
    """End the sessions on boards."""
    if boards := sys.modules.get("topi_ext.tuning.rpc"):
        boards.hang_up()
