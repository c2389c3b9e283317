# SPDX-License-Identifier: Apache-2.0
"""From a face, its geometry and a target to a scheduled kernel, or to none."""

from __future__ import annotations

from typing import Any


def prim_func(face, geometry, layouts, n, dtypes, target) -> Any:
    """No kernel yet."""
    return None
