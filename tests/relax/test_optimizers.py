# SPDX-License-Identifier: Apache-2.0
"""Optimizers in Relax, beside ``relax.transform.Gradient`` and without PyTorch's modules.

``test_training.py`` compares their values with PyTorch's.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import relax_ext
from helpers import build
from relax_ext import optimizers
from topi_ext.compat import tensor_type


def weight(*shape: int, dtype: str = "float32") -> relax.Var:
    return relax.Var("w", tensor_type(shape, dtype, len(shape)))


def test_groups_of_several_rules_in_one_function(rng: np.random.Generator) -> None:
    """Adam and SGD with their own steps and rates, after Gradient, in float64."""
    x = relax.Var("x", tensor_type((4, 3), "float64", 2))
    w, b = weight(3, 2, dtype="float64"), weight(2, dtype="float64")

    def loss(*_: relax.Expr) -> relax.Expr:
        y = build.emit(relax.op.add(relax.op.matmul(x, w), b))
        return relax.op.sum(relax.op.multiply(y, y))

    groups = [(optimizers.AdamW(lr=0.1), [w]), (optimizers.SGD(lr=0.01, momentum=0.5), [b])]
    module = relax.transform.Gradient("main", [w, b])(build.module(loss, x, w, b))
    module["update"] = optimizers.update_function(groups, clip_norm=2.0)
    target = relax_ext.host_target()
    executable = tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))
    vm = relax.VirtualMachine(executable, tvm.cpu())

    arrays = [rng.standard_normal(shape) for shape in ((4, 3), (3, 2), (2,))]
    values = [tvm.runtime.tensor(array) for array in arrays[1:]]
    data, *theirs = (torch.tensor(array, requires_grad=True) for array in arrays)
    others = [
        torch.optim.AdamW([theirs[0]], 0.1),
        torch.optim.SGD([theirs[1]], 0.01, momentum=0.5),
    ]
    state = optimizers.initial_state(groups)
    for step in range(1, 5):
        loss, gradients = vm["main_adjoint"](tvm.runtime.tensor(arrays[0]), *values)
        numbers = optimizers.numbers(groups, [step, step], scale=0.5)
        values, state = vm["update"](list(values), gradients, state, numbers)
        expected = (data @ theirs[0] + theirs[1]).square().sum()
        for each in others:
            each.zero_grad()
        (expected / 2).backward()
        torch.nn.utils.clip_grad_norm_(theirs, 2.0)
        for each in others:
            each.step()
        # A dozen roundings of float64 a step.
        assert abs(loss.numpy() - expected.item()) <= 1e-12 * expected.item()
        for ours, other in zip(values, theirs):
            np.testing.assert_allclose(ours.numpy(), other.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_refusals() -> None:
    adam, w = optimizers.Adam(), weight(3)
    calls = {
        "there is no weight": lambda: optimizers.update_function([(adam, [])]),
        "float32, float64: all must be": lambda: optimizers.update_function(
            [(adam, [w, weight(3, dtype="float64")])]
        ),
        "weights of float16": lambda: optimizers.update_function(
            [(adam, [weight(3, dtype="float16")])]
        ),
        "must be of known shape": lambda: optimizers.update_function(
            [(adam, [relax.Var("w", tensor_type(None, "float32", 2))])]
        ),
        "clip_norm=0 must be above 0": lambda: optimizers.update_function([(adam, [w])], 0),
        "step=0 must be at least 1": lambda: optimizers.numbers([(adam, [w])], 0),
        "lr=-1 must be at least 0": lambda: optimizers.SGD(lr=-1),
        "eps=nan must be at least 0": lambda: optimizers.Adam(eps=float("nan")),
        "betas=.* below 1": lambda: optimizers.AdamW(betas=(0.9, 1.0)),
        "nesterov=True needs momentum": lambda: optimizers.SGD(lr=1, nesterov=True),
    }
    for line, call in calls.items():
        with pytest.raises(ValueError, match=line):
            call()


@pytest.mark.parametrize("count", [1, 2])
def test_concatenations_have_gradients(count: int, rng: np.random.Generator) -> None:
    """A concatenation of one tensor, for which TVM's own rule ends in an InternalError, has a
    gradient too."""

    def loss(x: relax.Expr) -> relax.Expr:
        y = build.emit(relax.op.concat([x] * count, axis=1))
        return relax.op.sum(relax.op.multiply(y, y))

    module = relax.transform.Gradient("main")(build.module(loss, (2, 3)))
    vm = relax.VirtualMachine(tvm.compile(module, relax_ext.host_target()), tvm.cpu())
    array = rng.standard_normal((2, 3)).astype("float32")
    _, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(array))
    np.testing.assert_allclose(gradient.numpy(), 2 * count * array, rtol=1e-6)
