# SPDX-License-Identifier: Apache-2.0
"""``tune MODEL --database PLANS.json``, and compilation with such a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from topi_ext.notices import one_line

from .adapter import Adapter
from .errors import CliError, of_boards
from .model import Options, load
from .targets import parse_target


@of_boards()
def tune(
    adapter: Adapter, path: Path, options: Options, database: Path, say: Callable[[str], None]
) -> list[Any]:
    """Measure plans of a model's convolutions.

    Parameters
    ----------
    path : pathlib.Path
        A file that the adapter reads.
    database : pathlib.Path
        File for the plans.
    say : callable
        Takes a line for each kernel.

    Returns
    -------
    list
        As :meth:`Adapter.tune` has it.

    Raises
    ------
    CliError
        For an error that the user can correct.
    """
    target = parse_target(options.target, options.threads)
    model = load(path, adapter.loaders, options)
    try:
        return adapter.tune(model.mod, target, database, say, options.board)
    except (ValueError, OSError) as error:
        ours = isinstance(error, ValueError) and "\n" not in str(error)
        raise CliError(str(error) if ours else one_line(error)) from error


def told(found: Sequence[Any]) -> str:
    """Return the gain by tuning as text."""
    if not found:
        return "nothing to measure"
    gain = geometric_mean(one.estimate_ms / one.ms for one in found)
    faster = sum(one.ms < one.estimate_ms for one in found)
    return (
        f"{len(found)} measured, {faster} faster than by the estimate; "
        f"{gain:.2f} times as fast in geometric mean"
    )


@contextmanager
def taking_plans(database: Path | None) -> Iterator[None]:
    """Make compilations inside the block, also in new threads, take plans from a file.

    Raises
    ------
    CliError
        It is none.
    """
    if database is None:
        yield
        return
    from topi_ext.kernel.database import VARIABLE, DatabaseError, read

    try:
        read(database)
    except DatabaseError as error:
        raise CliError(f"--database {error}") from error
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(database)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
