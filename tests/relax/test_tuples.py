# SPDX-License-Identifier: Apache-2.0
"""Operators that read items of tuples, fused, against PyTorch in float64."""

from __future__ import annotations

import numpy as np
import torch
import tvm
from torch import Tensor
from tvm.relax.frontend.torch import from_exported_program

from helpers.whole import Function, check, compiled

_MANY = 24
"""So many that TVM's order of tuples was wrong in each of 6 runs."""


def test_items_of_many_tuples_in_one_function() -> None:
    def scores(*rows: Tensor) -> Tensor:
        found = (row.topk(2, 1) for row in rows)
        return sum(one.values * (place + 1) + one.indices for place, one in enumerate(found))

    check(Function(scores), *torch.randn(_MANY, 3, 5))


def test_a_user_can_disable_fusion() -> None:
    """The pass has TVM's name."""

    def doubled(x: Tensor) -> Tensor:
        return (x * 2).exp()

    module = from_exported_program(torch.export.export(Function(doubled), (torch.ones(2, 3),)))
    _, fused = compiled(module)
    with tvm.transform.PassContext(disabled_pass=["FuseOps"]):
        run, apart = compiled(module)
    assert [len(named_functions(one, "exp")) for one in (fused, apart)] == [1, 1]
    assert named_functions(fused, "fused") and not named_functions(apart, "fused")
    (found,) = run(tvm.runtime.tensor(np.ones((2, 3), "float32")))
    np.testing.assert_allclose(found.numpy(), np.exp(2.0), rtol=1e-6)


def named_functions(module: tvm.IRModule, part: str) -> list[str]:
    names = (name.name_hint for name, _ in module.functions_items())
    return [name for name in names if part in name]
