# SPDX-License-Identifier: Apache-2.0
"""Batch norms and constant arithmetic behind Relay's convolutions, merged into weights and bias.

Values are compared with PyTorch in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.relay.backend import te_compiler

import relay_ext
from helpers.relay import target
from helpers.relay_model import Model, batch_norm, bias, problems, relu, steps
from relay_ext.affine import merged
from topi_ext import backend


def arithmetic(model: Model) -> None:
    """A product with a reshaped vector, a difference and a quotient."""
    value, exact = model.vector(positive=True)
    half = relay.const(np.asarray(0.5, model.dtype))
    shape = [1] * (model.rank + 2)
    shape[model.channel] = model.outs
    model.value = (half - model.value * relay.reshape(value, shape)) / half
    model.exact = (0.5 - model.exact * exact) / 0.5


def operators(mod: tvm.IRModule) -> set[str]:
    return set(map(str, relay.analysis.list_op_freqs(mod)))


@pytest.mark.parametrize(
    ("level", "kind"),
    list(
        enumerate(
            [
                dict(rank=1, transposed=True),
                dict(transposed=True, groups=2),
                dict(rank=3, last=True),
                dict(rank=3, transposed=True, groups=4),
                dict(rank=1),
                dict(groups=8),  # two outputs of each channel
                dict(groups=4, last=True),
                dict(transposed=True, last=True),
                dict(dtype="float16"),
            ]
        )
    ),
)
def test_norms_are_part_of_the_weight(level: int, kind: dict[str, Any]) -> None:
    """Each kind at one of the four levels."""
    model = Model(**kind)
    for add in (bias, batch_norm, arithmetic):
        add(model)
    mod = model.module()
    before = tvm.ir.structural_hash(mod)
    assert len(operators(merged(mod, {})) - {"add"}) == 1
    assert tvm.ir.structural_hash(mod) == before
    relu(model)
    result, found = model.build(level % 4)
    model.check(result)
    assert steps(found[-1]) == (["add", "relu"] if level % 4 else [])


def test_parameters_and_weights_that_are_transposed() -> None:
    """By the VM, whose compiler is given parameters before it is given the module."""
    model = Model(transposed=True, constant=False)
    weight = model.inputs.pop("w")
    stored = relay.var("stored", shape=weight.shape[::-1])
    x, _ = model.value.args
    scale = relay.var("scale", shape=(16, 1, 1))
    model.value = relay.Call(
        model.value.op, [x, relay.transpose(stored)], model.value.attrs
    ) * relay.sqrt(scale)
    model.exact = model.exact * 2
    params = {"stored": np.ascontiguousarray(weight.T), "scale": np.full((16, 1, 1), 4, "float32")}
    te_compiler.get().clear()
    with backend.recording() as works:
        executable = relay.vm.compile(model.module(), target(), params=params)
    machine = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu())
    model.check(machine.invoke("main", x=tvm.nd.array(model.inputs["x"])).numpy())
    assert [steps(problem) for problem in problems(works)] == [[]]


def test_what_stays_as_it_is() -> None:
    """Other readers, operands that vary otherwise or enlarge, and weights beyond their dtype."""

    def changed(make: Any, **kind: Any) -> bool:
        model = Model(**kind)
        mod = model.module(*make(model))
        return not merged(mod, {}).same_as(mod)

    def by(operand: Any) -> Any:
        return lambda model: [model.value * relay.const(np.asarray(operand, "float32"))]

    assert changed(by(2.0))
    assert not changed(by(2.0), constant=False)
    assert not changed(lambda model: [model.value * relay.const(2.0), model.value])
    assert not changed(lambda model: [model.value, model.value * relay.const(2.0)])
    assert not changed(lambda model: [model.value * model.value])
    assert not changed(by(np.full(7, 2)))
    assert not changed(by(np.full((3, 1, 1, 1, 1), 2)))
    assert not changed(by(1e-38))
    assert not changed(by(np.inf))
    assert not changed(lambda model: [relay.const(2.0) / model.value])
    with tvm.transform.PassContext(disabled_pass=["FoldScaleAxis"]):
        assert not changed(by(2.0))


def test_stock_merges_nothing() -> None:
    model = Model(transposed=True)
    batch_norm(model)
    with relay_ext.stock():
        mod, _ = relay.optimize(model.module(), target())
    assert "multiply" in operators(mod)
