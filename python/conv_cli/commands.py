# SPDX-License-Identifier: Apache-2.0
"""Commands: they carry out the choices of a command line, and show the results."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topi_ext.notices import one_line
from topi_ext.tuning.rpc import Board

from . import cache_command, doctor
from .adapter import Adapter
from .check import check, set_threads
from .errors import CliError, need
from .kernels import chosen_kernels
from .model import Options
from .profiling import profile
from .tuning import taking_plans, told, tune


def run(adapter: Adapter, chosen: Namespace) -> int:
    """Carry out the choices of a command line; return the exit status.

    Raises
    ------
    CliError
        For an error that the user can correct.
    """
    return COMMANDS[chosen.command](adapter, chosen)


def _table(adapter: Adapter, chosen: Namespace) -> int:
    """Check or profile a model, and show a table."""
    options = _options_with_rich(chosen)
    from . import profile_table, report

    tables: dict[str, Any] = {"": (check, report), "profile": (profile, profile_table)}
    work, page = tables[chosen.command]
    with taking_plans(chosen.database), report.Bar() as bar:
        found = work(adapter, chosen.model, options, bar)
    page.show(found)
    _write_json(chosen.json, found.to_json)
    return 0 if found.ok else 1


def _kernels(adapter: Adapter, chosen: Namespace) -> int:
    """Show which kernels compute a model."""
    with taking_plans(chosen.database):
        found = chosen_kernels(adapter, chosen.model, _options(chosen))
    print("\n".join(found.lines()))
    _write_json(chosen.json, found.to_json)
    return 0


def _tune(adapter: Adapter, chosen: Namespace) -> int:
    """Measure plans, and say what they gain."""
    found = tune(adapter, chosen.model, _options_with_rich(chosen), chosen.database, print)
    where = "plans are in {}" if chosen.database.is_file() else "{} is not written"
    print(f"{adapter.package}: {told(found)}; {where.format(chosen.database)}")
    _write_json(chosen.json, lambda: [one._asdict() for one in found])
    return 0


COMMANDS: dict[str, Callable[[Adapter, Namespace], int]] = {
    "": _table,
    "profile": _table,
    "kernels": _kernels,
    "tune": _tune,
    "doctor": lambda adapter, _: doctor.show(adapter),
    "cache": lambda adapter, chosen: cache_command.show(adapter, chosen.clear),
}


def _options_with_rich(chosen: Namespace) -> Options:
    """Return the options of a command that shows a table or its progress."""
    # torch 2.13 warns about its own use of a pytree class whenever it copies a program.
    warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
    need("rich", "printing the table")
    return _options(chosen)


def _options(chosen: Namespace) -> Options:
    """Return the options of the command line."""
    threads = set_threads(chosen.threads)
    board = None
    if chosen.rpc:
        host, port = chosen.rpc
        board = Board(host, port, chosen.key, chosen.cc, chosen.rpc_timeout, chosen.board_threads)
    same = ("grad", "target", "repeat", "budget", "seed", "tolerance")
    return Options(
        given=chosen.input,
        dims=chosen.dim,
        shapes=chosen.shape,
        outputs=tuple(chosen.output),
        threads=threads,
        board=board,
        **{name: getattr(chosen, name) for name in same},
    )


def _write_json(path: Path | None, data: Callable[[], Any]) -> None:
    """Write what ``--json`` asks for."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(data(), indent=2) + "\n")
    except OSError as error:
        raise CliError(f"--json {path}: {one_line(error)}") from error
