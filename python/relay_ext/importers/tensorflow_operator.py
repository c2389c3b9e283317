# SPDX-License-Identifier: Apache-2.0
"""Relay's convolutions of weights that are stored as TensorFlow and Keras store them.

====================  ====================================  ==============
operator              weight                                kind
====================  ====================================  ==============
convolution           (\\*kernel, in / groups, out)          conv
its transpose         (\\*kernel, out / groups, in)          conv_transpose
depthwise             (\\*kernel, channels, multiplier)      depthwise
====================  ====================================  ==============
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.compat import relay
from topi_ext.padding import Call
from topi_ext.spec.layout import SPATIAL

R = relay()

_LETTERS = {"conv": "IO", "conv_transpose": "OI", "depthwise": "OI"}
"""Letters of the last two axes of a weight in Relay's operator; for a depthwise weight, in TVM."""


def is_channels_first(layout: str) -> bool:
    """Return whether a layout of data, such as ``"NCHW"``, has its channels before the spatial
    axes.
    """
    return layout[1] == "C"


def data_layout(rank: int, channels_first: bool) -> str:
    """Return the layout of data, e.g. ``"NCHW"``, ``"NWC"``."""
    return "NC" + SPATIAL[rank] if channels_first else f"N{SPATIAL[rank]}C"


def simplest(kind: str, shape: Sequence[int]) -> str:
    """Return the kind of a weight: a depthwise convolution of one channel is a convolution, and
    TVM, which tells them apart by groups, takes it as no other.
    """
    return "conv" if kind == "depthwise" and shape[-2] == 1 else kind


def weight_axes(kind: str, rank: int, channels_first: bool) -> tuple[int, ...]:
    """Return the axes of a stored weight in the order that the operator takes.

    Beside data with channels last, that is the stored order; else channels come first, and the
    order is that which TVM's own kernels for such data know.
    """
    if not channels_first:
        return tuple(range(rank + 2))
    pair = (rank, rank + 1) if kind == "depthwise" else (rank + 1, rank)
    return (*pair, *range(rank))


def convolution(
    call: Call,
    data: Any,
    weight: Any,
    shape: Sequence[int],
    kind: str = "conv",
    groups: int = 1,
    channels_first: bool = False,
) -> Any:
    """Return the operator of a call.

    Parameters
    ----------
    data : relay.Expr
        In :func:`data_layout`.
    weight : relay.Expr
        With the axes of :func:`weight_axes`.
    shape : sequence of int
        Stored shape of the weight.
    groups : int
        Groups of a convolution or transposed convolution.
    """
    rank, letters = call.window.rank, _LETTERS[kind]
    stored = SPATIAL[rank] + letters
    axes = weight_axes(kind, rank, channels_first)
    channels = shape[rank + letters.index("O")] * (groups if kind == "conv_transpose" else 1)
    if kind == "depthwise":
        channels, groups = shape[rank] * shape[rank + 1], shape[rank]
    return getattr(R.nn, f"conv{rank}d" + "_transpose" * call.window.transposed)(
        data,
        weight,
        channels=channels,
        kernel_size=call.window.kernel,
        groups=groups,
        data_layout=data_layout(rank, channels_first),
        kernel_layout="".join(stored[axis] for axis in axes),
        **call.attributes,
    )
