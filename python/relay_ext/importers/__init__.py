# SPDX-License-Identifier: Apache-2.0
"""TVM's importers, corrected where a model would mean something else than in its framework.

``torch`` holds the corrections of PyTorch's.  None imports a framework.
"""

from __future__ import annotations

from topi_ext.import_hooks import Importer, ImportHooks

from . import torch

__all__ = ["HOOKS"]

_FRONTEND = "tvm.relay.frontend"

HOOKS = ImportHooks(
    "relay_ext",
    {
        f"{_FRONTEND}.pytorch": Importer("PyTorch", torch.NEEDS, torch.corrections),
    },
)
