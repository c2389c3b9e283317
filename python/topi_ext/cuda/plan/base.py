# SPDX-License-Identifier: Apache-2.0
"""The base of all plans."""

from __future__ import annotations

from ...kernel_registry import Plan

__all__ = ["Plan"]
