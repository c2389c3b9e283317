# SPDX-License-Identifier: Apache-2.0
"""MetaSchedule, which takes every kernel of a module for a task, gets past ours."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.s_tir import analysis, meta_schedule

from helpers import build
from helpers.cases import Case

CASES = [
    Case("conv", (14, 14), (3, 3), padding=(1, 1, 1, 1)),
    Case("conv_transpose", (2, 3), (4, 4), stride=(2, 2), padding=(1, 1, 1, 1)),
]


@pytest.mark.smoke
def test_operations_of_our_kernels_are_not_counted() -> None:
    """Counting knows no vectors: "Do not have a default for prim.Shuffle"."""
    mod = build.gradient_module(CASES)
    with build.target():
        lowered = relax.transform.LegalizeOps()(mod)
    tasks = meta_schedule.relax_integration.extract_tasks(lowered, build.target())
    ours = [task for task in tasks if "conv" in task.task_name]
    assert {task.task_name.rstrip("0123456789") for task in ours} == {
        "conv2d", "conv2d_transpose", "conv_weight_grad",
    }  # fmt: skip
    for task in ours:
        assert analysis.estimate_tir_flops(task.mod) == 0
