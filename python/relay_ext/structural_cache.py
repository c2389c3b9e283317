# SPDX-License-Identifier: Apache-2.0
"""Results that are cached by the structure of TVM's objects."""

from __future__ import annotations

from typing import Any

import tvm


class StructuralCache:
    """Results by a name and TVM's objects; the oldest are forgotten first.

    Parameters
    ----------
    limit : int
        How many results are kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}

    def get(self, name: str, question: tuple[Any, ...]) -> Any:
        """Return the answer for objects that are equal in structure, or None."""
        asked, answer = self.kept.get(self._key(name, question), ((), None))
        is_same = answer is not None and all(map(tvm.ir.structural_equal, asked, question))
        return answer if is_same else None

    def put(self, name: str, question: tuple[Any, ...], answer: Any) -> None:
        """Keep an answer, which is not None."""
        self.kept[self._key(name, question)] = question, answer
        while len(self.kept) > self.limit:
            del self.kept[next(iter(self.kept))]

    @staticmethod
    def _key(name: str, question: tuple[Any, ...]) -> tuple[Any, ...]:
        return name, *map(tvm.ir.structural_hash, question)
