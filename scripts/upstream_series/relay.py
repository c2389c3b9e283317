# SPDX-License-Identifier: Apache-2.0
"""The series for TVM with Relay: 0.17."""

from __future__ import annotations

from .series import Commit


def commits() -> list[Commit]:
    """All of them, in order."""
    return []
