# SPDX-License-Identifier: Apache-2.0
"""TVM's importers, corrected where a model would mean something else than in its framework.

``keras``, ``tensorflow`` and ``torch`` hold the corrections of one framework's importers each;
``keras_layouts`` those of ``from_keras``, ``tensorflow_operator`` what two of them share.
None imports a framework.
"""

from __future__ import annotations

from topi_ext.import_hooks import Importer, ImportHooks

from . import keras, keras_layouts, tensorflow, torch

__all__ = ["HOOKS"]

_FRONTEND = "tvm.relay.frontend"

HOOKS = ImportHooks(
    "relay_ext",
    {
        _FRONTEND: Importer("Keras", keras_layouts.NEEDS, keras_layouts.corrections),
        f"{_FRONTEND}.keras": Importer("Keras", keras.NEEDS, keras.corrections),
        f"{_FRONTEND}.tensorflow_ops": Importer(
            "TensorFlow", tensorflow.NEEDS, tensorflow.corrections
        ),
        f"{_FRONTEND}.pytorch": Importer("PyTorch", torch.NEEDS, torch.corrections),
    },
)
