# SPDX-License-Identifier: Apache-2.0
"""The border of a convolution or transposed convolution: two numbers per axis, and one rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..spec.geometry import conv_size, fail

Pairs = tuple[tuple[int, int], ...]
"""Per axis, a number of rows before and one behind."""

RULES = ("explicit", "valid", "same_upper", "same_lower")
"""Rules that split a :class:`Border` between both ends of an axis."""


def reach(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Return the rows from the first tap of a kernel to its last: ``dilation*(kernel - 1) + 1``."""
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))


@dataclass(frozen=True)
class Window:
    """The properties that a border depends on: kernel, stride and dilation per axis, and the
    kind.
    """

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
        """Return all rows that a tap of the transpose reaches: ``(size - 1)*stride + reach``."""
        return tuple((n - 1) * s + r for n, s, r in zip(size, self.stride, self.reach))

    def output_size(
        self, size: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the rows of the result of `size` rows, by the formulas at the top of this
        module.
        """
        if self.transposed:
            return tuple(f - b - a for f, b, a in zip(self.full_size(size), before, after))
        window = (self.kernel, self.stride, self.dilation, before, after)
        return tuple(map(conv_size, size, *window))


@dataclass(frozen=True)
class Border:
    """The border of a convolution or transposed convolution, as a framework states it.

    Parameters
    ----------
    rule : str
        One of :data:`RULES`.
    before, after : tuple of int
        Where the rule is explicit.
    output_padding : tuple of int
        For a transposed convolution: additional rows of the result.
    output_size : tuple of int
        For a transposed convolution: the requested rows, if given.
    cut : tuple of int
        If no size is known, by how much the result is shorter than the full one.
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
    """Return the padding after and the output_padding of a transposed convolution of a wanted size.

    The rule is the same for every framework: ``after = full - before - wanted``.  If that is
    negative, rows are missing: fewer than stride or dilation are output_padding as in PyTorch, more
    remain negative padding.

    Parameters
    ----------
    window : Window
        Window of a transposed convolution.
    size, wanted : sequence of int
        Rows of the operand and of the result.
    before : sequence of int
        Rows of the full result to crop at the front; negative numbers add zeros.

    Returns
    -------
    after, output_padding : tuple of int
    """
    cut = (f - w for f, w in zip(window.full_size(size), wanted))
    return fitted(window, tuple((b, c - b) for b, c in zip(before, cut)))


def fitted(window: Window, ends: Pairs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    limits = map(max, window.stride, window.dilation)
    extra = tuple(-a if 0 < -a < limit else 0 for (_, a), limit in zip(ends, limits))
    return tuple(a + e for (_, a), e in zip(ends, extra)), extra


def same_from_valid(window: Window) -> Pairs:
    """Return how much TensorFlow's SAME crops from VALID, per axis, in a transposed convolution.

    ``conv_transpose(SAME, size*stride)`` is ``conv_transpose(VALID)`` without its first
    ``max(reach - stride, 0) // 2`` rows and without the rest of ``reach - stride`` at the end.  If
    the kernel is shorter than the stride the second number is negative: VALID has to compute
    ``size*stride`` rows, the last of which no tap reaches.
    """
    return Border("same_upper").ends(window)


@dataclass(frozen=True)
class Call:
    """A convolution or transposed convolution of any framework.

    `flipped` means that the kernel is reversed compared with a convolution or its transpose,
    as in JAX's transposed convolutions without ``transpose_kernel``.
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
            after, stated["output_padding"] = fitted(window, self.ends)
            stated["padding"] = before + after
        return stated
