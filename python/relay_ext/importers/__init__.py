# SPDX-License-Identifier: Apache-2.0
"""TVM's importers, corrected where a model would mean something else than in its framework.

``onnx``, ``tflite`` and ``torch`` hold the corrections of one framework's importers each;
``torch_script`` simplifies scripted modules before.  None imports a framework.
"""

from __future__ import annotations

from topi_ext.import_hooks import Importer, ImportHooks

from . import onnx, tflite, torch

__all__ = ["HOOKS"]

_FRONTEND = "tvm.relay.frontend"

HOOKS = ImportHooks(
    "relay_ext",
    {
        f"{_FRONTEND}.onnx": Importer("ONNX", onnx.NEEDS, onnx.corrections),
        f"{_FRONTEND}.tflite": Importer("TFLite", tflite.NEEDS, tflite.corrections),
        f"{_FRONTEND}.pytorch": Importer("PyTorch", torch.NEEDS, torch.corrections),
        _FRONTEND: Importer("PyTorch", torch.PACKAGE_NEEDS, torch.package_corrections),
    },
)
