# SPDX-License-Identifier: Apache-2.0
"""Operators that read items of tuples, fused, against PyTorch in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.whole import Function, check

_MANY = 24
"""So many that TVM's order of tuples was wrong in each of 6 runs."""


def test_items_of_many_tuples_in_one_function() -> None:
    def scores(*rows: Tensor) -> Tensor:
        found = (row.topk(2, 1) for row in rows)
        return sum(one.values * (place + 1) + one.indices for place, one in enumerate(found))

    check(Function(scores), *torch.randn(_MANY, 3, 5))
