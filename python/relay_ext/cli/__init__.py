# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext MODEL``: compare stock Relay, ours and the model's own framework.

``adapter`` is what Relay adds to :mod:`conv_cli`; ``script_model``, ``tensorflow_model`` and
``keras_model`` load files, ``bound`` and ``diagnostics`` make modules of what importers give,
``operators`` finds, builds and differentiates convolutions.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from conv_cli import check as _check
from conv_cli import main as _main
from conv_cli.check import Options, Progress, Report, set_threads
from conv_cli.errors import CliError
from conv_cli.model import Model

from .adapter import RelayAdapter

__all__ = ["CliError", "Options", "check", "main", "set_threads"]

main = partial(_main.main, RelayAdapter())


def check(
    model: Path | Model, options: Options | None = None, progress: Progress | None = None
) -> Report:
    """:func:`conv_cli.check.check` in Relay: compile, run and compare one model."""
    return _check.check(model, RelayAdapter(), options, progress)
