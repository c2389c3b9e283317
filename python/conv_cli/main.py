# SPDX-License-Identifier: Apache-2.0
"""``main``: from the command line to the exit status."""

from __future__ import annotations

import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topi_ext.notices import one_line
from topi_ext.tuning.rpc import Board

from . import args as cli_args
from . import cache_command, doctor
from .adapter import Adapter, Choices
from .check import Options, check, set_threads
from .errors import CliError, need, tell
from .kernels import chosen_kernels
from .profiling import profile
from .tuning import taking_plans, told, tune


def main(adapter: Adapter, argv: Sequence[str] | None = None) -> int:
    """Run ``python -m PACKAGE``.

    Parameters
    ----------
    adapter : Adapter
        The adapter that runs it.
    argv : sequence of str, optional
        Arguments; those of the process unless given.

    Returns
    -------
    int
        0: all is right. 1: something that ours computed is wrong. 2: the command line, the file
        or its inputs cannot be used, reported in one line on standard error.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["doctor"]:
        return doctor.show(adapter)
    try:
        if arguments[:1] == ["doctor"]:
            return _kernels(adapter, cli_args.read(adapter.usage, arguments[1:]))
        if adapter.usage.keeps_code and arguments[:1] == ["cache"]:
            return cache_command.show(adapter, arguments[1:])
        chosen = cli_args.read(adapter.usage, arguments)
        # torch 2.13 warns about its own use of a pytree class whenever it copies a program.
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
        need("rich", "printing the table")
        from . import report as printed

        options = _options(chosen)
        if chosen.tune:
            _tune(adapter, chosen, options)
            return 0
        if chosen.profile:
            with taking_plans(chosen.database):
                _profile(adapter, chosen, options)
            return 0
        with taking_plans(chosen.database), printed.Bar() as bar:
            report = check(chosen.model, adapter, options, bar)
        printed.show(report)
        if chosen.json:
            _write_json(chosen.json, report.to_json())
    except CliError as error:
        tell(adapter.package, error)
        return 2
    return 0 if report.ok else 1


def _profile(adapter: Adapter, chosen: Namespace, options: Options) -> None:
    """Show where the time goes."""
    from . import profile_table
    from .report import Bar

    with Bar() as bar:
        found = profile(chosen.model, adapter, options, bar)
    profile_table.show(found)
    if chosen.json:
        _write_json(chosen.json, found.to_json())


def _kernels(adapter: Adapter, chosen: Namespace) -> int:
    """Show which kernels compute a model; 0."""
    if not adapter.usage.takes_profile:
        raise CliError(f"doctor MODEL: {adapter.package} does not tell which kernels it has chosen")
    with taking_plans(chosen.database):
        found = chosen_kernels(chosen.model, adapter, _options(chosen))
    print("\n".join(found.lines()))
    if chosen.json:
        _write_json(chosen.json, found.to_json())
    return 0


def _tune(adapter: Adapter, chosen: Namespace, options: Options) -> None:
    """Measure plans, and say what they gain."""
    found = tune(chosen.model, adapter, options, chosen.database, print)
    where = "plans are in {}" if chosen.database.is_file() else "{} is not written"
    print(f"{adapter.package}: {told(found)}; {where.format(chosen.database)}")
    if chosen.json:
        _write_json(chosen.json, [one._asdict() for one in found])


def _options(chosen: Namespace) -> Options:
    """Return the options of the command line."""
    threads = set_threads(chosen.threads)
    board = None
    if chosen.rpc:
        host, port = chosen.rpc
        board = Board(host, port, chosen.key, chosen.cc, chosen.rpc_timeout, chosen.board_threads)
    return Options(
        choices=Choices(
            given=chosen.input,
            dims=chosen.dim,
            shapes=chosen.shape,
            outputs=tuple(chosen.output),
            seed=chosen.seed,
            threads=threads,
        ),
        grad=chosen.grad,
        target=chosen.target,
        threads=threads,
        repeat=chosen.repeat,
        budget=chosen.budget,
        seed=chosen.seed,
        tolerance=chosen.tolerance,
        board=board,
    )


def _write_json(path: Path, data: Any) -> None:
    try:
        path.write_text(json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise CliError(f"--json {path}: {one_line(error)}") from error
