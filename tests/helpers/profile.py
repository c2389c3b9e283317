# SPDX-License-Identifier: Apache-2.0
"""Number of examples: tests that compile take few examples of many cases each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import pytest
from hypothesis import Phase, settings

FUZZ = settings().max_examples > 100
"""True in a long run (``HYPOTHESIS_PROFILE=fuzz``)."""

deep = pytest.mark.skipif(not FUZZ, reason="many more cases: in make fuzz only")

Item = TypeVar("Item")


def thinned(items: Iterable[Item], by: int, first: int = 0) -> list[Item]:
    """Return every `by`-th item, from `first` on; all items in a long run."""
    return list(items if FUZZ else islice(items, first, None, by))


def compiling(examples: int) -> settings:
    """Settings for a test that compiles a module per example; twenty times as many in a long run.

    Nothing is shrunk: that would compile hundreds of modules, and a failure names its one case.
    """
    phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
    return settings(max_examples=examples * (20 if FUZZ else 1), phases=phases)
