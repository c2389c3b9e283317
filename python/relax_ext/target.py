# SPDX-License-Identifier: Apache-2.0
"""The target that a call is compiled for."""

from __future__ import annotations

from typing import Any

import tvm


def target_of(found: Any) -> Any:
    """Return the target that a result of this tensor type is computed on, or None."""
    if found.vdevice is not None and found.vdevice.target is not None:
        return found.vdevice.target
    return tvm.target.Target.current(allow_none=True)
