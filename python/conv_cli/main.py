# SPDX-License-Identifier: Apache-2.0
"""``main``: from the command line to the exit status."""

from __future__ import annotations

import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from topi_ext.notices import one_line
from topi_ext.tuning.rpc import Board

from . import args as cli_args
from . import cache_command, doctor
from .adapter import Adapter, Choices
from .check import Options, Report, check, set_threads
from .errors import CliError, need, tell
from .kernels import chosen_kernels
from .multi_board import Outcome, check_each
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

        choices = _options(chosen)
        if chosen.tune:
            _tune(adapter, chosen, choices[0])
            return 0
        if chosen.profile:
            with taking_plans(chosen.database):
                _profile(adapter, chosen, choices[0])
            return 0
        with taking_plans(chosen.database), printed.Bar() as bar:
            if len(choices) == 1:
                outcomes: list[Outcome] = [check(chosen.model, adapter, choices[0], bar)]
            else:
                outcomes = check_each(chosen.model, adapter, choices, bar)
        reports = [outcome for outcome in outcomes if isinstance(outcome, Report)]
        for report in reports:
            printed.show(report)
        if chosen.json:
            _write_json(
                chosen.json, [report.to_json() for report in reports], several=len(choices) > 1
            )
    except CliError as error:
        tell(adapter.package, error)
        return 2
    failures = [outcome for outcome in outcomes if isinstance(outcome, CliError)]
    for failure in failures:
        tell(adapter.package, failure)
    return 2 if failures else 0 if all(report.ok for report in reports) else 1


def _profile(adapter: Adapter, chosen: Namespace, options: Options) -> None:
    """Show where the time goes."""
    from . import profile_table
    from .report import Bar

    with Bar() as bar:
        found = profile(chosen.model, adapter, options, bar)
    profile_table.show(found)
    if chosen.json:
        _write_json(chosen.json, [found.to_json()], several=False)


def _kernels(adapter: Adapter, chosen: Namespace) -> int:
    """Show which kernels compute a model; 0."""
    if not adapter.usage.takes_profile:
        raise CliError(f"doctor MODEL: {adapter.package} does not tell which kernels it has chosen")
    with taking_plans(chosen.database):
        found = chosen_kernels(chosen.model, adapter, _options(chosen)[0])
    print("\n".join(found.lines()))
    if chosen.json:
        _write_json(chosen.json, [found.to_json()], several=False)
    return 0


def _tune(adapter: Adapter, chosen: Namespace, options: Options) -> None:
    """Measure plans, and say what they gain."""
    found = tune(chosen.model, adapter, options, chosen.database, print)
    where = "plans are in {}" if chosen.database.is_file() else "{} is not written"
    print(f"{adapter.package}: {told(found)}; {where.format(chosen.database)}")
    if chosen.json:
        _write_json(chosen.json, [one._asdict() for one in found], several=True)


def _options(chosen: Namespace) -> list[Options]:
    """Return the options of the command line, one set for each kind of board."""
    threads = set_threads(chosen.threads)
    options = Options(
        choices=Choices(
            given=chosen.input,
            dims=chosen.dim,
            shapes=chosen.shape,
            outputs=tuple(chosen.output),
            seed=chosen.seed,
            threads=threads,
        ),
        grad=chosen.grad,
        target=chosen.target[0] if chosen.target else None,
        threads=threads,
        repeat=chosen.repeat,
        budget=chosen.budget,
        seed=chosen.seed,
        tolerance=chosen.tolerance,
    )
    keys = getattr(chosen, "key", [])
    targets = chosen.target if len(chosen.target) > 1 else chosen.target * len(keys)
    if not keys:
        return [options]
    host, port = chosen.rpc
    return [
        replace(
            options,
            target=target,
            board=Board(host, port, key, chosen.cc, chosen.rpc_timeout, chosen.board_threads),
        )
        for key, target in zip(keys, targets)
    ]


def _write_json(path: Path, reports: list[Any], *, several: bool) -> None:
    try:
        path.write_text(json.dumps(reports if several else reports[0], indent=2) + "\n")
    except OSError as error:
        raise CliError(f"--json {path}: {one_line(error)}") from error
