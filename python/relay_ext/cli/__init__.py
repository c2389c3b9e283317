# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext MODEL``: stock Relay beside ours beside the model's own framework.

``door`` is what Relay adds to :mod:`topi_ext.cli`; ``script_model`` loads TorchScript files,
``operators`` finds, builds and differentiates convolutions.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from topi_ext.cli import check as _check
from topi_ext.cli import entry as _entry
from topi_ext.cli.check import Options, Progress, Report, set_threads
from topi_ext.cli.errors import CliError
from topi_ext.cli.model import Model

from .door import RelayDoor

__all__ = ["CliError", "Options", "check", "main", "set_threads"]

main = partial(_entry.main, RelayDoor())


def check(
    model: Path | Model, options: Options | None = None, progress: Progress | None = None
) -> Report:
    """:func:`topi_ext.cli.check.check` in Relay: compile, run and compare one model."""
    return _check.check(model, RelayDoor(), options, progress)
