# SPDX-License-Identifier: Apache-2.0
"""Functions of one element in half precision: float32 arithmetic, and one rounding.

By plain ``tvm.compile`` and by the pipeline, near zero and where a function is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm.relax import op

from helpers import build
from helpers.whole import TARGET

EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    **{
        name: (getattr(op, name), getattr(torch, name))
        for name in ("tanh", "sigmoid", "rsqrt", "tan", "asin", "acos", "atan", "sinh", "cosh")
    },
    **{name: (getattr(op, name), getattr(torch, name)) for name in ("asinh", "acosh", "atanh")},
    "gelu": (op.nn.gelu, F.gelu),
    "gelu_tanh": (op.nn.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (op.nn.silu, F.silu),
    "softplus": (op.nn.softplus, F.softplus),
    "selu": (op.nn.selu, F.selu),
    "leaky_relu": (lambda x: op.nn.leakyrelu(x, 0.01), lambda x: F.leaky_relu(x, 0.01)),
    "isnan": (lambda x: op.astype(op.isnan(x), "float32"), torch.isnan),
}
WITHIN = {"asin": 1.0, "acos": 1.0, "atanh": 0.99}
"""Limits of arguments other than 4.5."""


def arguments(name: str, dtype: str) -> torch.Tensor:
    limit = WITHIN.get(name, 4.5)
    small = torch.logspace(-4, 0, 30)
    x = torch.cat([torch.linspace(-1, 1, 331), small, -small]) * limit
    if name == "rsqrt":
        x = x.abs() + 1e-3
    return (x.abs() + 1.01 if name == "acosh" else x).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("pipeline", [False, True], ids=["plain", "pipeline"])
def test_functions(pipeline: bool, dtype: str) -> None:
    """One rounding, and 40 units of float32 relative to 1: gelu and elu subtract numbers near 1."""
    given = {name: arguments(name, dtype) for name in FUNCTIONS}
    mod = build.joined({name: build.module(FUNCTIONS[name][0], x) for name, x in given.items()})
    machine = build.compiled(mod, TARGET if pipeline else "llvm", pipeline=pipeline)
    for name, x in given.items():
        want = FUNCTIONS[name][1](x.double()).double()
        got = torch.from_dlpack(machine[name](tvm.runtime.from_dlpack(x))).double()
        limit = 1.01 * EPSILON[dtype] * want.abs() + 40 * np.finfo("float32").eps
        assert bool(((got - want).abs() <= limit).all()), name
