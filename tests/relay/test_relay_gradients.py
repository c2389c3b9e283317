# SPDX-License-Identifier: Apache-2.0
"""Gradients of every rank, to any order, against torch.autograd in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relay

from helpers.cases import Case
from helpers.relay import check_gradients, run

T, C = "conv_transpose", "conv"


def template(op: str, rank: int) -> Case:
    """Grouped, dilated, with a stride that divides nothing."""
    return Case(
        op, (5, 6, 9)[-rank:], (3, 2, 2)[-rank:], n=2, ins=4, outs=6, groups=2,
        stride=(1, 2, 3)[-rank:], padding=(0, 1, 2)[-rank:] + (1, 2, 0)[-rank:],
        output_padding=(0, 1, 0)[-rank:] if op == T else (), dilation=(2, 1, 2)[-rank:],
    )  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", [T, C])
def test_first_order(op: str, rank: int, rng: np.random.Generator) -> None:
    check_gradients(template(op, rank), rng, stated=rank != 2)


@pytest.mark.parametrize(("op", "rank"), [(T, 1), (C, 2)])
def test_higher_order_mode(op: str, rank: int, rng: np.random.Generator) -> None:
    check_gradients(template(op, rank), rng, mode="higher_order")


@pytest.mark.parametrize(
    "case",
    [
        Case(C, (8, 8), (1, 1), stride=(3, 3)),
        Case(C, (9, 8), (3, 3), ins=4, outs=8, groups=4, stride=(2, 2)),
        Case(C, (9, 8), (2, 3), stride=(2, 2), dilation=(3, 1)),
        Case(T, (3, 3), (3, 3), dilation=(3, 2), output_padding=(2, 1)),
    ],
    ids=["k<s", "multiplier", "dilated", "output_padding>=stride"],
)
def test_windows(case: Case, rng: np.random.Generator) -> None:
    check_gradients(case, rng)


@pytest.mark.parametrize(
    "layouts",
    [
        {"data_layout": "NHWC", "kernel_layout": "HWIO"},
        {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "CHWN"},
        {"data_layout": "NCHW4c", "out_layout": "NCHW2c"},
    ],
)
@pytest.mark.parametrize("op", [T, C])
def test_layouts(op: str, layouts: dict, rng: np.random.Generator) -> None:
    check_gradients(template(op, 2).with_(**layouts), rng)


def test_operands_narrower_than_the_result(rng: np.random.Generator) -> None:
    check_gradients(template(T, 1).with_(dtype="float16", out_dtype="float32"), rng)


def test_backward_weight_of_a_grouped_conv2d_and_its_gradient(rng: np.random.Generator) -> None:
    """Stock is silently wrong for 1 < groups < channels."""
    grad, data = (rng.standard_normal(s).astype("f") for s in ((2, 8, 4, 4), (2, 4, 6, 6)))
    g, x = relay.var("g", shape=grad.shape), relay.var("x", shape=data.shape)
    body = relay.nn.conv2d_backward_weight(g, x, kernel_size=(3, 3), groups=2, channels=8)
    forward = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([g, x], body)))
    mod = tvm.IRModule.from_expr(relay.transform.gradient(forward["main"], mode="first_order"))
    weight_grad, dgrad, ddata = run(mod, [grad, data])

    tg, tx = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (grad, data))
    tw = torch.zeros(8, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(torch.conv2d(tx, tw, groups=2), tw, tg, create_graph=True)[0]
    for got, wanted in zip(
        (weight_grad, dgrad, ddata), (want, *torch.autograd.grad(want.sum(), (tg, tx)))
    ):
        np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("op", "rank"), [(C, 1), (T, 2)])
def test_second_order(op: str, rank: int, rng: np.random.Generator) -> None:
    """Differentiate the squared data gradient once more."""
    case = template(op, rank)
    arrays = case.arrays(rng)
    x, w = (relay.var(name, shape=a.shape) for name, a in zip("xw", arrays))
    attributes = {**case.attributes(), "channels": case.outs, "kernel_size": case.kernel}
    body = getattr(relay.nn, case.name)(x, w, **attributes)
    first = _gradient(relay.Function([x, w], body * body))
    a, b = (relay.var(name, shape=value.shape) for name, value in zip("ab", arrays))
    inner = relay.bind(first.body, dict(zip(first.params, (a, b))))
    ddata = relay.TupleGetItem(relay.TupleGetItem(inner, 1), 0)
    second = _gradient(relay.Function([a, b], ddata * ddata))
    got = run(tvm.IRModule.from_expr(second), arrays)[1:]

    tx, tw = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in arrays)
    (dx,) = torch.autograd.grad((case.forward(tx, tw) ** 2).sum(), tx, create_graph=True)
    for ours, theirs in zip(got, torch.autograd.grad((dx**2).sum(), (tx, tw))):
        scale = float(theirs.abs().max())
        np.testing.assert_allclose(ours / scale, theirs.numpy() / scale, rtol=1e-4, atol=1e-5)


def _gradient(function: relay.Function) -> relay.Function:
    """The first-order gradient without ``let``, which that mode cannot differentiate."""
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
    found = tvm.IRModule.from_expr(relay.transform.gradient(mod["main"], mode="first_order"))
    passes = [relay.transform.ToGraphNormalForm(), relay.transform.InferType()]
    return tvm.transform.Sequential(passes)(found)["main"]
