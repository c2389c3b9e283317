# SPDX-License-Identifier: Apache-2.0
"""Selection of kernels: all of them, unless ``TVM_CONV_KERNEL`` restricts them.

``TVM_CONV_KERNEL=direct`` chooses this kernel wherever it serves, ``TVM_CONV_KERNEL=-winograd`` any
other one.  Names are separated by commas.  It is meant for bisecting a wrong result: an operator
that no selected kernel serves gets the kernel that it has anyway.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

VARIABLE = "TVM_CONV_KERNEL"


@dataclass(frozen=True)
class Selection:
    """Names of kernels that may be chosen.

    Attributes
    ----------
    only : frozenset of str
        Empty for all.
    without : frozenset of str
        Kernels that must not be used.
    """

    only: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    @property
    def is_all(self) -> bool:
        """Return whether every kernel may be chosen."""
        return not (self.only or self.without)

    def allows(self, name: str) -> bool:
        """Return whether a kernel may be chosen."""
        return name not in self.without and (not self.only or name in self.only)


ALL = Selection()


def selected(known: Collection[str]) -> Selection:
    """Return the selection that the environment states.

    Parameters
    ----------
    known : collection of str
        Names of all kernels.

    Raises
    ------
    ValueError
        One line, for a name that no kernel has.
    """
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if not names:
        return ALL
    without = frozenset(name[1:] for name in names if name.startswith("-"))
    only = frozenset(name for name in names if not name.startswith("-"))
    for name in sorted((only | without) - set(known)):
        raise ValueError(f"{VARIABLE}: {name!r} must be one of {', '.join(sorted(known))}")
    return Selection(only, without)
