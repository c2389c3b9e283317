# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: which cheap values each reader computes, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor
from tvm.relax.frontend.torch import from_exported_program

from helpers.whole import TOLERANCE, Function, compiled
from topi_ext.compat import tir

X, Y, Z = torch.randn(3, 2, 4, 6, 5)


def deviations(x: Tensor) -> Tensor:
    deviation = x - x.mean((0, 2, 3), keepdim=True)
    return deviation * (deviation * deviation).mean((0, 2, 3), keepdim=True)


def masked_gradient(x: Tensor, y: Tensor) -> Tensor:
    masked = torch.where(x > 0, y, 0)
    return masked.sum() + (masked * masked).sum() + (masked * x).sum()


def of_four_tensors(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    joined = x * y + z * (x + 1)
    return joined.sum() + (joined * joined).sum() + (joined * x).sum()


def costly(x: Tensor) -> Tensor:
    wave = torch.exp(x)
    return wave.sum() + (wave * wave).sum()


def of_a_product(x: Tensor) -> Tensor:
    shifted = x - 1
    return (shifted @ shifted.transpose(2, 3)).sum() + shifted.sum()


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    shifted = x - 1
    return shifted, shifted.sum() + (shifted * shifted).sum()


CASES: dict[str, tuple[Callable[..., object], list[Tensor], str, int]] = {
    "deviations from a mean": (deviations, [X], "subtract", 2),
    "a mask and what it masks": (masked_gradient, [X, Y], "where", 3),
    "more reads than a store saves": (of_four_tensors, [X, Y, Z], "multiply_add", 1),
    "a function of mathematics": (costly, [X], "exp", 1),
    "read by a matrix product": (of_a_product, [X], "subtract", 1),
    "a result": (returned, [X], "subtract", 1),
}
"""Function, arguments, an operator, and how many kernels compute it."""


@pytest.mark.parametrize("case", CASES)
def test_how_often_a_value_is_computed(case: str) -> None:
    function, inputs, operator, times = CASES[case]
    model = Function(function)  # type: ignore[arg-type]
    run, module = compiled(from_exported_program(torch.export.export(model, tuple(inputs))))
    names = [
        name.name_hint
        for name, func in module.functions_items()
        if isinstance(func, tir.PrimFunc) and operator in name.name_hint
    ]
    assert len(names) == times, names
    found = run(*(tvm.runtime.tensor(x.numpy()) for x in inputs))
    want = model(*(x.double() for x in inputs))
    wanted = want if isinstance(want, tuple) else (want,)
    for got, one in zip(found, wanted, strict=True):
        limit = TOLERANCE * max(1.0, one.abs().max().item())
        np.testing.assert_allclose(got.numpy(), one.numpy(), rtol=0, atol=limit)
