# SPDX-License-Identifier: Apache-2.0
"""Each test compiles its own graphs."""

from __future__ import annotations

import pytest

from relax_ext import executable_cache


@pytest.fixture(autouse=True)
def nothing_in_use() -> None:
    """Forget the executables of other tests, which equal graphs would share."""
    executable_cache._in_use.clear()
