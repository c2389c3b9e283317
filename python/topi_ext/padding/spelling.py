# SPDX-License-Identifier: Apache-2.0
"""Names by which frameworks state the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..spec.geometry import fail


@dataclass(frozen=True)
class Spelling:
    """The names by which one framework states a call."""

    functions: tuple[str, str]
    """Names of the convolution and of its transpose; ``{rank}`` stands for 1, 2 or 3."""
    kernel: str
    strides: tuple[str, str]
    dilation: str
    border: tuple[tuple[str, ...], tuple[str, ...]]
    """Arguments that state padding, in a convolution and in its transpose."""
    states_kernel: bool = False
    """True if a call names the size of its kernel; otherwise the weights do."""


SPELLINGS: Mapping[str, Spelling] = {
    "torch": Spelling(
        ("torch.nn.functional.conv{rank}d", "torch.nn.functional.conv_transpose{rank}d"),
        "kernel_size",
        ("stride", "stride"),
        "dilation",
        (("padding",), ("padding", "output_padding", "output_size")),
    ),
    "tensorflow": Spelling(
        ("tf.nn.conv{rank}d", "tf.nn.conv{rank}d_transpose"),
        "kernel_size",
        ("strides", "strides"),
        "dilations",
        (("padding",), ("padding", "output_shape")),
    ),
    "keras": Spelling(
        ("keras.layers.Conv{rank}D", "keras.layers.Conv{rank}DTranspose"),
        "kernel_size",
        ("strides", "strides"),
        "dilation_rate",
        (("padding",), ("padding", "output_padding")),
        states_kernel=True,
    ),
    "onnx": Spelling(
        ("onnx.Conv", "onnx.ConvTranspose"),
        "kernel_shape",
        ("strides", "strides"),
        "dilations",
        (("auto_pad", "pads"), ("auto_pad", "pads", "output_padding", "output_shape")),
        states_kernel=True,
    ),
    "jax": Spelling(
        ("jax.lax.conv_general_dilated", "jax.lax.conv_transpose"),
        "kernel_size",
        ("window_strides", "strides"),
        "rhs_dilation",
        (
            ("padding", "lhs_dilation"),
            ("padding", "transpose_kernel", "use_consistent_padding"),
        ),
    ),
}
"""The frameworks, by name, and how each of them says what."""


def spelling_of(framework: str, op: str) -> tuple[Spelling, bool]:
    if framework not in SPELLINGS:
        raise fail("translate", f"framework={framework!r} must be one of {', '.join(SPELLINGS)}")
    if op not in ("conv", "conv_transpose"):
        raise fail("translate", f"op={op!r} must be conv or conv_transpose")
    return SPELLINGS[framework], op == "conv_transpose"
