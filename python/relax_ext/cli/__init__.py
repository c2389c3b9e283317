# SPDX-License-Identifier: Apache-2.0
"""Command line of relax_ext: one model, stock TVM beside ours beside its own framework.

Rooms: ``args`` reads the command line, ``torch_model`` and ``onnx_model`` load a
:class:`~relax_ext.cli.model.Model`, ``operators`` finds its convolutions, ``measure`` compiles and
times, ``gradcheck`` differentiates, ``check`` puts these together, ``report`` prints the result.
"""

from relax_ext.cli.check import Options, check, set_threads
from relax_ext.cli.entry import main
from relax_ext.cli.errors import CliError

__all__ = ["CliError", "Options", "check", "main", "set_threads"]
