# SPDX-License-Identifier: Apache-2.0
"""Corrections of TVM's importers, so that models compute the same as in their framework.

``keras``, ``onnx``, ``tensorflow``, ``tflite`` and ``torch`` hold the corrections of one
framework's importers each.  ``onnx_nodes`` adds the operators of ``com.microsoft``,
``torch_operators`` what is no convolution, ``torch_quantized`` what is quantized.
``keras_training`` reads how Keras's layers are called, ``keras_layouts`` corrects ``from_keras``.
``torch_script`` simplifies scripted modules before they are imported.  ``normalization``,
``resizing`` and ``tensorflow_operator`` are what several of them share.  None imports a framework.
"""

from __future__ import annotations

from topi_ext.adapters.import_hooks import Importer, ImportHooks

from . import (
    keras,
    keras_layouts,
    onnx,
    onnx_nodes,
    tensorflow,
    tflite,
    torch,
    torch_quantized,
)

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
            {**onnx.NEEDS, **onnx_nodes.NEEDS},
            lambda module: {**onnx.corrections(module), **onnx_nodes.corrections(module)},
        ),
        f"{_FRONTEND}.tflite": Importer("TFLite", tflite.NEEDS, tflite.corrections),
        f"{_FRONTEND}.qnn_torch": Importer(
            "quantized PyTorch", torch_quantized.NEEDS, torch_quantized.corrections
        ),
        f"{_FRONTEND}.pytorch": Importer("PyTorch", torch.NEEDS, torch.corrections),
    },
)
