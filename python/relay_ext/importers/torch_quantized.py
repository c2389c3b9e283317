# SPDX-License-Identifier: Apache-2.0
"""Quantized transposed convolutions of PyTorch with groups.

TVM's converter takes the output channels of one group for those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from topi_ext.compat import relay

R = relay()

_PATH = "convert_map[quantized::conv_transpose2d]"

NEEDS = {
    _PATH: ("inputs", "_"),
    "_do_bias_and_requantize": (
        *("output", "bias", "input_scale", "weight_scale", "output_scale", "output_zero_point"),
        "with_relu",
    ),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return a converter of our own."""

    def convert(inputs: Sequence[Any], _: Any) -> Any:
        data, packed, *numbers = inputs
        scale, zero, data_scale, data_zero = map(R.const, numbers)
        weight, weight_scale, weight_zero, bias, stride, pad, dilation, groups, extra = (
            packed[at] for at in range(9)
        )
        _, outputs, *kernel = map(int, R.frontend.common.infer_shape(weight))
        total = R.qnn.op.conv2d_transpose(
            data,
            weight,
            data_zero,
            weight_zero,
            data_scale,
            weight_scale,
            strides=stride,
            padding=pad,
            dilation=dilation,
            groups=groups,
            channels=outputs * groups,
            kernel_size=kernel,
            kernel_layout="IOHW",
            output_padding=extra,
            out_dtype="int32",
        )
        return module._do_bias_and_requantize(
            total, bias, data_scale, weight_scale, scale, zero, False
        )

    return {_PATH: convert}
