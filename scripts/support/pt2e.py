# SPDX-License-Identifier: Apache-2.0
"""Quantize a module to int8 by torchao's PT2E flow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torchao.quantization.pt2e import PerChannelMinMaxObserver, quantize_pt2e
from torchao.quantization.pt2e.quantizer import (
    ComposableQuantizer,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
)
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

ANNOTATION = "quantization_annotation"
TRANSPOSED = {
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
    torch.ops.aten.conv_transpose3d.input,
}


class TransposedConvQuantizer(Quantizer):  # type: ignore[misc]
    """Quantizes transposed convolutions, which ``X86InductorQuantizer`` leaves in float32: data as
    that does, weights by output channel.
    """

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """State how the operands of each are quantized."""
        config = x86.get_default_x86_inductor_quantization_config()
        weight = QuantizationSpec(
            dtype=torch.int8,
            observer_or_fake_quant_ctr=PerChannelMinMaxObserver.with_args(eps=2**-12),
            quant_min=-128,
            quant_max=127,
            qscheme=torch.per_channel_symmetric,
            ch_axis=1,
        )
        for node in model.graph.nodes:
            if node.target in TRANSPOSED:
                inputs = {node.args[0]: config.input_activation, node.args[1]: weight}
                node.meta[ANNOTATION] = QuantizationAnnotation(inputs, _annotated=True)
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Accept every model."""


def quantized(module: nn.Module, inputs: Any) -> Any:
    """Return the module that PT2E quantizes, calibrated by its inputs."""
    _use_functions(module)
    by_default = x86.X86InductorQuantizer()
    by_default.set_global(x86.get_default_x86_inductor_quantization_config())
    quantizer = ComposableQuantizer([by_default, TransposedConvQuantizer()])
    with torch.no_grad():
        prepared = quantize_pt2e.prepare_pt2e(
            torch.export.export(module, inputs).module(), quantizer
        )
        prepared(*inputs)
        return quantize_pt2e.convert_pt2e(prepared)


def _use_functions(module: nn.Module) -> None:
    """Replace modules of relu, which the quantizer refuses if they are called twice."""
    for parent in module.modules():
        if not isinstance(parent, nn.Sequential):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.ReLU):
                    delattr(parent, name)
                    setattr(parent, name, F.relu)
