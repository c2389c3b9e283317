# SPDX-License-Identifier: Apache-2.0
"""``main``: from the command line to the exit status."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence

from . import args as cli_args
from . import doctor
from .adapter import Adapter, Choices
from .check import Options, check, set_threads
from .errors import CliError, need, one_line, tell


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
        or its inputs cannot be used, told in one line on standard error.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["doctor"]:
        return doctor.show(adapter)
    try:
        chosen = cli_args.read(adapter.usage, arguments)
        # torch 2.13 warns about its own use of a pytree class whenever it copies a program.
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
        need("rich", "printing the table")
        from . import report as printed

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
            target=chosen.target,
            threads=threads,
            repeat=chosen.repeat,
            budget=chosen.budget,
            seed=chosen.seed,
            tolerance=chosen.tolerance,
        )
        with printed.Bar() as bar:
            result = check(chosen.model, adapter, options, bar)
        printed.show(result)
        if chosen.json:
            try:
                chosen.json.write_text(json.dumps(result.to_json(), indent=2) + "\n")
            except OSError as error:
                raise CliError(f"--json {chosen.json}: {one_line(error)}") from error
    except CliError as error:
        tell(adapter.package, error)
        return 2
    return 0 if result.ok else 1
