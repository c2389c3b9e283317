# SPDX-License-Identifier: Apache-2.0
"""Read and check the textual request for a kernel: an operator, shapes, attributes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan

from ..spec.dtypes import FLOATS, accumulator
from ..spec.geometry import Geometry, fail
from ..spec.layout import SPATIAL, Layout, Layouts, permuted
from ..spec.post_ops import BINARY, UNARY, Epilogue, PostOp

OPERATORS = tuple(
    f"conv{rank}d{suffix}"
    for suffix in ("", "_transpose", "_weight_grad", "_transpose_weight_grad")
    for rank in SPATIAL
)
"""Names as TVM has them, and those of the gradients of both in their weights."""

SHORT = {"bias": "add:C", "scale": "multiply:C"}
"""Steps of an epilogue that have names of their own."""

MOST_OPERANDS = 12
"""Maximum of an epilogue."""

LARGEST_FLOAT32 = 2.0**128 - 2.0**104

_RESERVED = {
    "alignas", "alignof", "and", "asm", "auto", "bitand", "bitor", "bool", "break", "case",
    "catch", "char", "class", "compl", "concept", "const", "constexpr", "continue", "decltype",
    "default", "delete", "do", "double", "else", "enum", "explicit", "export", "extern", "false",
    "float", "for", "friend", "goto", "if", "inline", "int", "long", "main", "mutable",
    "namespace", "new", "noexcept", "not", "nullptr", "operator", "or", "private", "protected",
    "public", "register", "requires", "restrict", "return", "short", "signed", "sizeof", "static",
    "struct", "switch", "template", "this", "throw", "true", "try", "typedef", "typeid",
    "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "while", "xor",
}  # fmt: skip

# What kernels and their runtime call: a function of that name would be called instead.
_CALLED = {
    "abort", "aligned_alloc", "calloc", "exit", "free", "malloc", "memcmp", "memcpy", "memmove",
    "memset", "printf", "realloc", "sched_getaffinity", "snprintf", "sysconf", "vsnprintf",
}  # fmt: skip
_CALLED |= {f + end for f in ("exp", "floor", "round", "tanh", "trunc") for end in ("", "f")}
_CALLED_PREFIXES = ("pthread_", "omp_", "GOMP_")


@dataclass(frozen=True)
class Words:
    """The request as it is written.

    Attributes
    ----------
    name : str
        Name of the C function.
    op : str
        One of :data:`OPERATORS`.
    input, weight : str
        Shapes such as ``"1x128x16x16"``, in the order of the layouts.  Of a weight gradient, the
        input of the convolution, and the weight whose gradient it is.
    stride, padding, dilation, output_padding : str
        One integer, or one for each spatial axis, with commas; `padding` also both sides, all
        values before first.
    groups : int
    data_layout, kernel_layout, out_layout : str
        Permutations, in the operator's own letters; empty: NCHW, OIHW (transposed: IOHW), and as
        the data, or their like.
    dtype, out_dtype : str
        Dtypes of the operands and of the result; empty for the same.
    epilogue : sequence of str
        Steps such as ``"bias"``, ``"multiply:0.5"``, ``"add:NCHW"``, ``"leaky_relu:0.2"``.
    packed : bool
        Whether weights come packed.
    """

    name: str
    op: str
    input: str
    weight: str
    stride: str = "1"
    padding: str = "0"
    dilation: str = "1"
    output_padding: str = "0"
    groups: int = 1
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    dtype: str = "float32"
    out_dtype: str = ""
    epilogue: Sequence[str] = ()
    packed: bool = False


@dataclass(frozen=True)
class Argument:
    """One argument of the function in C.

    Attributes
    ----------
    name : str
    shape : tuple of int
        As stored.
    dtype : str
    note : str
        For the header: layout, or what it does.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    note: str


@dataclass(frozen=True)
class Request:
    """The request for a kernel.

    Attributes
    ----------
    words : Words
    kind : str
    geometry : Geometry
    layouts : Layouts
    n : int
    dtypes : tuple of str
        Dtypes of the kernel's first operand, its second, and the result.
    epilogue : Epilogue
    arguments : tuple of Argument
        In the order of the function in C, the result last.
    swapped : bool
        Whether the kernel takes the first two in the other order.
    """

    words: Words
    kind: str
    geometry: Geometry
    layouts: Layouts
    n: int
    dtypes: tuple[str, str, str]
    epilogue: Epilogue
    arguments: tuple[Argument, ...]
    swapped: bool


def read(words: Words) -> Request:
    """Check what is written.

    Raises
    ------
    ValueError
        One line: operator, value, rule.
    """
    op = words.op
    if op not in OPERATORS:
        raise ValueError(f"operator {op!r} must be one of {', '.join(OPERATORS)}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", words.name) or words.name in _RESERVED:
        raise fail(op, f"name {words.name!r} must be an identifier of C and C++")
    if words.name.startswith("conv_"):
        raise fail(op, f"name {words.name!r} must not begin with conv_, as names of the runtime do")
    if words.name in _CALLED or words.name.startswith(_CALLED_PREFIXES):
        raise fail(op, f"name {words.name!r} must not be that of a function that kernels call")
    is_gradient, transposed = op.endswith("_weight_grad"), "_transpose" in op
    rank = int(op[len("conv")])
    kind = "conv_weight_grad" if is_gradient else "conv_transpose" if transposed else "conv"
    data, kernel, out = _layouts(words, rank, transposed)
    shape = _canonical(op, "input", words.input, data)
    weight = _canonical(op, "weight", words.weight, kernel)
    if shape[0] < 1:
        raise fail(op, f"batch={shape[0]} must be at least 1")
    geometry = _geometry(words, transposed, shape, weight)
    roles = "yx" if transposed else "xy"
    orders = {roles[0]: data.order, roles[1]: out.order, "w": kernel.order}
    if transposed:
        orders["w"] = kernel.exchanged.order
    layouts = Layouts(**orders)
    dtypes = _dtypes(words)
    sums = accumulator(op, *dtypes)
    epilogue = tuple(_step(op, text, out, sums) for text in words.epilogue)
    _check_options(words, is_gradient, dtypes[2], epilogue)
    arguments = _arguments(words, geometry, shape[0], (data, kernel, out), dtypes, epilogue)
    return Request(
        words, kind, geometry, layouts, shape[0], dtypes, epilogue, arguments,
        swapped=is_gradient and transposed,
    )  # fmt: skip


def _layouts(words: Words, rank: int, transposed: bool) -> tuple[Layout, Layout, Layout]:
    """Return the layouts of data, weight and result, in the operator's own letters."""
    spatial = SPATIAL[rank]
    letters, channels = "NC" + spatial, ("IO" if transposed else "OI") + spatial
    data = words.data_layout or letters
    stated = (
        ("data_layout", data, letters),
        ("kernel_layout", words.kernel_layout or channels, channels),
        ("out_layout", words.out_layout or data, letters),
    )
    found = [Layout.parse(words.op, name, text, canonical) for name, text, canonical in stated]
    for (name, text, canonical), layout in zip(stated, found):
        if not layout.is_plain:
            raise fail(words.op, f"{name}={text!r} must be a permutation of {canonical!r}")
    return found[0], found[1], found[2]


def _canonical(op: str, name: str, text: str, layout: Layout) -> tuple[int, ...]:
    """Return a shape as it is written, in the canonical order of its axes."""
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", text):
        raise fail(op, f"{name} {text!r} must be a shape such as 1x64x32x32")
    sizes = tuple(map(int, text.split("x")))
    if len(sizes) != len(layout.letters):
        raise fail(op, f"{name} {text} must have {len(layout.letters)} axes, {layout.text}")
    return tuple(layout.unblocked_shape(sizes))


def _ints(op: str, name: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text):
        raise fail(op, f"{name} {text!r} must be integers such as 2 or 2,1")
    return tuple(map(int, text.split(",")))


def _geometry(
    words: Words, transposed: bool, shape: tuple[int, ...], weight: tuple[int, ...]
) -> Geometry:
    """Return the geometry of the convolution or transposed convolution; its gradient has the
    same.
    """
    op = words.op
    window = {
        name: _ints(op, name, getattr(words, name)) for name in ("stride", "padding", "dilation")
    }
    extra = _ints(op, "output_padding", words.output_padding)
    if transposed:
        return Geometry.of_conv_transpose(
            op, shape, weight, output_padding=extra, groups=words.groups, **window
        )
    if any(extra):
        raise fail(op, f"output_padding={extra} belongs to transposed convolutions")
    return Geometry.of_conv(op, shape, weight, groups=words.groups, **window)


def _dtypes(words: Words) -> tuple[str, str, str]:
    dtypes = (words.dtype, words.dtype, words.out_dtype or words.dtype)
    accumulator(words.op, *dtypes)
    return dtypes


def _step(op: str, text: str, out: Layout, sums: str) -> PostOp:
    """Return one step of an epilogue on sums of this dtype."""
    name, _, value = SHORT.get(text, text).partition(":")
    if name not in (*BINARY, *UNARY):
        known = ", ".join((*SHORT, *BINARY, *UNARY))
        raise fail(op, f"epilogue {text!r} must begin with one of {known}")
    takes = name in BINARY or name == "leaky_relu"
    if takes != bool(value):
        rule = "must have a value, as in" if takes else "takes no value:"
        shown = f"{name}:0.5" if takes else name
        raise fail(op, f"epilogue {text!r} {rule} {shown}")
    if name in BINARY and value.isalpha() and value.isupper():
        if sorted(set(value) & set(out.letters)) != sorted(value):
            raise fail(op, f"epilogue {text!r} must name axes of {out.text}, each once")
        order = "".join(letter for letter in out.order if letter in value)
        return PostOp(name, order, order)
    try:
        number = float(value) if value else 0.0
    except ValueError:
        number = nan
    if not isfinite(number):
        raise fail(op, f"epilogue {text!r} must end with a finite number or with axes")
    if sums == "float32" and abs(number) > LARGEST_FLOAT32:
        raise fail(op, f"epilogue {text!r} must end with a number that float32 can hold")
    if name == "divide" and not number:
        raise fail(op, f"epilogue {text!r} must not divide by zero")
    return PostOp(name, value=number)


def _check_options(words: Words, is_gradient: bool, result: str, epilogue: Epilogue) -> None:
    if is_gradient and (epilogue or words.packed):
        what = "epilogue" if epilogue else "packed"
        raise fail(words.op, f"{what} belongs to convolutions and transposed ones")
    if epilogue and result not in FLOATS:
        raise fail(words.op, f"epilogue needs a result of floats, not of {result}")
    if sum(bool(step.order) for step in epilogue) > MOST_OPERANDS:
        raise fail(words.op, f"epilogue must have at most {MOST_OPERANDS} operands")


def _arguments(
    words: Words,
    geometry: Geometry,
    n: int,
    layouts: tuple[Layout, Layout, Layout],
    dtypes: tuple[str, str, str],
    epilogue: Epilogue,
) -> tuple[Argument, ...]:
    """Return the arguments of the C function."""
    data, kernel, out = layouts
    shapes = {"x": geometry.x_shape(n), "y": geometry.y_shape(n), "w": geometry.w_shape}
    first, last = ("y", "x") if "_transpose" in words.op else ("x", "y")

    def stored(name: str, role: str, layout: Layout, dtype: str, note: str) -> Argument:
        shape = permuted(layout.order, layout.letters, shapes[role])
        return Argument(name, shape, dtype, f"{layout.text}{note}")

    taken = stored("data", first, data, dtypes[0], "")
    if words.op.endswith("_weight_grad"):
        gradient = stored("grad", last, out, dtypes[1], ", the gradient of the output")
        result = stored("result", "w", kernel, dtypes[2], ", the gradient of the weight")
        return taken, gradient, result
    weight = stored("weight", "w", kernel, dtypes[1], "")
    result = stored("result", last, out, dtypes[2], "")
    sizes = dict(zip(out.order, result.shape))
    operands = [
        Argument(
            f"operand{i}",
            tuple(sizes[a] for a in step.order),
            dtypes[2],
            f"{step.order}: {step.op}",
        )
        for i, step in enumerate(step for step in epilogue if step.order)
    ]
    return (taken, weight, *operands, result)
