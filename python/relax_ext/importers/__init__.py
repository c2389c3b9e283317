# SPDX-License-Identifier: Apache-2.0
"""Corrections of TVM's importers, so that models compute the same as in their framework.

``onnx``, ``onnx_quantized``, ``onnx_resize``, ``torch``, ``tflite`` and ``nn_modules`` hold the
corrections.  None imports a framework: a correction is made when TVM's importer is imported, which
its user does.
"""

from __future__ import annotations

from topi_ext.adapters.import_hooks import Importer, ImportHooks

from . import nn_modules, onnx, onnx_quantized, onnx_resize, tflite, torch

__all__ = ["HOOKS"]

_FRONTEND = "tvm.relax.frontend"

HOOKS = ImportHooks(
    "relax_ext",
    {
        f"{_FRONTEND}.onnx.onnx_frontend": Importer(
            "ONNX",
            {**onnx.NEEDS, **onnx_quantized.NEEDS, **onnx_resize.NEEDS},
            lambda module: {
                **onnx.corrections(module),
                **onnx_quantized.corrections(module),
                **onnx_resize.corrections(module),
            },
        ),
        f"{_FRONTEND}.torch.exported_program_translator": Importer(
            "torch.export", torch.EXPORT_NEEDS, torch.export_corrections
        ),
        f"{_FRONTEND}.torch.fx_translator": Importer(
            "torch.fx", torch.FX_NEEDS, torch.fx_corrections
        ),
        f"{_FRONTEND}.nn.modules": Importer(
            "relax.frontend.nn", nn_modules.NEEDS, nn_modules.corrections
        ),
        f"{_FRONTEND}.tflite.tflite_frontend": Importer("TFLite", tflite.NEEDS, tflite.corrections),
    },
)
