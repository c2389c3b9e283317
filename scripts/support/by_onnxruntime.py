# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: packs a constant weight when its session is made."""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime
import torch
from torch import Tensor

from topi_ext.spec.conv import OPERANDS, RESULT

from .baselines import Call
from .by_onnx import model
from .cases import Case
from .engines import UnavailableError


def call(case: Case, kind: str, tensors: Mapping[str, Tensor], threads: int) -> Call:
    """One run of a session, of operands and a result that are bound to it once."""
    g = case.geometry
    fits = all(extra < stride for extra, stride in zip(g.output_padding, g.stride))
    if kind == "conv_transpose" and not fits:
        raise UnavailableError("onnxruntime takes output padding below the stride only")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its threads spin while it works, and no longer: others have their turn then.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        model(case, kind, tensors["w"]), options, providers=["CPUExecutionProvider"]
    )
    result = torch.zeros(case.shape(RESULT[kind]))
    binding = session.io_binding()
    of_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
    binding.bind_ortvalue_input("data", of_numpy(tensors[OPERANDS[kind][0]].numpy()))
    written = of_numpy(result.numpy())
    binding.bind_ortvalue_output("result", written)
    return Call(
        run=lambda: session.run_with_iobinding(binding),
        read=lambda _: torch.from_numpy(written.numpy()).clone(),
    )
