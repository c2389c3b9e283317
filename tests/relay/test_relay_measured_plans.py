# SPDX-License-Identifier: Apache-2.0
"""Measured plans in Relay: those that the environment names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relay

import relay_ext
from helpers import plans
from helpers.plans import W, X, plant
from topi_ext import backend

TARGET = relay_ext.host_target(num_cores=2)


def test_the_planted_plan_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    planted = plant(path, TARGET, plans.problem())
    monkeypatch.setenv("TVM_CONV_PLANS", str(path))
    backend._build.__wrapped__.cache_clear()
    x, w = relay.var("x", shape=X), relay.var("w", shape=W)
    call = relay.nn.conv2d(x, w, padding=plans.PADDING, channels=W[0], kernel_size=W[2:])
    module = tvm.IRModule.from_expr(relay.Function([x, w], call))
    data, weight = (
        np.random.default_rng(seed).standard_normal(shape, np.float32)
        for seed, shape in enumerate((X, W))
    )
    with plans.built() as found:
        run = relay.create_executor("graph", module, tvm.cpu(), TARGET).evaluate()
    assert planted in found
    exact = (torch.tensor(one).double() for one in (data, weight))
    wanted = torch.nn.functional.conv2d(*exact, padding=plans.PADDING)
    # Sums of 72 products of float32, in any order.
    np.testing.assert_allclose(run(data, weight).numpy(), wanted, rtol=0, atol=1e-5)
