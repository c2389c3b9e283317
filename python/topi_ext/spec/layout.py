# SPDX-License-Identifier: Apache-2.0
"""Layout strings of data and kernels: permutations, and blocks such as ``NCHW4c``.

A layout names the axes of one tensor in memory order.  A capital letter is an axis, a number with
a small letter is a block taken off the axis of that name: ``NCHW4c`` stores 4 neighbouring
channels innermost.  Kernels are written for permutations; blocks are undone before them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .geometry import fail

T = TypeVar("T")

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}

_TOKEN = re.compile(r"([A-Z])|([0-9]+)([a-z])")


def swap_kernel_letters(layout: str) -> str:
    """Return a kernel layout with input and output channels exchanged.

    The channels I of a transposed convolution are those of y, which are O of the forward one.
    """
    return layout.translate(str.maketrans("IOio", "OIoi"))


@dataclass(frozen=True)
class Layout:
    """The layout of one tensor.

    Attributes
    ----------
    text : str
        As the user wrote it, e.g. ``"OIHW4i8o"``.
    letters : str
        The canonical order of the axes, e.g. ``"OIHW"``.
    axes : tuple of (str, int)
        Stored axes in memory order: the letter, and the block size or 0 for the axis itself.
    """

    text: str
    letters: str
    axes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, op: str, name: str, text: str, letters: str) -> Layout:
        """Read `text`, which must name each of `letters` once, and blocks of them.

        Raises
        ------
        ValueError
            One line that names the operator, the layout and the rule.
        """
        axes: list[tuple[str, int]] = []
        end = 0
        for token in _TOKEN.finditer(text):
            if token.start() != end:
                break
            end = token.end()
            letter, factor, block = token.groups()
            axes.append((letter, 0) if letter else (block.upper(), int(factor)))
        primal = [letter for letter, factor in axes if not factor]
        blocks = [(letter, factor) for letter, factor in axes if letter not in primal or factor]
        known = sorted(primal) == sorted(letters) and end == len(text)
        if not known or any(name not in letters or size < 1 for name, size in blocks):
            raise fail(
                op, f"{name}={text!r} must be a permutation of {letters!r}, optionally with blocks"
            )
        return cls(text, letters, tuple(axes))

    @property
    def order(self) -> str:
        """The permutation of the canonical letters, blocks left out."""
        return "".join(letter for letter, factor in self.axes if not factor)

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """The blocks in memory order."""
        return tuple((letter, factor) for letter, factor in self.axes if factor)

    @property
    def is_plain(self) -> bool:
        """Return whether this is a permutation without blocks."""
        return not self.blocks

    def factor(self, letter: str) -> int:
        """Product of all blocks taken off the axis `letter`."""
        product = 1
        for name, factor in self.blocks:
            if name == letter:
                product *= factor
        return product

    def unblocked_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape in canonical order, blocks multiplied in, of a tensor stored as
        `shape`.
        """
        sizes = {}
        for (letter, factor), size in zip(self.axes, shape):
            if not factor:
                whole = self.factor(letter)
                sizes[letter] = size * whole if whole != 1 else size
        return tuple(sizes[letter] for letter in self.letters)

    @property
    def exchanged(self) -> Layout:
        """Return the tensor with the letters of input and output channels exchanged."""
        text, letters = swap_kernel_letters(self.text), swap_kernel_letters(self.letters)
        axes = tuple((swap_kernel_letters(letter), factor) for letter, factor in self.axes)
        return Layout(text, letters, axes)

    def stored_shape(
        self, op: str, shape: Sequence[Any], simplify: Callable[[Any], Any] = lambda size: size
    ) -> tuple[Any, ...]:
        """Return the shape in this layout of a tensor whose canonical shape is `shape`.

        The remainder of symbolic sizes is a number after simplification, or unknown.

        Raises
        ------
        ValueError
            When a block does not divide its axis, or perhaps not.
        """
        sizes = dict(zip(self.letters, shape))
        stored = []
        for letter, factor in self.axes:
            if factor:
                stored.append(factor)
                continue
            whole = self.factor(letter)
            if whole == 1:
                stored.append(sizes[letter])
                continue
            rest = simplify(sizes[letter] % whole)
            is_known = isinstance(rest, int)
            if not is_known or rest:
                raise fail(
                    op,
                    f"layout {self.text!r} needs axis {letter}={simplify(sizes[letter])} "
                    f"to be a multiple of {whole}{'' if is_known else ', which is not known'}",
                )
            stored.append(sizes[letter] // whole)
        return tuple(stored)


@dataclass(frozen=True)
class Layouts:
    """The permutations in which x, w and y are stored, in the roles of the forward convolution.

    x and y are permutations of N, C and the spatial letters; w of O (channels of y), I (channels
    of x in one group) and the spatial letters.
    """

    x: str
    w: str
    y: str

    @classmethod
    def canonical(cls, rank: int) -> Layouts:
        """NCHW and OIHW, or their like for `rank` 1 and 3."""
        spatial = SPATIAL[rank]
        return cls("NC" + spatial, "OI" + spatial, "NC" + spatial)


def permuted(order: str, canonical: str, values: Sequence[T]) -> tuple[T, ...]:
    """Return the values given per canonical axis, in the stored `order`."""
    return tuple(values[canonical.index(letter)] for letter in order)
