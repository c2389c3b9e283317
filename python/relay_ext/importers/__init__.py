# SPDX-License-Identifier: Apache-2.0
"""TVM's importers, corrected where a model would mean something else than in its framework.

``keras``, ``onnx``, ``tensorflow``, ``tflite`` and ``torch`` hold the corrections of one
framework's importers each; ``keras_layouts`` those of ``from_keras``, ``tensorflow_operator`` what
two of them share; ``torch_script`` simplifies scripted modules before.  None imports a framework.
"""

from __future__ import annotations

from topi_ext.import_hooks import Importer, ImportHooks

from . import keras, keras_layouts, onnx, onnx_contrib, tensorflow, tflite, torch

__all__ = ["HOOKS"]

_FRONTEND = "tvm.relay.frontend"

HOOKS = ImportHooks(
    "relay_ext",
    {
        # What the package itself holds: from_pytorch, from_keras.
        _FRONTEND: Importer(
            "PyTorch and Keras",
            {**torch.PACKAGE_NEEDS, **keras_layouts.NEEDS},
            lambda module: {
                **torch.package_corrections(module),
                **keras_layouts.corrections(module),
            },
        ),
        f"{_FRONTEND}.keras": Importer("Keras", keras.NEEDS, keras.corrections),
        f"{_FRONTEND}.tensorflow_ops": Importer(
            "TensorFlow", tensorflow.NEEDS, tensorflow.corrections
        ),
        f"{_FRONTEND}.onnx": Importer(
            "ONNX",
            {**onnx.NEEDS, **onnx_contrib.NEEDS},
            lambda module: {**onnx.corrections(module), **onnx_contrib.corrections(module)},
        ),
        f"{_FRONTEND}.tflite": Importer("TFLite", tflite.NEEDS, tflite.corrections),
        f"{_FRONTEND}.pytorch": Importer("PyTorch", torch.NEEDS, torch.corrections),
    },
)
