# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL``: stock TVM beside ours beside the model's own framework.

``door`` is what Relax adds to :mod:`topi_ext.cli`; ``torch_model`` loads ``.pt2`` files,
``operators`` finds convolutions, ``gradcheck`` differentiates.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from topi_ext.cli import check as _check
from topi_ext.cli import entry as _entry
from topi_ext.cli.check import Options, Progress, Report, set_threads
from topi_ext.cli.errors import CliError
from topi_ext.cli.model import Model

from .door import RelaxDoor

__all__ = ["CliError", "Options", "check", "main", "set_threads"]

main = partial(_entry.main, RelaxDoor())


def check(
    model: Path | Model, options: Options | None = None, progress: Progress | None = None
) -> Report:
    """:func:`topi_ext.cli.check.check` in Relax: compile, run and compare one model."""
    return _check.check(model, RelaxDoor(), options, progress)
