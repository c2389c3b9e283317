# SPDX-License-Identifier: Apache-2.0
"""The gradient table on NumPy arrays, without any compiler, against torch.autograd."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import oracle
from helpers.cases import Case, any_case, geometry_of
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.gradients import RULES
from topi_ext.spec.reference import Reference

seeds = st.integers(0, 2**32 - 1)
OPERANDS = {"conv": "xw", "conv_transpose": "yw", "conv_weight_grad": "xy"}
RESULT = {"conv": "y", "conv_transpose": "x", "conv_weight_grad": "w"}


def shape_of(role: str, g: Geometry, n: int) -> tuple[int, ...]:
    return {"x": g.x_shape(n), "w": g.w_shape, "y": g.y_shape(n)}[role]


def in_torch(face: str, a: torch.Tensor, b: torch.Tensor, g: Geometry) -> torch.Tensor:
    """A face of the sizes that the geometry states."""
    fitted = (g.stride, g.fitted().padding)
    if face == "conv":
        return oracle.conv(a, b, *fitted, g.dilation, g.groups)
    if face == "conv_weight_grad":
        return oracle.conv_weight_grad(a, b, g.kernel, *fitted, g.dilation, g.groups)
    extra = g.output_padding
    return oracle.conv_transpose(a, b, g.stride, g.padding, extra, g.dilation, g.groups)


def close(got: np.ndarray, want: torch.Tensor) -> None:
    """Float64 on both sides, at most some 10**5 products of normal numbers in different order."""
    want = want.detach().numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("face", list(RULES))
@given(case=any_case, seed=seeds)
def test_first_order(face: str, case: Case, seed: int) -> None:
    rng, g = np.random.default_rng(seed), geometry_of(case)
    a, b = (rng.standard_normal(shape_of(role, g, case.n)) for role in OPERANDS[face])
    ta, tb = (oracle.tensor(v, requires_grad=True) for v in (a, b))
    out = in_torch(face, ta, tb, g)
    dout = rng.standard_normal(out.shape)
    wanted = torch.autograd.grad(out, (ta, tb), oracle.tensor(dout))
    for got, want in zip(RULES[face](Reference(), g, a, b, dout), wanted):
        close(got, want)


@dataclass(eq=False)
class Node:
    """An array that remembers the face it came from."""

    value: np.ndarray
    face: str = ""
    operands: tuple = ()


class Tape:
    """Ops that record, so that the table can be applied to its own results."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Node, Geometry]] = []

    def __getattr__(self, face: str):
        def apply(a: Node, b: Node, geometry: Geometry) -> Node:
            node = Node(getattr(Reference(), face)(a.value, b.value, geometry), face, (a, b))
            self.nodes.append((node, geometry))
            return node

        return apply

    def gradients(self, seeds: dict[Node, Node], leaves: list[Node]) -> list[Node]:
        """Reverse mode: the sum over paths, every step by the table, itself recorded."""
        found = dict(seeds)
        for node, geometry in reversed(self.nodes[:]):
            if node in found:
                steps = RULES[node.face](self, geometry, *node.operands, found[node])
                for operand, step in zip(node.operands, steps):
                    had = found.get(operand)
                    # A sum is not recorded: third order through it is not needed here.
                    found[operand] = step if had is None else Node(had.value + step.value)
        return [found[leaf] for leaf in leaves]


@pytest.mark.parametrize("face", list(RULES))
@given(case=any_case, seed=seeds)
def test_second_order(face: str, case: Case, seed: int) -> None:
    """Gradients in a, b and dout of ``sum(da*u) + sum(db*v)``, with the table alone."""
    rng, g = np.random.default_rng(seed), geometry_of(case)
    names = OPERANDS[face] + RESULT[face]
    a, b, dout = (Node(rng.standard_normal(shape_of(role, g, case.n))) for role in names)
    u, v = (Node(rng.standard_normal(node.value.shape)) for node in (a, b))
    tape = Tape()
    da, db = RULES[face](tape, g, a, b, dout)
    got = tape.gradients({da: u, db: v}, [a, b, dout])

    ta, tb, tdout = (oracle.tensor(node.value, requires_grad=True) for node in (a, b, dout))
    out = in_torch(face, ta, tb, g)
    tda, tdb = torch.autograd.grad(out, (ta, tb), tdout, create_graph=True)
    scalar = (tda * oracle.tensor(u.value)).sum() + (tdb * oracle.tensor(v.value)).sum()
    for node, want in zip(got, torch.autograd.grad(scalar, (ta, tb, tdout))):
        close(node.value, want)
