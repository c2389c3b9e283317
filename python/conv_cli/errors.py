# SPDX-License-Identifier: Apache-2.0
"""The error that the command line prints, and imports of optional packages."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from types import ModuleType

from topi_ext.notices import printable
from topi_ext.tuning.rpc import BoardError


class CliError(Exception):
    """A mistake of the user or a gap of an importer: one line, printed without a traceback."""


def tell(package: str, error: CliError) -> None:
    """Print an error: one line, whatever names it quotes."""
    with suppress(OSError):  # the status tells it too
        print(f"{package}: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)


@contextmanager
def of_boards() -> Iterator[None]:
    """Raise errors of boards inside the block, or the decorated function, as errors of a user."""
    try:
        yield
    except BoardError as error:
        raise CliError(str(error)) from error


class NotImportedError(Exception):
    """A gap of an importer of stock TVM: a few words for its column of the table."""


@contextmanager
def quiet(level: int = logging.CRITICAL) -> Iterator[None]:
    """No warnings and no log lines up to ``level`` inside the block."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def no_output() -> Iterator[None]:
    """Suppress what the block prints, on standard error also the output of C++ code."""
    with redirect_stdout(io.StringIO()):
        try:
            kept = os.dup(2)
        except OSError:  # closed, as by 2>&-
            yield
            return
        sys.stderr.flush()
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def need(package: str, why: str, install: str = "") -> ModuleType:
    """Import an optional package, or raise an error that names the ``pip install`` command."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        top = package.split(".")[0]
        missing = getattr(error, "name", None) or top
        pip = install if missing == top and install else missing
        raise CliError(f"{why} needs {missing}: pip install {pip}") from error
