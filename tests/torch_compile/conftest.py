# SPDX-License-Identifier: Apache-2.0
"""Each test compiles its own graphs."""

from __future__ import annotations

import pytest

from relax_ext import executable_cache
from relax_ext.torch import small


@pytest.fixture(autouse=True)
def nothing_in_use() -> None:
    """Forget the executables of other tests, which equal graphs would share."""
    executable_cache._in_use.clear()


@pytest.fixture
def no_graph_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no graph to PyTorch because it is small."""
    monkeypatch.setattr(small, "FLOPS", 0)
