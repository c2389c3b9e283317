# SPDX-License-Identifier: Apache-2.0
"""Write a call with given padding for each framework.

The first candidate that means the same is taken, else the last, with rows to pad or crop around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..spec.geometry import fail
from .border import Call
from .readers import around_dilated

Writer = Callable[[Call], list[dict[str, Any]]]


def _write_torch(call: Call) -> list[dict[str, Any]]:
    window, ends = call.window, call.ends
    if not window.transposed:
        symmetric = {"padding": tuple(max(0, min(pair)) for pair in ends)}
        return [symmetric, {"padding": "same"}, symmetric]
    padding, extra = [], []
    for (before, after), *steps in zip(ends, window.stride, window.dilation):
        most = max(steps) - 1
        gap = before - after
        fits = before >= 0 and 0 <= gap <= most
        behind = gap if fits else min(max(-after, 0), most)
        padding.append(before if fits else max(0, min(before, after)))
        extra.append(behind)
    return [{"padding": tuple(padding), "output_padding": tuple(extra)}]


def _write_tensorflow(call: Call) -> list[dict[str, Any]]:
    window, ends = call.window, call.ends
    numbers = [(0, 0), *((max(0, b), max(0, a)) for b, a in ends), (0, 0)]
    # The transpose takes numbers only without dilation, on CPUs.
    takes_numbers = window.rank == 2 and (not window.transposed or max(window.dilation) == 1)
    explicit = [{"padding": [list(pair) for pair in numbers]}] if takes_numbers else []
    if not window.transposed:
        return [{"padding": "VALID"}, {"padding": "SAME"}, *explicit, {"padding": "VALID"}]
    size, wanted = call.size, call.output_size
    if size is None or wanted is None:
        raise fail(window.op, "size=None must be given: TensorFlow's output_shape follows from it")
    behind = (min(max(0, -a), s - 1) for (_, a), s in zip(ends, window.stride))
    full = tuple(f + e for f, e in zip(window.full_size(size), behind))
    valid = {"padding": "VALID", "output_shape": full}
    one_call: list[dict[str, Any]] = [{"padding": "SAME"}, *explicit]
    return [valid, *({**one, "output_shape": wanted} for one in one_call), valid]


def _write_keras(call: Call) -> list[dict[str, Any]]:
    window, ends = call.window, call.ends
    valid: dict[str, Any] = {"padding": "valid"}
    same: dict[str, Any] = {"padding": "same"}
    if not window.transposed:
        causal = [{"padding": "causal"}] if window.rank == 1 else []
        return [valid, same, *causal, valid]
    rows = tuple(min(max(0, -a), s - 1) for (_, a), s in zip(ends, window.stride))
    parity = tuple(r - r % 2 - b - a for r, (b, a) in zip(window.reach, ends))
    is_plain = not any(rows) and all(r >= s for r, s in zip(window.reach, window.stride))
    sized = {**valid, "output_padding": rows}
    odd = {**same, "output_padding": parity}
    return [valid, same, sized, odd, valid if is_plain else sized]


def _write_onnx(call: Call) -> list[dict[str, Any]]:
    window, ends = call.window, call.ends
    before, after = ([max(0, end) for end in side] for side in zip(*ends))
    if not window.transposed:
        return [{"pads": (*before, *after)}] * 2
    extra = []
    for axis, ((b, a), far, stride) in enumerate(zip(ends, window.reach, window.stride)):
        # onnxruntime rejects an output_padding between stride and dilation, which ONNX allows.
        extra.append(min(max(0, -a), stride - 1))
        # Where zeros follow on one side, the call itself may not lose all its rows on the other.
        if a + extra[axis] < 0:
            before[axis] = min(before[axis], far - 1)
        if b < 0:
            after[axis] = min(after[axis], far - 1)
    return [{"pads": (*before, *after), "output_padding": tuple(extra)}]


def _write_jax(call: Call) -> list[dict[str, Any]]:
    if not call.window.transposed:
        return [{"padding": call.ends}] * 2
    pairs = around_dilated(call.window, call.ends)
    return [{"padding": pairs, "transpose_kernel": not call.flipped}]


WRITERS: Mapping[str, Writer] = {
    "torch": _write_torch,
    "tensorflow": _write_tensorflow,
    "keras": _write_keras,
    "onnx": _write_onnx,
    "jax": _write_jax,
}
