# SPDX-License-Identifier: Apache-2.0
"""The base of the plans of CPU kernels."""

from __future__ import annotations

from typing import Any

from ...kernel.registry import Plan as BasePlan
from ..machine import CpuMachine


class Plan(BasePlan):
    """The parameters of a CPU kernel for one problem: blocks, register tile, order of loops."""

    def with_non_temporal(self, enabled: bool) -> Plan:
        """Return the plan with non-temporal stores or without; itself where it has no choice."""
        return self

    def non_temporal_run(self, problem: Any, machine: CpuMachine) -> int | None:
        """Return how many neighbouring elements of the result a task writes by non-temporal stores,
        one after the other; None where it can't use them."""
        return None
