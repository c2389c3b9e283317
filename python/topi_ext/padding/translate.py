# SPDX-License-Identifier: Apache-2.0
"""Translate a call of one framework to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..spec.geometry import Ints, fail
from .border import Call, Pairs, Window
from .readers import read
from .spelling import spelling_of
from .writers import WRITERS

Spoken = dict[str, Any]


@dataclass(frozen=True)
class Translation:
    """The translated call, and the pad or crop around it.

    Parameters
    ----------
    function : str
        The function, layer or operator to call.
    arguments : dict
        Its arguments for strides, dilations and padding, by its own names.  TensorFlow's
        ``output_shape`` is the spatial part: put the batch before it and the channels after it.
    pad : pairs of int
        Zeros to add around the operand, per axis and before the call; negative numbers crop it.
    crop : pairs of int
        Rows to crop from the result, per axis; negative numbers add zeros, before the bias.
    flip_kernel : bool
        Whether the kernel has to be reversed along every spatial axis.
    output_size : tuple of int, optional
        Rows of the final result, if the size of the operand was given.
    """

    function: str
    arguments: dict[str, Any]
    pad: Pairs
    crop: Pairs
    flip_kernel: bool = False
    output_size: tuple[int, ...] | None = None

    @property
    def is_one_call(self) -> bool:
        """Return whether the call is sufficient: nothing to pad, to crop or to flip."""
        return not self.flip_kernel and not _any(self.pad) and not _any(self.crop)


def translate(
    source: str,
    target: str,
    op: str,
    *,
    size: Ints | None = None,
    around: bool = True,
    **arguments: Any,
) -> Translation:
    """Translate a call of one framework to another.

    Parameters
    ----------
    source, target : {"torch", "tensorflow", "keras", "onnx", "jax"}
    op : {"conv", "conv_transpose"}
        As the source has it.
    size : int or one int per axis, optional
        Spatial size of the operand.  TensorFlow's transposed convolutions need it for their
        ``output_shape``; other calls need it only if their border depends on it.
    around : bool
        Whether padding and cropping around the call are fine.  Without it, what no single call can
        say is an error.
    **arguments
        The call, by the source's own names: see :func:`read`.

    Raises
    ------
    ValueError
        One line: operator, value, rule.

    Examples
    --------
    A layer of a vocoder, from PyTorch to Keras:

    >>> found = translate("torch", "keras", "conv_transpose", kernel_size=16, stride=8, padding=4)
    >>> found.function, found.arguments["padding"], found.crop
    ('keras.layers.Conv1DTranspose', 'same', ((0, 0),))
    """
    call = read(source, op, size=size, **arguments)
    window, transposed = call.window, call.window.transposed
    to = "conv_transpose" if transposed else "conv"
    spelling, _ = spelling_of(target, to)
    name = spelling.functions[transposed].format(rank=window.rank)
    steps: dict[str, Any] = {
        spelling.strides[transposed]: window.stride,
        spelling.dilation: window.dilation,
    }
    spoken, missing = _chosen(call, target, to, {spelling.kernel: window.kernel, **steps})
    if _any(missing) and not around:
        raise fail(name, _no_single_call(call, spoken, missing))
    if target == "tensorflow" and not transposed:
        _spell_as_conv_nd(steps, window)
    stated = {spelling.kernel: window.kernel} if spelling.states_kernel else {}
    none: Pairs = ((0, 0),) * window.rank
    pad, crop = (none, missing) if transposed else (missing, none)
    flip = call.flipped and target != "jax"
    return Translation(name, stated | steps | spoken, pad, crop, flip, call.output_size)


def _chosen(call: Call, target: str, op: str, stated: dict[str, Any]) -> tuple[Spoken, Pairs]:
    """Return the argument for the border, and the remaining rows to pad or crop."""
    candidates = WRITERS[target](call)
    for candidate in candidates[:-1]:
        try:
            meant = read(target, op, size=call.size, **stated, **candidate)
        except ValueError:
            continue  # the target's rules do not allow this one
        if not _any(_difference(call, meant)):
            return candidate, ((0, 0),) * call.window.rank
    # The operand of a convolution may yet grow: by what is missing.
    size = call.size if call.window.transposed else None
    last = read(target, op, size=size, **stated, **candidates[-1])
    return candidates[-1], _difference(call, last)


def _spell_as_conv_nd(common: dict[str, Any], window: Window) -> None:
    """``tf.nn.conv1d`` says stride, and ``tf.nn.conv3d`` says it of all five axes."""
    if window.rank == 1:
        common["stride"] = common.pop("strides")
    elif window.rank == 3:
        for name in ("strides", "dilations"):
            common[name] = (1, *common[name], 1)


def _any(pairs: Pairs) -> bool:
    return any(value for pair in pairs for value in pair)


def _difference(call: Call, meant: Call) -> Pairs:
    """Return the rows by which both borders differ; none where a convolution never reads them."""
    found = tuple((b - p, a - q) for (b, a), (p, q) in zip(call.ends, meant.ends))
    starts_alike = not any(before for before, _ in found)
    ends_alike = call.size is not None and call.output_size == meant.output_size
    if not call.window.transposed and starts_alike and ends_alike:
        return ((0, 0),) * call.window.rank
    return found


def _no_single_call(call: Call, spoken: dict[str, Any], missing: Pairs) -> str:
    verb = "crop the result" if call.window.transposed else "pad the operand"
    said = ", ".join(f"{key}={value!r}" for key, value in spoken.items())
    return (
        f"padding={call.ends} (before, after) cannot be expressed by a single call: "
        f"pass {said} and {verb} by {missing}"
    )
