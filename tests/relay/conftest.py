# SPDX-License-Identifier: Apache-2.0
"""Every test of Relay starts with our rules registered."""

from __future__ import annotations

import pytest

import relay_ext


@pytest.fixture(autouse=True)
def _registered() -> None:
    relay_ext.register()
