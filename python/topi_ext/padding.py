# SPDX-License-Identifier: Apache-2.0
"""How frameworks speak of padding, and from one into the other.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from .geometry import MAX_RANK, Ints, conv_size, fail, integers, is_several

Pairs = tuple[tuple[int, int], ...]
"""Per axis, a number of rows before and one behind."""

RULES = ("explicit", "valid", "same_upper", "same_lower")
"""How a :class:`Border` is split between both ends of an axis."""


@dataclass(frozen=True)
class Spelling:
    """The names by which one framework states a call."""

    functions: tuple[str, str]
    """Of the convolution and of its transpose; ``{rank}`` stands for 1, 2 or 3."""
    kernel: str
    strides: tuple[str, str]
    dilation: str
    border: tuple[tuple[str, ...], tuple[str, ...]]
    """What speaks of padding, in a convolution and in its transpose."""
    states_kernel: bool = False
    """Whether a call names the size of its kernel, which weights say otherwise."""


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


# ---------------------------------------------------------------------------- the border


def reach(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Rows from the first tap of a kernel to its last: ``dilation*(kernel - 1) + 1``."""
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))


@dataclass(frozen=True)
class Window:
    """What a border is a border of: kernel, stride and dilation per axis, and which face."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    op: str = "padding"
    """Name of the operator, for errors."""

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """:func:`reach` of the kernel."""
        return reach(self.kernel, self.dilation)

    def full_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """All rows that a tap of the transpose reaches: ``(size - 1)*stride + reach``."""
        return tuple((n - 1) * s + r for n, s, r in zip(size, self.stride, self.reach))

    def output_size(
        self, size: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> tuple[int, ...]:
        """Rows of the result of `size` rows, by the formulas at the top of this module."""
        if self.transposed:
            return tuple(f - b - a for f, b, a in zip(self.full_size(size), before, after))
        window = (self.kernel, self.stride, self.dilation, before, after)
        return tuple(map(conv_size, size, *window))


@dataclass(frozen=True)
class Border:
    """The border of a convolution or transposed convolution, as a framework spells it.

    Parameters
    ----------
    rule : str
        One of :data:`RULES`.
    before, after : tuple of int
        Where the rule is explicit.
    output_padding : tuple of int
        Of a transposed convolution: rows that are returned beyond the rest.
    output_size : tuple of int
        Of a transposed convolution: the rows that are wanted, if they are given.
    cut : tuple of int
        The same where no size is known: by how much the result is shorter than the full one.
        Under SAME and without either it is ``reach - stride``, and the result ``size*stride``.
    """

    rule: str = "explicit"
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    output_size: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()

    def ends(self, window: Window, size: Sequence[int] | None = None) -> Pairs:
        """Per axis, the padding before and after: negative numbers crop, or, behind a transposed
        convolution, are rows that no tap reaches.

        Raises
        ------
        ValueError
            One line, of a rule that does not exist or needs a `size` that is not given.
        """
        if self.rule not in RULES:
            raise fail(window.op, f"padding={self.rule!r} must be one of {', '.join(RULES)}")
        if window.transposed:
            return self._transposed_ends(window, size)
        zeros = (0,) * window.rank
        if self.rule == "explicit":
            return tuple(zip(self.before or zeros, self.after or zeros))
        if self.rule == "valid":
            return tuple(zip(zeros, zeros))
        if size is None and any(s > 1 for s in window.stride):
            raise fail(
                window.op, f"size=None must be given: SAME depends on it for stride={window.stride}"
            )
        sizes = zeros if size is None else size
        totals = (
            max((-(-n // s) - 1) * s + r - n, 0)
            for n, s, r in zip(sizes, window.stride, window.reach)
        )
        return tuple(map(self._split, totals))

    def _transposed_ends(self, window: Window, size: Sequence[int] | None) -> Pairs:
        zeros = (0,) * window.rank
        extra = self.output_padding or zeros
        cut = self.cut
        if self.output_size:
            if size is None:
                raise fail(
                    window.op, f"size=None must be given: the output size {self.output_size} is"
                )
            cut = tuple(f - o for f, o in zip(window.full_size(size), self.output_size))
        if self.rule in ("explicit", "valid"):
            sides = (self.before, self.after) if self.rule == "explicit" else ((), ())
            before, after = (side or zeros for side in sides)
            shown = cut or tuple(b + a - o for b, a, o in zip(before, after, extra))
            return tuple((b, c - b) for b, c in zip(before, shown))
        if not cut:
            cut = tuple(r - s for r, s in zip(window.reach, window.stride))
        firsts = (self._split(max(c + e, 0))[0] for c, e in zip(cut, extra))
        return tuple((b, c - b) for b, c in zip(firsts, cut))

    def _split(self, total: int) -> tuple[int, int]:
        half = total // 2 if self.rule == "same_upper" else total - total // 2
        return half, total - half


def fit(
    window: Window, size: Sequence[int], wanted: Sequence[int], before: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding after and the output_padding of a transposed convolution of a wanted size.

    One rule for every framework: ``after = full - before - wanted``.  Where that is negative, rows
    are missing: fewer than stride or dilation are output_padding of PyTorch's kind, more stay
    negative padding.

    Parameters
    ----------
    window : Window
        Of a transposed convolution.
    size, wanted : sequence of int
        Rows of the operand and of the result.
    before : sequence of int
        Rows of the full result to cut off in front; negative ones put zeros there.

    Returns
    -------
    after, output_padding : tuple of int
    """
    cut = (f - w for f, w in zip(window.full_size(size), wanted))
    return _fitted(window, tuple((b, c - b) for b, c in zip(before, cut)))


def _fitted(window: Window, ends: Pairs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    limits = map(max, window.stride, window.dilation)
    extra = tuple(-a if 0 < -a < limit else 0 for (_, a), limit in zip(ends, limits))
    return tuple(a + e for (_, a), e in zip(ends, extra)), extra


def same_from_valid(window: Window) -> Pairs:
    """What TensorFlow's SAME cuts off VALID, per axis, of a transposed convolution.

    ``conv_transpose(SAME, size*stride)`` is ``conv_transpose(VALID)`` without its first
    ``max(reach - stride, 0) // 2`` rows and without the rest of ``reach - stride`` behind.  Where
    the kernel is shorter than the stride the second number is negative: VALID has to be asked for
    ``size*stride`` rows, the last of which no tap reaches.
    """
    return Border("same_upper").ends(window)


# ---------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class Call:
    """A convolution or transposed convolution, whichever framework spelled it.

    `flipped` says that the kernel is read from its other end than that of a convolution, or of the
    transpose of one: JAX's transposed convolutions without ``transpose_kernel`` are so.
    """

    window: Window
    ends: Pairs
    size: tuple[int, ...] | None = None
    flipped: bool = False

    @property
    def output_size(self) -> tuple[int, ...] | None:
        """Rows of the result, where those of the operand are known."""
        if self.size is None:
            return None
        before, after = zip(*self.ends)
        return self.window.output_size(self.size, before, after)

    @property
    def attributes(self) -> dict[str, tuple[int, ...]]:
        """`strides`, `padding`, `dilation` and, transposed, `output_padding`, as the operators of
        Relax and Relay take them: all values before, then all after."""
        window = self.window
        before, after = tuple(b for b, _ in self.ends), tuple(a for _, a in self.ends)
        stated = dict(strides=window.stride, dilation=window.dilation, padding=before + after)
        if window.transposed:
            after, stated["output_padding"] = _fitted(window, self.ends)
            stated["padding"] = before + after
        return stated


def read(framework: str, op: str, *, size: Ints | None = None, **arguments: Any) -> Call:
    """What a call means.

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
    spelling, transposed = _spelling(framework, op)
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
    call = _READERS[framework](window, values, sizes)
    found = call.output_size
    if found is not None and min(found) < 1:
        raise fail(name, f"output size={found} must be at least 1 on every axis")
    return call


def _spelling(framework: str, op: str) -> tuple[Spelling, bool]:
    if framework not in SPELLINGS:
        raise fail("translate", f"framework={framework!r} must be one of {', '.join(SPELLINGS)}")
    if op not in ("conv", "conv_transpose"):
        raise fail("translate", f"op={op!r} must be conv or conv_transpose")
    return SPELLINGS[framework], op == "conv_transpose"


def _per_axis(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    values = integers(op, name, value, (1, rank))
    return values * rank if len(values) == 1 else values


def _steps(
    op: str, name: str, values: dict[str, Any], rank: int, may_be_whole: bool = False
) -> tuple[int, ...]:
    """Strides or dilations, taken out of `values`: at least 1, and 1 where nothing is said.

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

Sizes = Optional[tuple[int, ...]]
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
    """The output_padding that ``output_size`` asks for: less than the stride, in PyTorch."""
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
    """By the specification; where it leaves SAME of a short kernel open, as onnxruntime has it."""
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
        pairs = _around(window, pairs)
    return Call(window, pairs, size, flipped)


def _around(window: Window, pairs: Pairs) -> Pairs:
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
    return Call(turned, _around(turned, pairs), size, flipped=True)


_READERS: Mapping[str, Reader] = {
    "torch": _read_torch,
    "tensorflow": _read_tensorflow,
    "keras": _read_keras,
    "onnx": _read_onnx,
    "jax": _read_jax,
}


# ---------------------------------------------------------------------------- translation


@dataclass(frozen=True)
class Translation:
    """What to call, and what to do before and after it.

    Parameters
    ----------
    function : str
        The function, layer or operator to call.
    arguments : dict
        Its arguments that speak of strides, dilations and padding, by its own names.  TensorFlow's
        ``output_shape`` is the spatial part: put the batch in front of it and channels behind.
    pad : pairs of int
        Zeros to put around the operand, per axis and before the call; negative ones crop it.
    crop : pairs of int
        Rows to cut off the result, per axis; negative ones are zeros to put there, before the bias.
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
        """Whether the call is all: nothing to pad, to crop or to flip."""
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
    """How to say in one framework what was said in another.

    Parameters
    ----------
    source, target : {"torch", "tensorflow", "keras", "onnx", "jax"}
    op : {"conv", "conv_transpose"}
        As the source has it.
    size : int or one int per axis, optional
        Spatial size of the operand.  TensorFlow's transposed convolutions want it, since their
        ``output_shape`` follows from it; elsewhere only what depends on it asks for it.
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
    transposed = call.window.transposed
    spelling, _ = _spelling(target, "conv_transpose" if transposed else "conv")
    name = spelling.functions[transposed].format(rank=call.window.rank)
    window = call.window
    common: dict[str, Any] = {
        "kernel_size": window.kernel,
        spelling.strides[transposed]: window.stride,
        spelling.dilation: window.dilation,
    }
    to = "conv_transpose" if transposed else "conv"
    spoken, missing = {}, call.ends
    candidates = _WRITERS[target](call)
    for candidate in candidates:
        meant = _meaning(target, to, call, common | candidate, candidate is candidates[-1])
        if meant is None:
            continue
        spoken, missing = candidate, _difference(call, meant)
        if not _any(missing):
            break
    if _any(missing) and not around:
        raise fail(name, _no_single_call(call, spoken, missing))
    if not spelling.states_kernel:
        del common["kernel_size"]
    elif spelling.kernel != "kernel_size":
        common[spelling.kernel] = common.pop("kernel_size")
    if target == "tensorflow" and not transposed:
        _spell_as_conv_nd(common, window)
    none: Pairs = ((0, 0),) * window.rank
    pad, crop = (none, missing) if transposed else (missing, none)
    flip = call.flipped and target != "jax"
    return Translation(name, common | spoken, pad, crop, flip, call.output_size)


def _spell_as_conv_nd(common: dict[str, Any], window: Window) -> None:
    """``tf.nn.conv1d`` says stride, and ``tf.nn.conv3d`` says it of all five axes."""
    if window.rank == 1:
        common["stride"] = common.pop("strides")
    elif window.rank == 3:
        for name in ("strides", "dilations"):
            common[name] = (1, *common[name], 1)


def _meaning(
    target: str, op: str, call: Call, arguments: dict[str, Any], is_last: bool
) -> Call | None:
    """What the target makes of these arguments; None of a candidate that it refuses."""
    # A convolution's operand may have to be padded first, to a size that follows from the call.
    try:
        return read(target, op, size=call.size, **arguments)
    except ValueError:
        if not is_last:
            return None
        if call.window.transposed:
            raise
    return read(target, op, **arguments)


def _any(pairs: Pairs) -> bool:
    return any(value for pair in pairs for value in pair)


def _difference(call: Call, meant: Call) -> Pairs:
    """Rows by which both borders differ; none where a convolution never reads them."""
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
        f"padding={call.ends} (before, after) can be said by no single call: "
        f"pass {said} and {verb} by {missing}"
    )


# ----------------------------------------------------- what may be passed, the fallback last

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
    pads = (*(max(0, b) for b, _ in ends), *(max(0, a) for _, a in ends))
    if not window.transposed:
        return [{"pads": pads}]
    # onnxruntime refuses an output_padding between stride and dilation, which ONNX allows.
    extra = tuple(min(max(0, -a), s - 1) for (_, a), s in zip(ends, window.stride))
    return [{"pads": pads, "output_padding": extra}]


def _write_jax(call: Call) -> list[dict[str, Any]]:
    if not call.window.transposed:
        return [{"padding": call.ends}]
    pairs = _around(call.window, call.ends)
    return [{"padding": pairs, "transpose_kernel": not call.flipped}]


_WRITERS: Mapping[str, Writer] = {
    "torch": _write_torch,
    "tensorflow": _write_tensorflow,
    "keras": _write_keras,
    "onnx": _write_onnx,
    "jax": _write_jax,
}
