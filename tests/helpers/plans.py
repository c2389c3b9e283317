# SPDX-License-Identifier: Apache-2.0
"""Files of measured plans, made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.plan.base import Plan
from topi_ext.cpu.plan.direct import DirectPlan
from topi_ext.cpu.select.choose import candidates, choose
from topi_ext.cpu.select.lookup import entry
from topi_ext.emit.functions import Functions
from topi_ext.kernel.database import machine_name, merge
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts

X, W, PADDING = (1, 8, 12, 12), (8, 8, 3, 3), (1, 1)


def problem(prepacked: bool = False) -> Convolution:
    """A convolution of `X` and `W`."""
    geometry = Geometry.of_conv("conv2d", X, W, padding=PADDING)
    layouts, dtypes = Layouts.canonical(2), ("float32",) * 3
    return Convolution("conv", geometry.as_rank3(), layouts, 1, dtypes, prepacked=prepacked)


def plant(path: Path, target: Any, one: Convolution) -> Plan:
    """Write a file that says that the slowest of `direct`, by estimate, was the fastest."""
    found = CpuBackend.of(target)
    assert found is not None
    rated = (each for each in candidates(one, found.machine) if isinstance(each[1], DirectPlan))
    plan = max(rated, key=lambda each: each[0])[1]
    assert plan != choose(one, found.machine)
    machine = machine_name(found.processor, found.machine)
    merge(path, {machine: {one.signature: entry(plan, 1.0, 2.0)}})
    return plan


@contextmanager
def built() -> Iterator[list[Plan]]:
    """The plans of kernels that are built inside the block."""
    plans: list[Plan] = []
    build = Functions.build

    def spy(functions: Functions, problem: Convolution, plan: Plan) -> Any:
        plans.append(plan)
        return build(functions, problem, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Functions, "build", spy)
        yield plans
