# SPDX-License-Identifier: Apache-2.0
"""The base of all plans."""

from __future__ import annotations


class Plan:
    """Of one kernel: its tiles, and how its sums are divided.

    Any plan is right; :mod:`topi_ext.cuda.plan.choose` guesses which is fast.
    """
