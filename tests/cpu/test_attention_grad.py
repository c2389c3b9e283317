# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention, and the sums that they read, beside NumPy in float64."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from helpers.compare import numpy_dtype
from helpers.kernels import HOST, built, guarded
from helpers.profile import FUZZ
from topi_ext import backend, compat
from topi_ext.cpu import kernels
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.attention_grad import (
    AttentionGradPlan,
    attention_grad_candidates,
    copies,
)
from topi_ext.cpu.select.choose import choose
from topi_ext.spec import reference
from topi_ext.spec.attention import ADD, HIDE, KEEP, Attention, Mask
from topi_ext.spec.attention_grad import AttentionGrad

MACHINE = CpuMachine.of_features(*compat.llvm_features(HOST))

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative to the largest gradient: sums of at most 90 products of such sums, one rounding to the
dtype of y and one to that of a gradient."""

LAYOUTS = [
    ("ahmd", "ahnd", "ahne", "ahme", "ahm"),
    ("amhd", "anhd", "anhe", "amhe", "ahm"),
    ("ahdm", "ahdn", "ahen", "ahem", "amh"),
    ("ahmd", "and", "ane", "mahe", "ahm"),
]
"""Heads outside and inside of positions, channels first, and heads that share keys and values."""


def some_problem(dice: random.Random, dtype: str = "float32") -> AttentionGrad:
    """Return a problem of random sizes, layouts and masks."""
    largest = {"a": 2, "h": 3, "m": 50, "n": 50, "d": 40, "e": 40}
    sizes = tuple((a, dice.choice([1, dice.randint(1, most)])) for a, most in largest.items())
    q, k, v, y, sums = dice.choice(LAYOUTS)
    op = dice.choice([ADD, KEEP, HIDE])
    mask = Mask(op, dice.choice(["mn", "n", "ahmn"]), dtype if op == ADD else "bool")
    return AttentionGrad(
        sizes, q, k, v, y, (dtype,) * 4, dice.choice([1.0, -0.7, 0.3]),
        dice.choice([(), (mask,)]), dice.choice(["", "top_left", "bottom_right"]), True, (), sums,
        *(dice.choice([one, "".join(sorted(one))]) for one in (y, q, k, v)),
    )  # fmt: skip


def some_plan(problem: AttentionGrad, dice: random.Random) -> AttentionGradPlan:
    """Return a plan with few vectors, which compiles soon."""
    lanes, inner, columns = (dice.choice([4, 8, 16]) for _ in range(3))
    keys = problem.size["n"]
    of_inner, of_columns = -(-problem.size["d"] // inner), -(-problem.size["e"] // columns)
    return AttentionGradPlan(
        lanes, inner, columns, dice.randint(1, 3), dice.choice([keys, dice.randint(1, keys)]),
        dice.randint(1, 5), dice.randint(1, 5), dice.randint(1, of_inner), dice.randint(1, 4),
        dice.randint(1, of_columns), dice.randint(1, 4),
        dice.choice([copies(problem, inner, columns), ("q", "k", "v", "dy")]),
        dice.choice([True, False]),
    )  # fmt: skip


def arrays(problem: AttentionGrad, rng: np.random.Generator) -> list[np.ndarray]:
    """Return operands before y; all of some rows is hidden by a mask."""
    made = []
    for argument in list(problem.arguments())[:-6]:
        values = rng.standard_normal(argument.shape)
        if argument.dtype == "bool":
            values = values < rng.choice([-9.0, 0.0, 0.0, 9.0])
        elif argument.name == "mask":
            values = np.where(values < rng.choice([-9.0, 0.0, 9.0]), -np.inf, values)
        made.append(values.astype(numpy_dtype(argument.dtype)))
    return made


def check(kernel: object, problem: AttentionGrad, rng: np.random.Generator) -> None:
    """Run between guards, and compare with NumPy in float64."""
    operands = arrays(problem, rng)
    *_, y_, dy_, sums_, dq, dk, dv = problem.arguments()
    dy = rng.standard_normal(dy_.shape).astype(numpy_dtype(dy_.dtype))
    y = reference.attention(problem, *operands).astype(numpy_dtype(y_.dtype))
    q, k, _, *masks = operands
    sums = reference.attention_sums(problem, q, k, *masks).astype(numpy_dtype(sums_.dtype))
    results = [
        guarded(np.full(each.shape, 77, numpy_dtype(each.dtype)), 55) for each in (dq, dk, dv)
    ]
    given = (guarded(one, np.nan)[0] for one in (*operands, y, dy, sums))
    kernel(*given, *(out for out, _ in results))
    want = reference.attention_grad(problem, *operands, dy=dy)
    scale = max(1.0, *(np.abs(one).max(initial=0.0) for one in want))
    for (out, whole), exact in zip(results, want):
        got = out.numpy().astype("float64")
        np.testing.assert_allclose(got, exact, rtol=0, atol=TOLERANCE[dq.dtype] * scale)
        edges = np.concatenate([whole[:64], whole[-64:]])
        assert (edges == 55).all(), "wrote outside of its result"


def check_some(seed: int, dtype: str = "float32") -> None:
    print("seed", seed, dtype)
    dice, rng = random.Random(seed), np.random.default_rng(seed)
    problem = some_problem(dice, dtype)
    plan = some_plan(problem, dice)
    print(problem, plan)
    check(built([kernels.build(problem, plan)])["f0"], problem, rng)


@pytest.mark.parametrize("seed", range(100 if FUZZ else 6))
def test_any_plan(seed: int) -> None:
    check_some(seed)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(7, 100 if FUZZ else 8))
def test_dtypes(dtype: str, seed: int) -> None:
    check_some(seed, dtype)


def plain(**sizes: object) -> AttentionGrad:
    return AttentionGrad(
        tuple(sizes.items()), "amhd", "anhd", "anhe", "amhe", ("float32",) * 4, 0.3, (),
        "top_left", True, (), "ahm", "amhe", "amhd", "anhd", "anhe",
    )  # fmt: skip


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    """One function for any batch and any number of queries and keys."""
    problem = plain(**{a: compat.size_var(a) for a in "amn"}, h=2, d=8, e=12)
    plan = replace(choose(problem, MACHINE), lanes=8, vectors=2, keys=16)
    kernel = built([kernels.build(problem, plan)])["f0"]
    for a, m, n in [(1, 1, 1), (2, 16, 16), (1, 37, 45)]:
        known = tuple({**problem.size, "a": a, "m": m, "n": n}.items())
        check(kernel, replace(problem, sizes=known), rng)


@pytest.mark.parametrize("keys", [7, 600])
def test_sums_of_the_forward_kernel(keys: int, rng: np.random.Generator) -> None:
    """One block of keys and several; a query that reads no key has minus infinity."""
    sizes = (("a", 1), ("h", 2), ("m", 9), ("n", keys), ("d", 8), ("e", 8))
    problem = Attention(
        sizes, "amhd", "anhd", "anhe", "amhe", ("float32",) * 4, 0.3, (Mask(KEEP, "mn", "bool"),),
        zeros_empty=True, sums="ahm",
    )  # fmt: skip
    q, k, v = (rng.standard_normal((1, size, 2, 8)).astype("float32") for size in (9, keys, keys))
    mask = rng.random((9, keys)) < 0.5
    mask[3] = False
    out, sums = np.empty((1, 9, 2, 8), "float32"), np.empty((1, 2, 9), "float32")
    tensors = [guarded(one, np.nan)[0] for one in (q, k, v, mask, out, sums)]
    built([backend.build(problem, HOST)])["f0"](*tensors)
    want = reference.attention_sums(problem, q, k, mask)
    assert np.isneginf(want[:, :, 3]).all()
    np.testing.assert_allclose(tensors[-1].numpy(), want, rtol=0, atol=5e-6)
    exact = reference.attention(problem, q, k, v, mask)
    np.testing.assert_allclose(tensors[-2].numpy(), exact, rtol=0, atol=5e-6)


def test_candidates_fit_the_registers() -> None:
    costed = list(attention_grad_candidates(plain(a=1, h=2, m=64, n=64, d=40, e=300), MACHINE))
    assert costed and all(
        vectors * (rows + 1) < MACHINE.registers
        for _, plan in costed
        for vectors, rows in (
            (plan.vectors, max(plan.key_tile, plan.inner_tile)),
            (plan.inner_vectors, plan.inner_keys),
            (plan.column_vectors, plan.column_keys),
        )
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"dk": "anh"}, "attention_grad: letters 'anh' must be those of 'anhd'"),
        ({"v": "ane", "dv": "ane"}, "letters 'anhd' and 'ane' must have the same batch"),
        ({"sums": ""}, "needs sums"),
    ],
)
def test_refusals(change: dict, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        replace(plain(a=1, h=2, m=64, n=64, d=40, e=40), **change)
