# SPDX-License-Identifier: Apache-2.0
"""ONNX files as ONNX Runtime and OpenVINO load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def session(file: Path, threads: int) -> Any:
    """Return a session of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def compiled(file: Path, threads: int) -> Any:
    """Return a compiled model of OpenVINO."""
    import openvino

    from .by_openvino import SETTINGS

    core = openvino.Core()
    settings = {**SETTINGS, "INFERENCE_NUM_THREADS": threads}
    return core.compile_model(core.read_model(file), "CPU", settings)
