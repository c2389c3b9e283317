# SPDX-License-Identifier: Apache-2.0
"""Padding conventions of frameworks, and translation between them.

Along one axis, with ``reach = dilation*(kernel - 1) + 1``, a convolution of `size` rows has ::

    (size + before + after - reach) // stride + 1

rows.  A transposed convolution of `size` rows has ``(size - 1)*stride + reach`` rows that a tap
reaches, its *full* result; the border is what is cut off it, and what a call returns is ::

    full - before - after

rows, from row `before` of the full result on.  `after` is negative where rows behind the last tap
are returned too: output_padding, a larger output_shape, SAME with a kernel shorter than the stride.
They are zero (plus bias).  So every spelling is two numbers per axis, and :func:`translate`
compares those of two frameworks.

===========  =================================  ==================================================
framework    convolution                        transposed convolution
===========  =================================  ==================================================
PyTorch      before = after = padding; "same"   before = padding, after = padding - output_padding
TensorFlow   SAME, VALID, 2-D also explicit     the same, of the output_shape that is given
Keras        same, valid, 1-D also causal       same, valid; output_padding sets the size
ONNX         pads, or auto_pad                  pads and output_padding, or auto_pad, output_shape
JAX          (low, high) or a string            (low, high) around the dilated operand: reach - 1
                                                less before, reach - 1 less after; or a string
===========  =================================  ==================================================

SAME_UPPER (TensorFlow, Keras, JAX) puts the odd row of a border behind, SAME_LOWER (ONNX, JAX) in
front.  Sources: the frameworks' documentation and, where it is silent, what tensorflow 2.21.0,
keras 3.15.1, jax 0.10.2, onnxruntime 1.32.0 and torch 2.13.0 compute (tests/data/padding.json).
"""

from __future__ import annotations

from .border import RULES, Border, Call, Pairs, Window, fit, reach, same_from_valid
from .readers import read
from .spelling import SPELLINGS, Spelling
from .translate import Translation, translate

__all__ = [
    "RULES",
    "SPELLINGS",
    "Border",
    "Call",
    "Pairs",
    "Spelling",
    "Translation",
    "Window",
    "fit",
    "reach",
    "read",
    "same_from_valid",
    "translate",
]
