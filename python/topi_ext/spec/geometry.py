# SPDX-License-Identifier: Apache-2.0
"""The geometry of one convolution, seen from the forward direction.

A convolution is the trilinear form ::

    sum over n, p, c, k, r of  x[n, c, stride*p - pad_before + dilation*r] * w[k, c, r] * y[n, k, p]

and fixing two of its three tensors gives one of its three kinds: ``conv`` (x, w -> y),
``conv_transpose`` (y, w -> x) and ``conv_weight_grad`` (x, y -> w).  One immutable
:class:`Geometry` serves all three; ``x``, ``w`` and ``y`` always name the roles in the *forward*
convolution, so the "input" of a transposed convolution is called ``y`` here.

This module uses the standard library only.  Sizes may be opaque symbolic expressions that support
``+ - * //``; rules that need a number are checked for the sizes that are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

from .axis_access import AxisAccess

Size = Any
"""An ``int``, or a symbolic expression of the compiler that builds the operator."""

Ints = int | Sequence[int]

_access = lru_cache(maxsize=4096)(AxisAccess)
"""Equal accesses are one, whose table is made once for all sizes."""

MAX_RANK = 3

MOST_STEPS = 1 << 20
"""Largest product of strides, and of dilations, over all axes: kernels hold as many elements."""

SHORT_STEP = 64
"""A stride up to which kernels are as they are for one that does something."""

MOST_ELEMENTS = 1 << 59
"""Elements of a tensor: their addresses, in bytes, fit into 64 bits."""


def fail(op: str, what: str) -> ValueError:
    """Make the one-line error of operator `op`: ``op: value rule``."""
    return ValueError(f"{op}: {what}")


def integer(op: str, name: str, value: Any) -> int:
    """Return the attribute `name`: an integer of Python, NumPy or a compiler, of at most 32 bits.

    Anything else is refused, as PyTorch does it, not rounded: booleans, 1.0 and "1" too.
    """
    return _integers(op, name, (value,), _plain(value), "an integer")[0]


def integers(op: str, name: str, value: Any, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the attribute `name`, one such integer or several; of these there must be one of
    `counts`.
    """
    if not is_several(value):
        return (integer(op, name, value),)
    values = tuple(value)
    shown = tuple(map(_plain, values))
    if len(values) not in counts:
        raise fail(op, f"{name}={shown} must have {any_of(counts)}")
    return _integers(op, name, values, shown, "integers")


def is_several(value: Any) -> bool:
    """Return whether an attribute is a list of values: a sequence, of whatever class, or an
    array.
    """
    has_items = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    no_list = isinstance(value, (str, bytes, Mapping)) or getattr(value, "ndim", 1) == 0
    return has_items and not no_list


def _integers(op: str, name: str, values: Sequence[Any], shown: Any, kind: str) -> tuple[int, ...]:
    found = []
    for value in values:
        plain = _plain(value)
        number: Any = None if isinstance(plain, bool) else plain
        try:
            found.append(index(number))
        except TypeError:
            raise fail(op, f"{name}={shown!r} must be {kind}") from None
    if any(not -(1 << 31) <= one < 1 << 31 for one in found):
        raise fail(op, f"{name}={shown} must fit into 32 bits")
    return tuple(found)


def _plain(value: Any) -> Any:
    """Return the number of a compiler's constant."""
    held = getattr(value, "value", value)
    if str(getattr(value, "dtype", "")) == "bool":
        return bool(held)
    return held if isinstance(held, (int, float)) else value


def any_of(counts: Sequence[int]) -> str:
    """``1 value``, ``1 or 2 values``, ``1, 2 or 4 values``."""
    *others, last = sorted(set(counts))
    listed = f"{', '.join(map(str, others))} or {last}" if others else str(last)
    return f"{listed} value{'' if not others and last == 1 else 's'}"


def conv_size(x: Size, kernel: Size, stride: int, dilation: int, before: int, after: int) -> Size:
    """Return the size of y along one axis."""
    return (x + before + after - dilation * (kernel - 1) - 1) // stride + 1


def conv_transpose_size(
    y: Size, kernel: Size, stride: int, dilation: int, before: int, after: int, extra: int = 0
) -> Size:
    """Return the size of x along one axis, `extra` longer than the shortest that gives `y`."""
    return (y - 1) * stride + dilation * (kernel - 1) + 1 - before - after + extra


@dataclass(frozen=True)
class Geometry:
    """Channels, kernel, stride, padding, dilation, groups and both sizes of one convolution.

    Shapes in the canonical layouts, for rank 1, 2 or 3 (the number of spatial axes):
    x is ``(n, c, *x_size)``, w is ``(k, c // groups, *kernel)``, y is ``(n, k, *y_size)``.
    The batch and the dtypes are not part of the geometry.

    The two sizes are tied by ``x = (y - 1)*stride + dilation*(kernel - 1) + 1 - pad_before
    - pad_after + output_padding`` per axis, so `output_padding` is not stored, but
    follows from the two sizes.

    Parameters
    ----------
    c, k : int
        Channels of x and of y.
    groups : int
        Divides both `c` and `k`.
    kernel, stride, dilation, pad_before, pad_after : tuple of int
        One value per spatial axis.  Padding may be negative (it then crops).
    x_size, y_size : tuple of int or symbolic
        Spatial sizes of x and y.
    """

    c: int
    k: int
    groups: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_before: tuple[int, ...]
    pad_after: tuple[int, ...]
    x_size: tuple[Size, ...]
    y_size: tuple[Size, ...]

    # ---------------------------------------------------------------- constructors

    @classmethod
    def of_conv(
        cls,
        op: str,
        x_shape: Sequence[Size],
        w_shape: Sequence[Size],
        *,
        stride: Ints = 1,
        padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Geometry:
        """Geometry of ``conv(x, w)``; the size of y follows from it.

        Parameters
        ----------
        op : str
            Name of the operator, for errors.
        x_shape, w_shape : sequence
            ``(n, c, *x_size)`` and ``(k, c // groups, *kernel)``.
        stride, dilation : int or one int per axis
        padding : int, one int per axis, or the values before every axis and then those after

        Raises
        ------
        ValueError
            One line that names the operator, the value and the rule.
        """
        rank = _rank(op, "data", x_shape, w_shape)
        k, kernel = w_shape[0], tuple(w_shape[2:])
        geometry = cls._checked(
            op, x_shape[1], k, groups, kernel, stride, padding, dilation, tuple(x_shape[2:]), rank
        )
        _channels(op, w_shape, 1, geometry.c, groups, "data channels")
        y_size = tuple(map(conv_size, geometry.x_size, *geometry.window))
        _positive(op, "output size", y_size)
        return replace(geometry, y_size=y_size)._bounded(op, x_shape[0])

    @classmethod
    def of_conv_transpose(
        cls,
        op: str,
        y_shape: Sequence[Size],
        w_shape: Sequence[Size],
        *,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Geometry:
        """Geometry of ``conv_transpose(y, w)``; the size of x follows from it.

        Parameters
        ----------
        op : str
            Name of the operator, for errors.
        y_shape, w_shape : sequence
            ``(n, k, *y_size)`` and ``(k, c // groups, *kernel)``: what PyTorch's
            ``conv_transpose`` calls input and weight.
        output_padding : int or one int per axis
            At least 0 and smaller than the stride or the dilation of its axis.

        Raises
        ------
        ValueError
            One line that names the operator, the value and the rule.
        """
        rank = _rank(op, "data", y_shape, w_shape)
        k, kernel = y_shape[1], tuple(w_shape[2:])
        c_per_group, groups = w_shape[1], integer(op, "groups", groups)
        _is_positive_int(op, "weight output channels", c_per_group)
        geometry = cls._checked(
            op,
            c_per_group * groups,
            k,
            groups,
            kernel,
            stride,
            padding,
            dilation,
            tuple(y_shape[2:]),
            rank,
        )
        if w_shape[0] != k:
            raise fail(op, f"weight input channels={w_shape[0]} must equal data channels={k}")
        extra = _per_axis(op, "output_padding", output_padding, rank)
        if any(
            o < 0 or o >= max(s, d) for o, s, d in zip(extra, geometry.stride, geometry.dilation)
        ):
            raise fail(
                op,
                f"output_padding={extra} must be at least 0 and smaller than "
                f"stride={geometry.stride} or dilation={geometry.dilation}",
            )
        x_size = tuple(map(conv_transpose_size, geometry.y_size, *geometry.window, extra))
        _positive(op, "output size", x_size)
        return replace(geometry, x_size=x_size)._bounded(op, y_shape[0])

    @classmethod
    def of_sizes(
        cls,
        op: str,
        x_shape: Sequence[Size],
        y_shape: Sequence[Size],
        kernel: Sequence[int],
        *,
        stride: Ints = 1,
        padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
        size_name: str = "size of x",
    ) -> Geometry:
        """Geometry of two known sizes, as ``conv_weight_grad(x, y)`` has them.

        Parameters
        ----------
        op : str
            Name of the operator, for errors.
        x_shape, y_shape : sequence
            ``(n, c, *x_size)`` and ``(n, k, *y_size)``.
        kernel : sequence of int
            Kernel size per axis.
        size_name : str
            Name of the size of x in errors.

        Raises
        ------
        ValueError
            One line that names the operator, the value and the rule.
        """
        rank = _rank(op, "data", x_shape, y_shape)
        if len(kernel) != rank:
            raise fail(op, f"kernel={tuple(kernel)} must have {rank} values, one per spatial axis")
        geometry = cls._checked(
            op,
            x_shape[1],
            y_shape[1],
            groups,
            tuple(kernel),
            stride,
            padding,
            dilation,
            tuple(x_shape[2:]),
            rank,
            size_name,
        )
        geometry = replace(geometry, y_size=tuple(y_shape[2:]))
        _positive(op, "size of y", geometry.y_size)
        for axis, extra in enumerate(geometry.output_padding):
            limit = max(geometry.stride[axis], geometry.dilation[axis])
            if isinstance(extra, int) and not 0 <= extra < limit:
                raise fail(
                    op,
                    f"sizes x={geometry.x_size} and y={geometry.y_size} do not belong to "
                    f"kernel={geometry.kernel} stride={geometry.stride} "
                    f"padding={geometry.padding} dilation={geometry.dilation}",
                )
        return geometry._bounded(op, x_shape[0])

    @classmethod
    def _checked(
        cls,
        op: str,
        c: Any,
        k: Any,
        groups: Any,
        kernel: tuple[Any, ...],
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        size: tuple[Size, ...],
        rank: int,
        size_name: str = "data size",
    ) -> Geometry:
        """Check what does not depend on the kind; both sizes are `size` until the caller knows."""
        groups = integer(op, "groups", groups)
        _is_positive_int(op, "groups", groups)
        _is_positive_int(op, "channels of x", c)
        _is_positive_int(op, "channels of y", k)
        if c % groups or k % groups:
            raise fail(op, f"groups={groups} must divide the channels {c} and {k}")
        for value in kernel:
            _is_positive_int(op, "kernel size", value)
        strides = _per_axis(op, "stride", stride, rank)
        dilations = _per_axis(op, "dilation", dilation, rank)
        for name, values in (("stride", strides), ("dilation", dilations)):
            if min(values) < 1:
                raise fail(op, f"{name}={values} must be at least 1")
        before, after = _both_sides(op, padding, rank)
        _positive(op, size_name, size)
        return cls(c, k, groups, kernel, strides, dilations, before, after, size, size)

    # ---------------------------------------------------------------- what follows from it

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def window(self) -> tuple[tuple[int, ...], ...]:
        """Kernel, stride, dilation and both paddings, as the size formulas take them."""
        return self.kernel, self.stride, self.dilation, self.pad_before, self.pad_after

    @property
    def padding(self) -> tuple[int, ...]:
        """The values before every axis, then those after, as attributes state them."""
        return self.pad_before + self.pad_after

    @property
    def c_per_group(self) -> int:
        """Channels of x in one group."""
        return self.c // self.groups

    @property
    def k_per_group(self) -> int:
        """Channels of y in one group."""
        return self.k // self.groups

    @property
    def output_padding(self) -> tuple[Size, ...]:
        """Return by how much x is longer than the shortest x that gives y; may be symbolic."""
        shortest = map(conv_transpose_size, self.y_size, *self.window)
        return tuple(x - size for x, size in zip(self.x_size, shortest))

    @property
    def taps(self) -> int:
        """Number of kernel elements of one channel pair."""
        product = 1
        for value in self.kernel:
            product *= value
        return product

    def x_shape(self, n: Size) -> tuple[Size, ...]:
        """Return the shape of x for batch `n`: ``(n, c, *x_size)``."""
        return (n, self.c, *self.x_size)

    def y_shape(self, n: Size) -> tuple[Size, ...]:
        """Return the shape of y for batch `n`: ``(n, k, *y_size)``."""
        return (n, self.k, *self.y_size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of w: ``(k, c // groups, *kernel)``."""
        return (self.k, self.c_per_group, *self.kernel)

    def fitted(self) -> Geometry:
        """Return the operator with `pad_after` changed so that `output_padding` is 0.

        Each size is then what the plain formula of the other kind says: conv(x) has exactly
        `y_size` and conv_transpose(y) has exactly `x_size`, without an output_padding attribute.
        Needs an `output_padding` of integers.
        """
        after = tuple(a - o for a, o in zip(self.pad_after, self.output_padding))
        return replace(self, pad_after=after)

    def _bounded(self, op: str, n: Size) -> Geometry:
        """Return the geometry; raise if distances or sizes exceed what a kernel can count."""
        stride, dilation = self._short_steps()
        for name, stated, values in (
            ("stride", self.stride, stride),
            ("dilation", self.dilation, dilation),
        ):
            if prod(values) > MOST_STEPS:
                raise fail(op, f"{name}={stated} must have a product of at most {MOST_STEPS}")
        for name, shape in (("x", self.x_shape(n)), ("y", self.y_shape(n))):
            if prod(size for size in shape if isinstance(size, int)) > MOST_ELEMENTS:
                raise fail(
                    op, f"{name} of shape {shape} must have at most {MOST_ELEMENTS} elements"
                )
        return self

    def _short_steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the strides and dilations; short ones where they do nothing: between taps of a
        single one, and between positions of a y that has one.
        """
        dilation = tuple(d if r > 1 else 1 for r, d in zip(self.kernel, self.dilation))
        reach = (d * (r - 1) + 1 for r, d in zip(self.kernel, dilation))
        stride = tuple(
            min(s, max(far, SHORT_STEP)) if isinstance(y, int) and y == 1 else s
            for s, far, y in zip(self.stride, reach, self.y_size)
        )
        return stride, dilation

    def as_rank3(self) -> Geometry:
        """Return the operator with leading unit axes up to three, and without strides and dilations
        that have no effect.
        """
        extra = MAX_RANK - self.rank
        ones, zeros = (1,) * extra, (0,) * extra
        stride, dilation = self._short_steps()
        return replace(
            self,
            kernel=ones + self.kernel,
            stride=ones + stride,
            dilation=ones + dilation,
            pad_before=zeros + self.pad_before,
            pad_after=zeros + self.pad_after,
            x_size=ones + self.x_size,
            y_size=ones + self.y_size,
        )

    # ---------------------------------------------------------------- phases

    def accesses(self, *, transposed: bool) -> tuple[AxisAccess, ...]:
        """Per axis, how ``conv`` reads x, or, transposed, how ``conv_transpose`` reads y.

        ``conv``: y[j] meets tap r at ``x[stride*j - pad_before + dilation*r]``.
        ``conv_transpose``: position ``stride*j + offset`` of x meets tap r only where
        ``(offset + pad_before - dilation*r) % stride == 0``, and then position
        ``j + (offset + pad_before - dilation*r) // stride`` of y.
        """
        axes = zip(self.kernel, self.stride, self.dilation, self.pad_before)
        return tuple(_access(transposed, *axis) for axis in axes)


# -------------------------------------------------------------------- checks


def _rank(op: str, name: str, first: Sequence[Size], second: Sequence[Size]) -> int:
    rank = len(first) - 2
    if not 1 <= rank <= MAX_RANK:
        raise fail(op, f"{name} has {len(first)} axes, must have 3, 4 or 5")
    if len(second) != len(first):
        raise fail(op, f"operands have {len(first)} and {len(second)} axes, must have equally many")
    return rank


def _is_positive_int(op: str, name: str, value: Any) -> None:
    if not isinstance(value, int):
        raise fail(op, f"{name}={value} must be a constant integer")
    if value < 1:
        raise fail(op, f"{name}={value} must be at least 1")


def _positive(op: str, name: str, sizes: Sequence[Size]) -> None:
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise fail(op, f"{name}={tuple(sizes)} must be at least 1 on every axis")


def _channels(op: str, w_shape: Sequence[Size], axis: int, c: int, groups: int, of: str) -> None:
    if w_shape[axis] != c // groups:
        raise fail(op, f"weight input channels={w_shape[axis]} must equal {of}/groups={c}/{groups}")


def _per_axis(op: str, name: str, value: Ints, rank: int) -> tuple[int, ...]:
    values = integers(op, name, value, (1, rank))
    return values * rank if len(values) == 1 else values


def _both_sides(op: str, padding: Ints, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    values = integers(op, "padding", padding, (1, rank, 2 * rank))
    values *= 2 * rank // len(values)
    return values[:rank], values[rank:]
