# SPDX-License-Identifier: Apache-2.0
"""Weights behind ``num_input``, packed by a function of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax

from helpers import build
from relax_ext.fusion.fuse import fuse_kernels
from relax_ext.pipeline import pipeline, with_packed_parameters

SHAPES = {"x": (1, 64, 9, 9), "w": (3, 3, 64, 64), "s": (64, 1, 1, 1), "v": (3136, 8)}


def module(*, reads_input: bool = False, num_input: int | None = 1) -> tvm.IRModule:
    """A convolution by a weight that is turned and scaled, and a matrix product."""
    op = relax.op
    attrs = None if num_input is None else {"num_input": num_input}

    def body(x: Any, w: Any, s: Any, v: Any) -> Any:
        turned = op.permute_dims(w, [3, 2, 0, 1])
        scaled = op.multiply(turned, op.mean(x) if reads_input else s)
        return op.matmul(op.reshape(op.nn.relu(op.nn.conv2d(x, scaled)), (1, 3136)), v)

    return build.module(body, *SHAPES.values(), attrs=attrs)


def packers(mod: tvm.IRModule) -> list[str]:
    names = (name.name_hint for name, _ in mod.functions_items())
    return sorted(name for name in names if name.endswith("_pack"))


@pytest.mark.parametrize(
    ("options", "packs", "expected"),
    [
        ({}, True, ["conv2d_relu_pack", "matmul_pack"]),
        ({}, False, []),
        ({"num_input": None}, True, []),
        ({"num_input": 2}, True, ["matmul_pack"]),
        ({"reads_input": True}, True, ["matmul_pack"]),
    ],
)
def test_what_is_packed(options: dict, packs: bool, expected: list[str]) -> None:
    """Only what parameters behind ``num_input`` decide, and only if asked for."""
    with build.target():
        found = packers(fuse_kernels(module(**options), packs_parameters=packs))
    assert [name.replace("_relu", "") for name in found] == [
        name.replace("_relu", "") for name in expected
    ]


def test_values(rng: np.random.Generator) -> None:
    """Packed once, run on two inputs, compared with PyTorch in float64.

    Sums of 3136 products, relative to their largest: a few roundings of float32.
    """
    target = build.target()
    split = with_packed_parameters(module(), target)
    machine = relax.VirtualMachine(
        tvm.compile(split, target, relax_pipeline=pipeline(target)), tvm.cpu()
    )
    x, *weights = (rng.standard_normal(shape).astype("float32") for shape in SHAPES.values())
    packed = list(machine["main_transform_params"](list(map(tvm.runtime.tensor, weights))))
    w, s, v = (torch.from_numpy(weight).double() for weight in weights)
    for data in (x, x[:, ::-1].copy()):
        got = machine["main"](tvm.runtime.tensor(data), *packed).numpy()
        y = F.conv2d(torch.from_numpy(data).double(), w.permute(3, 2, 0, 1) * s).relu()
        want = (y.reshape(1, -1) @ v).numpy()
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
