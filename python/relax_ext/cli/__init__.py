# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL``: stock TVM beside ours beside the model's own framework.

``adapter`` is what Relax adds to :mod:`conv_cli`; ``torch_model`` loads ``.pt2`` files,
``operators`` finds convolutions, ``gradcheck`` differentiates.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from conv_cli import check as _check
from conv_cli import main as _main
from conv_cli.check import Options, Progress, Report, set_threads
from conv_cli.errors import CliError
from conv_cli.model import Model

from .adapter import RelaxAdapter

__all__ = ["CliError", "Options", "check", "main", "set_threads"]

main = partial(_main.main, RelaxAdapter())


def check(
    model: Path | Model, options: Options | None = None, progress: Progress | None = None
) -> Report:
    """:func:`conv_cli.check.check` in Relax: compile, run and compare one model."""
    return _check.check(model, RelaxAdapter(), options, progress)
