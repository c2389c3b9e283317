# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: packs a constant weight when it compiles a model."""

from __future__ import annotations

from collections.abc import Mapping

import openvino
import torch
from torch import Tensor

from topi_ext.spec.conv import OPERANDS

from .baselines import Call
from .by_onnx import model
from .cases import Case

SETTINGS = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "INFERENCE_PRECISION_HINT": "f32",  # or a processor with AMX rounds operands to bfloat16
    "ENABLE_CPU_PINNING": False,  # pinned workers would share their cores with others'
}


def call(case: Case, kind: str, tensors: Mapping[str, Tensor], threads: int) -> Call:
    """One inference on an operand that the request shares."""
    core = openvino.Core()
    settings = {**SETTINGS, "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(core.read_model(model(case, kind, tensors["w"])), "CPU", settings)
    request = compiled.create_infer_request()
    request.set_input_tensor(
        openvino.Tensor(tensors[OPERANDS[kind][0]].numpy(), shared_memory=True)
    )
    return Call(
        run=lambda: request.infer(share_outputs=True),
        read=lambda _: torch.from_numpy(request.get_output_tensor().data.copy()),
    )
