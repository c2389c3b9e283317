# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL``: stock TVM beside ours beside the model's own framework.

``adapter`` is what Relax adds to :mod:`conv_cli`; ``torch_model`` loads ``.pt2`` files,
``operators`` finds convolutions, ``gradcheck`` differentiates.
"""

from __future__ import annotations

from functools import partial

from conv_cli.check import check as _check
from conv_cli.check import set_threads
from conv_cli.errors import CliError
from conv_cli.main import main as _main
from conv_cli.model import Options

from .adapter import ADAPTER

__all__ = ["CliError", "Options", "check", "main", "set_threads"]

main = partial(_main, ADAPTER.usage)
check = partial(_check, ADAPTER)
"""Compile, run and compare one model: see :func:`conv_cli.check.check`."""
