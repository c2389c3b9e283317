# SPDX-License-Identifier: Apache-2.0
"""Letters of the axes of a matrix product, through reshapes, transposes and broadcasts.

An axis of a tensor is a run of letters, the last fastest; a letter is an axis of the product, as
``einsum`` has them.  A reshape puts the letters of neighbouring axes together, or divides a letter
into two, in every tensor that has it: a tensor may be viewed in any such way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_letters
from typing import Any

from topi_ext.compat import same_size

Axes = tuple[str, ...]
"""The letters of each axis of a tensor; none of an axis that has one element, or is broadcast."""


@dataclass(frozen=True)
class Letters:
    """The axes of several tensors.

    Attributes
    ----------
    sizes : mapping
        Of each letter.
    tensors : tuple of Axes
    divided : mapping
        Of letters that are no more, the two that have taken their place.
    """

    sizes: Mapping[str, Any]
    tensors: tuple[Axes, ...]
    divided: Mapping[str, str] = field(default_factory=dict)

    def with_axes(self, number: int, axes: Axes) -> Letters:
        """The same with other axes of one tensor."""
        tensors = list(self.tensors)
        tensors[number] = axes
        return replace(self, tensors=tuple(tensors))

    def permuted(self, number: int, order: Sequence[int]) -> Letters:
        """Of the tensor that a transpose by `order` made this one of."""
        before = [""] * len(order)
        for letters, axis in zip(self.tensors[number], order):
            before[axis] = letters
        return self.with_axes(number, tuple(before))

    def broadcast(self, number: int, shape: Sequence[Any], kept: str) -> Letters | None:
        """Of a tensor of this shape that was broadcast; None where that is along letters `kept`."""
        axes = self.tensors[number]
        behind = axes[len(axes) - len(shape) :]
        found = []
        for letters, size in zip(behind, shape):
            is_whole = same_size(size, self.extent(letters))
            found.append(letters if is_whole else "")
        lost = set("".join(axes)) - set("".join(found))
        return None if lost & set(kept) else self.with_axes(number, tuple(found))

    def reshaped(self, number: int, shape: Sequence[Any]) -> Letters | None:
        """With one tensor viewed in another shape; None where no letters make that."""
        made, axes = self, []
        left = list("".join(self.tensors[number]))
        for size in shape:
            found = made._take(left, size)
            if found is None:
                return None
            made, letters = found
            axes.append(letters)
        return made.with_axes(number, tuple(axes)) if not left else None

    def _take(self, left: list[str], size: Any) -> tuple[Letters, str] | None:
        """Letters of an axis of this size, from those that are left."""
        made, taken = self, ""
        while not _is_one(size):
            if not left:
                return None
            first = made.sizes[left[0]]
            if same_size(first, size):
                return made, taken + left.pop(0)
            if not (isinstance(first, int) and isinstance(size, int)):
                return None
            if size % first == 0:
                taken += left.pop(0)
                size //= first
            elif first % size == 0:
                divided = made._split(left.pop(0), size)
                if divided is None:
                    return None
                made, outer, inner = divided
                left.insert(0, inner)
                return made, taken + outer
            else:
                return None
        return made, taken

    def _split(self, letter: str, size: int) -> tuple[Letters, str, str] | None:
        """With two letters in the place of one, of which the slower has a size; None without two
        that are free."""
        free = [a for a in ascii_letters if a not in self.sizes and a not in self.divided]
        if len(free) < 2:
            return None
        outer, inner = free[:2]
        sizes = {**self.sizes, outer: size, inner: self.sizes[letter] // size}
        del sizes[letter]
        tensors = tuple(
            tuple(axis.replace(letter, outer + inner) for axis in axes) for axes in self.tensors
        )
        divided = {**self.divided, letter: outer + inner}
        return Letters(sizes, tensors, divided), outer, inner

    def current(self, letters: str) -> str:
        """Letters as they are called now."""
        while any(a in self.divided for a in letters):
            letters = "".join(self.divided.get(a, a) for a in letters)
        return letters

    def extent(self, letters: str) -> Any:
        """How many elements an axis of these letters has."""
        size: Any = 1
        for letter in letters:
            size = size * self.sizes[letter]
        return size


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
