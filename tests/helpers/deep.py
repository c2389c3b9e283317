# SPDX-License-Identifier: Apache-2.0
"""Tests that ``make fuzz`` runs, and the default test command leaves out."""

from __future__ import annotations

import os

import pytest

deep = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "fuzz", reason="many more cases: in make fuzz only"
)
