# SPDX-License-Identifier: Apache-2.0
"""Letters of the axes of tensors, through reshapes, transposes and broadcasts.

An axis of a tensor is a run of letters, the last fastest.  Letters are those of ``einsum``.  A
reshape merges the letters of neighbouring axes, or splits a letter into two in every tensor that
has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_letters
from typing import Any

from ..compat import same_size

Axes = tuple[str, ...]
"""Letters of each axis of a tensor; empty for an axis of one element, or a broadcast one."""


@dataclass(frozen=True)
class Letters:
    """The axes of several tensors.

    Attributes
    ----------
    sizes : mapping
        Size of each letter.
    tensors : tuple of Axes
    divided : mapping
        Letters that have been split, and the two letters in the place of each.
    """

    sizes: Mapping[str, Any]
    tensors: tuple[Axes, ...]
    divided: Mapping[str, str] = field(default_factory=dict)

    def with_axes(self, number: int, axes: Axes) -> Letters:
        """Return these letters with other axes of one tensor."""
        tensors = list(self.tensors)
        tensors[number] = axes
        return replace(self, tensors=tuple(tensors))

    def permuted(self, number: int, order: Sequence[int]) -> Letters:
        """Return the letters of the tensor before its transpose by `order`."""
        before = [""] * len(order)
        for letters, axis in zip(self.tensors[number], order):
            before[axis] = letters
        return self.with_axes(number, tuple(before))

    def broadcast(self, number: int, shape: Sequence[Any], kept: str) -> Letters | None:
        """Return the letters of the tensor before it was broadcast from `shape`.

        The result is None where it was broadcast along one of the letters `kept`.
        """
        axes = self.tensors[number]
        behind = axes[len(axes) - len(shape) :]
        before = []
        for letters, size in zip(behind, shape):
            is_whole = same_size(size, self.extent(letters))
            before.append(letters if is_whole else "")
        lost = set("".join(axes)) - set("".join(before))
        return None if lost & set(kept) else self.with_axes(number, tuple(before))

    def reshaped(self, number: int, shape: Sequence[Any]) -> Letters | None:
        """Return the letters with one tensor in another shape; None where no letters express it."""
        result, axes = self, []
        left = list("".join(self.tensors[number]))
        for end, size in enumerate(shape, 1):
            taken = result._take(left, size, shape[end:])
            if taken is None:
                return None
            result, letters = taken
            axes.append(letters)
        return result.with_axes(number, tuple(axes)) if not left else None

    def _take(
        self, left: list[str], size: Any, behind: Sequence[Any]
    ) -> tuple[Letters, str] | None:
        """Take the letters of an axis of this size from the front of `left`; axes `behind` it
        follow."""
        result, taken = self, ""
        if self._is_axis_of_one(left, size, behind):
            return self, left.pop(0)
        while not _is_one(size):
            if not left:
                return None
            first = result.sizes[left[0]]
            if same_size(first, size):
                return result, taken + left.pop(0)
            if not (isinstance(first, int) and isinstance(size, int)):
                return result._take_symbolic(left, size, behind) if not taken else None
            if size % first == 0:
                taken += left.pop(0)
                size //= first
            elif first % size == 0:
                divided = result._split(left.pop(0), size, first // size)
                if divided is None:
                    return None
                result, outer, inner = divided
                left.insert(0, inner)
                return result, taken + outer
            else:
                return None
        return result, taken

    def _is_axis_of_one(self, left: list[str], size: Any, behind: Sequence[Any]) -> bool:
        """Return whether an axis of one element is that of the next letter; of more such axes than
        letters, side by side, the last ones are."""
        axes = _leading_ones([size, *behind])
        return 0 < axes <= _leading_ones([self.sizes[a] for a in left])

    def _take_symbolic(
        self, left: list[str], size: Any, behind: Sequence[Any]
    ) -> tuple[Letters, str] | None:
        """Take letters that together have a symbolic size, or split one of which axes `behind` are
        the rest."""
        for count in range(1, len(left) + 1):
            run = "".join(left[:count])
            if same_size(self.extent(run), size):
                del left[:count]
                return self, run
        inner: Any = 1
        for other in behind:
            inner = inner * other
            if same_size(self.sizes[left[0]], size * inner):
                divided = self._split(left.pop(0), size, inner)
                if divided is None:
                    return None
                result, outer, rest = divided
                left.insert(0, rest)
                return result, outer
        return None

    def _split(self, letter: str, size: Any, rest: Any) -> tuple[Letters, str, str] | None:
        """Split a letter into two of these sizes, the slower first; None without free letters."""
        free = [a for a in ascii_letters if a not in self.sizes and a not in self.divided]
        if len(free) < 2:
            return None
        outer, inner = free[:2]
        sizes = {**self.sizes, outer: size, inner: rest}
        del sizes[letter]
        tensors = tuple(
            tuple(axis.replace(letter, outer + inner) for axis in axes) for axes in self.tensors
        )
        divided = {**self.divided, letter: outer + inner}
        return Letters(sizes, tensors, divided), outer, inner

    def current(self, letters: str) -> str:
        """Return the letters that stand in the place of these now."""
        while any(a in self.divided for a in letters):
            letters = "".join(self.divided.get(a, a) for a in letters)
        return letters

    def extent(self, letters: str) -> Any:
        """Return the number of elements of an axis of these letters."""
        size: Any = 1
        for letter in letters:
            size = size * self.sizes[letter]
        return size


def _leading_ones(sizes: Sequence[Any]) -> int:
    """Return how many of the first sizes are 1."""
    return next((number for number, size in enumerate(sizes) if not _is_one(size)), len(sizes))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
