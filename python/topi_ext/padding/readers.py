# SPDX-License-Identifier: Apache-2.0
"""Read the padding of a call of each framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..spec.geometry import MAX_RANK, Ints, fail, integers, is_several
from .border import Border, Call, Pairs, Window
from .spelling import spelling_of


def read(framework: str, op: str, *, size: Ints | None = None, **arguments: Any) -> Call:
    """Read the padding of a call.

    Parameters
    ----------
    framework : {"torch", "tensorflow", "keras", "onnx", "jax"}
    op : {"conv", "conv_transpose"}
        In JAX these are ``conv_general_dilated`` (with an ``lhs_dilation`` a transposed convolution
        too) and ``lax.conv_transpose``.
    size : int or one int per axis, optional
        Spatial size of the operand.  Only some borders depend on it.
    **arguments
        The arguments by the framework's own names (:data:`SPELLINGS`), and ``kernel_size``, which
        also says the number of axes.  TensorFlow's ``output_shape`` is the whole shape, channels
        last, or the spatial part of it.

    Raises
    ------
    ValueError
        One line: operator, value, rule.
    """
    spelling, transposed = spelling_of(framework, op)
    values = dict(arguments)
    if "stride" in values and framework == "tensorflow":
        values["strides"] = values.pop("stride")  # so tf.nn.conv1d has it
    kernel = values.pop("kernel_size", values.pop(spelling.kernel, None))
    lists: list[Any] = [one for one in (kernel, size) if one is not None and is_several(one)]
    rank = len(lists[0]) if lists else 1
    name = spelling.functions[transposed].format(rank=rank)
    if not 1 <= rank <= MAX_RANK:
        raise fail(name, f"kernel_size={tuple(kernel)} must have 1, 2 or 3 values")
    window = Window(
        _per_axis(name, spelling.kernel, kernel, rank),
        _steps(name, spelling.strides[transposed], values, rank, framework == "tensorflow"),
        _steps(name, spelling.dilation, values, rank, framework == "tensorflow"),
        transposed,
        name,
    )
    unknown = sorted(set(values) - set(spelling.border[transposed]))
    if unknown:
        known = (
            *("kernel_size", spelling.strides[transposed], spelling.dilation),
            *spelling.border[transposed],
        )
        raise fail(name, f"argument {unknown[0]!r} must be one of {', '.join(known)}")
    if min(window.kernel) < 1:
        raise fail(name, f"{spelling.kernel}={window.kernel} must be at least 1")
    sizes = None if size is None else _per_axis(name, "size", size, rank)
    call = READERS[framework](window, values, sizes)
    found = call.output_size
    if found is not None and min(found) < 1:
        raise fail(name, f"output size={found} must be at least 1 on every axis")
    return call


def _per_axis(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    values = integers(op, name, value, (1, rank))
    return values * rank if len(values) == 1 else values


def _steps(
    op: str, name: str, values: dict[str, Any], rank: int, may_be_whole: bool = False
) -> tuple[int, ...]:
    """Return the strides or dilations, removed from `values`: at least 1, and 1 by default.

    Some TensorFlow functions want them of all axes, batch and channels included.
    """
    value = values.pop(name, None)
    if may_be_whole and is_several(value) and len(value) == rank + 2:
        value = value[1:-1]
    steps = _per_axis(op, name, 1 if value is None else value, rank)
    if min(steps) < 1:
        raise fail(op, f"{name}={steps} must be at least 1")
    return steps


def _pairs(op: str, name: str, value: Any, rank: int) -> Pairs:
    """Explicit paddings ``((before, after), ...)``."""
    if not is_several(value) or len(value) != rank or not all(map(is_several, value)):
        raise fail(op, f"{name}={value!r} must have a pair (before, after) per axis")
    pairs = [integers(op, name, pair, (2,)) for pair in value]
    return tuple((pair[0], pair[1]) for pair in pairs)


def _explicit(pairs: Pairs, **more: tuple[int, ...]) -> Border:
    return Border("explicit", tuple(b for b, _ in pairs), tuple(a for _, a in pairs), **more)


def _not_negative(op: str, name: str, values: Sequence[int]) -> None:
    if min(values) < 0:
        raise fail(op, f"{name}={tuple(values)} must be at least 0")


def _keyword(op: str, name: str, value: Any, known: Mapping[str, str]) -> str:
    if value not in known:
        raise fail(op, f"{name}={value!r} must be one of {', '.join(known)}")
    return known[value]


# ------------------------------------------------------------------- what each framework means

Sizes = tuple[int, ...] | None
Reader = Callable[[Window, dict[str, Any], Sizes], Call]


def _read_torch(window: Window, given: dict[str, Any], size: Sizes) -> Call:
    op, rank = window.op, window.rank
    padding = given.get("padding", 0)
    if isinstance(padding, str):
        if window.transposed:
            raise fail(op, f"padding={padding!r} must be integers")
        rule = _keyword(op, "padding", padding, {"same": "same_upper", "valid": "valid"})
        if rule == "same_upper" and max(window.stride) > 1:
            raise fail(op, f"padding='same' must have stride 1, not {window.stride}")
        return Call(window, Border(rule).ends(window, size), size)
    both = _per_axis(op, "padding", padding, rank)
    _not_negative(op, "padding", both)
    extra = _per_axis(op, "output_padding", given.get("output_padding") or 0, rank)
    if given.get("output_size") is not None:
        extra = _torch_extra(window, given["output_size"], both, size)
    _check_extra(op, extra, tuple(map(max, window.stride, window.dilation)), "stride or dilation")
    border = Border("explicit", both, both, extra)
    return Call(window, border.ends(window, size), size)


def _torch_extra(
    window: Window, output_size: Any, both: tuple[int, ...], size: Sizes
) -> tuple[int, ...]:
    """Return the output_padding for ``output_size``: less than the stride, in PyTorch."""
    op, rank = window.op, window.rank
    wanted = integers(op, "output_size", output_size, (rank, rank + 2))[-rank:]
    if size is None:
        raise fail(op, f"size=None must be given: output_size={wanted} is")
    least = window.output_size(size, both, both)
    if any(not 0 <= w - m < s for w, m, s in zip(wanted, least, window.stride)):
        most = tuple(m + s - 1 for m, s in zip(least, window.stride))
        raise fail(op, f"output_size={wanted} must be between {least} and {most}")
    return tuple(w - m for w, m in zip(wanted, least))


def _check_extra(op: str, extra: Sequence[int], limits: Sequence[int], names: str) -> None:
    if any(not 0 <= e < limit for e, limit in zip(extra, limits)):
        raise fail(op, f"output_padding={tuple(extra)} must be at least 0 and smaller than {names}")


_TENSORFLOW = {"SAME": "same_upper", "VALID": "valid"}


def _read_tensorflow(window: Window, given: dict[str, Any], size: Sizes) -> Call:
    op, rank = window.op, window.rank
    padding = given.get("padding", "SAME" if window.transposed else None)
    wanted: tuple[int, ...] = ()
    if window.transposed:
        if given.get("output_shape") is None:
            raise fail(op, "output_shape=None must be given")
        shape = integers(op, "output_shape", given["output_shape"], (rank, rank + 2))
        wanted = shape if len(shape) == rank else shape[1:-1]
    if isinstance(padding, str) or rank != 2:
        if not isinstance(padding, str):
            raise fail(op, f"padding={padding!r} must be SAME or VALID: only 2-D takes numbers")
        border = Border(_keyword(op, "padding", padding, _TENSORFLOW), output_size=wanted)
    else:
        pairs = _pairs(op, "padding", padding, 4)
        _not_negative(op, "padding", [v for pair in pairs for v in pair])
        border = _explicit(pairs[1:3], output_size=wanted)
    call = Call(window, border.ends(window, size), size)
    if window.transposed and size is not None:
        _check_tensorflow_size(call, border, wanted)
    return call


def _check_tensorflow_size(call: Call, border: Border, wanted: tuple[int, ...]) -> None:
    """The convolution of the output must have the size of the operand."""
    window, size = call.window, call.size
    forward = Window(window.kernel, window.stride, window.dilation, False, window.op)
    given = Border(border.rule, border.before, border.after).ends(forward, wanted)
    found = forward.output_size(wanted, *zip(*given))
    if found != size:
        raise fail(
            window.op,
            f"output_shape={wanted} must be one whose convolution has size {size}, not {found}",
        )


def _read_keras(window: Window, given: dict[str, Any], size: Sizes) -> Call:
    op, rank = window.op, window.rank
    if max(window.stride) > 1 and max(window.dilation) > 1:
        raise fail(
            op,
            f"strides={window.stride} and dilation_rate={window.dilation} must not both be above 1 "
            "in Keras: TensorFlow's own functions take both",
        )
    known = {"same": "same_upper", "valid": "valid"}
    causal = {"causal": "explicit"} if rank == 1 and not window.transposed else {}
    rule = _keyword(op, "padding", given.get("padding", "valid"), known | causal)
    if rule == "explicit":
        border = Border(rule, tuple(r - 1 for r in window.reach))
    elif not window.transposed:
        border = Border(rule)
    elif given.get("output_padding") is not None:
        extra = _per_axis(op, "output_padding", given["output_padding"], rank)
        _check_extra(op, extra, window.stride, f"strides={window.stride}")
        if rule == "same_upper" and any(e == r % 2 == 0 for e, r in zip(extra, window.reach)):
            raise fail(
                op, f"output_padding={extra} must be at least 1 where an even kernel is 'same'"
            )
        base = (r - r % 2 if rule == "same_upper" else 0 for r in window.reach)
        border = Border(rule, cut=tuple(b - e for b, e in zip(base, extra)))
    elif rule == "same_upper":
        border = Border(rule)
    else:
        border = Border(rule, cut=tuple(min(r - s, 0) for r, s in zip(window.reach, window.stride)))
    return Call(window, border.ends(window, size), size)


_ONNX = {"NOTSET": "explicit", "VALID": "valid", "SAME_UPPER": "same_upper"}
_ONNX["SAME_LOWER"] = "same_lower"


def _read_onnx(window: Window, given: dict[str, Any], size: Sizes) -> Call:
    """Read a call of ONNX by its specification, and as onnxruntime for SAME of a short kernel."""
    op, rank = window.op, window.rank
    auto = given.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    rule = _keyword(op, "auto_pad", auto, _ONNX)
    pads = integers(op, "pads", given.get("pads") or (0,) * 2 * rank, (2 * rank,))
    _not_negative(op, "pads", pads)
    sides = (pads[:rank], pads[rank:]) if rule == "explicit" else ((), ())
    if not window.transposed:
        return Call(window, Border(rule, *sides).ends(window, size), size)
    extra = _per_axis(op, "output_padding", given.get("output_padding") or 0, rank)
    _check_extra(op, extra, tuple(map(max, window.stride, window.dilation)), "stride or dilation")
    shape = given.get("output_shape") or ()
    wanted = integers(op, "output_shape", shape, (rank, rank + 2))[-rank:] if shape else ()
    if wanted and rule in ("explicit", "valid"):
        # The total is split as SAME_LOWER is, and pads are ignored.
        rule = "same_lower"
    cut: tuple[int, ...] = ()
    if rule.startswith("same") and not wanted:
        cut = tuple(max(r + e - s, 0) - e for r, e, s in zip(window.reach, extra, window.stride))
    border = Border(rule, *sides, extra, wanted, cut)
    return Call(window, border.ends(window, size), size)


_JAX = {"SAME": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}


def _read_jax(window: Window, given: dict[str, Any], size: Sizes) -> Call:
    if not window.transposed:
        return _read_conv_general_dilated(window, given, size)
    op, padding = window.op, given.get("padding")
    flipped = not given.get("transpose_kernel", False)
    if isinstance(padding, str):
        known = {name: _JAX[name] for name in ("SAME", "VALID")}
        rule = _keyword(op, "padding", padding, known)
        gaps = (r - s for r, s in zip(window.reach, window.stride))
        cut = tuple(min(gap, 0) for gap in gaps) if rule == "valid" else ()
        return Call(window, Border(rule, cut=cut).ends(window, size), size, flipped)
    pairs = _pairs(op, "padding", padding, window.rank)
    if not given.get("use_consistent_padding", False):
        pairs = around_dilated(window, pairs)
    return Call(window, pairs, size, flipped)


def around_dilated(window: Window, pairs: Pairs) -> Pairs:
    """Borders of the full result from paddings of the dilated operand, and back."""
    return tuple((r - 1 - low, r - 1 - high) for r, (low, high) in zip(window.reach, pairs))


def _read_conv_general_dilated(window: Window, given: dict[str, Any], size: Sizes) -> Call:
    op, rank, padding = window.op, window.rank, given.get("padding")
    dilated = _steps(op, "lhs_dilation", dict(given), rank)
    if max(dilated) > 1 and max(window.stride) > 1:
        raise fail(
            op,
            f"window_strides={window.stride} and lhs_dilation={dilated} must not both be above 1: "
            "that is neither a convolution nor the transpose of one",
        )
    if isinstance(padding, str):
        rule = _keyword(op, "padding", padding, _JAX)
        if max(dilated) > 1:
            raise fail(op, f"padding={padding!r} must be pairs where lhs_dilation={dilated}")
        return Call(window, Border(rule).ends(window, size), size)
    pairs = _pairs(op, "padding", padding, rank)
    if max(dilated) == 1:
        return Call(window, pairs, size)
    turned = Window(window.kernel, dilated, window.dilation, True, op)
    return Call(turned, around_dilated(turned, pairs), size, flipped=True)


READERS: Mapping[str, Reader] = {
    "torch": _read_torch,
    "tensorflow": _read_tensorflow,
    "keras": _read_keras,
    "onnx": _read_onnx,
    "jax": _read_jax,
}
