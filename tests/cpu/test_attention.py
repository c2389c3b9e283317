# SPDX-License-Identifier: Apache-2.0
"""The kernel of attention, by any plan, against PyTorch and NumPy in float64."""

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
from topi_ext.cpu.plan.attention import AttentionPlan, attention_candidates, copies
from topi_ext.cpu.plan.attention_few import AttentionFewPlan, attention_few_candidates
from topi_ext.cpu.select.choose import choose
from topi_ext.kernel.registry import Refused
from topi_ext.spec.attention import ADD, HIDE, KEEP, MASK_OPS, Attention, Mask
from topi_ext.spec.post_ops import PostOp
from topi_ext.spec.reference import attention

MACHINE = CpuMachine.of_features(*compat.llvm_features(HOST))

TOLERANCE = {"float64": 1e-13, "float32": 3e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""Maximum error, relative to the largest value: scores are sums of at most 40 products below 30,
whose roundings exp amplifies, and the result is rounded once to the dtype."""

LAYOUTS = [
    ("ahmd", "ahnd", "ahne", "ahme"),
    ("amhd", "anhd", "anhe", "amhe"),
    ("ahdm", "ahdn", "ahen", "ahem"),
    ("ahmd", "and", "ahne", "mahe"),
    ("ahmd", "ahdn", "nae", "ahme"),
]
"""Heads outside and inside of positions, channels first, and heads that share keys or values."""

MASKS = ["mn", "n", "ahmn", "hnm", "am", "h"]


def some_problem(dice: random.Random, dtype: str = "float32") -> Attention:
    """Return a problem of random sizes, layouts and masks."""
    largest = {"a": 2, "h": 3, "m": 70, "n": 90, "d": 40, "e": 40}
    sizes = tuple((a, dice.choice([1, dice.randint(1, most)])) for a, most in largest.items())
    masks = tuple(some_mask(dice, dtype) for _ in range(dice.choice([0, 1, 1, 2, 3])))
    return Attention(
        sizes, *dice.choice(LAYOUTS), (dtype,) * 4, dice.choice([1.0, -0.7, 0.3, 30.0]),
        masks, dice.choice(["", "", "top_left", "bottom_right"]),
        dice.choice([True, False]), dice.choice([(), (PostOp("add", "he", "he"),)]),
    )  # fmt: skip


def some_mask(dice: random.Random, dtype: str) -> Mask:
    """Return a mask of random letters."""
    op = dice.choice(MASK_OPS)
    of_op = "bool" if op in (KEEP, HIDE) else dtype
    return Mask(op, dice.choice(MASKS), of_op, dice.choice([-np.inf, -3.0, -3e38]))


def some_plan(problem: Attention, dice: random.Random) -> AttentionPlan:
    """Return a plan with few vectors, which compiles soon."""
    lanes, keys = dice.choice([2, 4, 8, 16]), problem.size["n"]
    return AttentionPlan(
        lanes, dice.randint(1, 3), dice.choice([keys, dice.randint(1, keys)]), dice.randint(1, 7),
        dice.randint(1, 7), dice.choice([problem.dtypes[1] != problem.acc_dtype, True]),
        dice.choice([problem.dtypes[2] != problem.acc_dtype, True]), dice.choice([True, False]),
    )  # fmt: skip


def some_of_few(dice: random.Random, dtype: str) -> tuple[Attention, AttentionFewPlan]:
    """Return a problem of few queries, and a plan that shares keys among tasks."""
    problem = some_problem(dice, dtype)
    shapes = {"m": dice.randint(1, 6), "d": 4 * dice.randint(1, 10), "e": 4 * dice.randint(1, 10)}
    problem = replace(problem, sizes=tuple({**problem.size, **shapes}.items()))
    m, n, d, e = (problem.size[a] for a in "mnde")
    of_inner, of_columns = (
        dice.choice([lanes for lanes in (2, 4, 8, 16) if size % lanes == 0]) for size in (d, e)
    )
    vectors = [number for number in (1, 2, 3, 5) if d // of_inner % number == 0]
    return problem, AttentionFewPlan(
        dice.choice([2, 4, 8, 16]), of_inner, of_columns, dice.choice(vectors),
        dice.choice([n, dice.randint(1, n)]), dice.randint(1, m), dice.randint(1, e // of_columns),
        dice.choice([1, 2, 3]), copies(problem, "d"), copies(problem, "e"),
        dice.choice([True, False]),
    )  # fmt: skip


def arrays(problem: Attention, rng: np.random.Generator) -> list[np.ndarray]:
    """Return operands; of masks, all of some rows is minus infinity, or hidden."""
    made = []
    ops = {f"mask{number or ''}": mask.op for number, mask in enumerate(problem.masks)}
    for argument in list(problem.arguments())[:-1]:
        values = rng.standard_normal(argument.shape)
        if argument.dtype == "bool":
            values = values < rng.choice([-9.0, 0.0, 0.0, 9.0])
        elif ops.get(argument.name) == ADD:
            values = np.where(values < rng.choice([-9.0, 0.0, 9.0]), -np.inf, values)
        made.append(values.astype(numpy_dtype(argument.dtype)))
    return made


def check(kernel: object, problem: Attention, operands: list[np.ndarray]) -> None:
    """Run between guards, and compare with NumPy in float64."""
    *_, result = problem.arguments()
    q, k, v, *rest = operands
    masks, rest = rest[: len(problem.masks)], rest[len(problem.masks) :]
    want = attention(problem, q, k, v, *masks)
    for step, operand in zip(problem.epilogue, rest):
        axes = [problem.y.index(a) for a in step.order]
        shape = [n if a in step.order else 1 for a, n in zip(problem.y, want.shape)]
        want = want + operand.transpose(np.argsort(np.argsort(axes))).reshape(shape)
    out, whole = guarded(np.full(result.shape, 77, numpy_dtype(result.dtype)), 55)
    kernel(*(guarded(one, np.nan)[0] for one in operands), out)
    got = out.numpy().astype("float64")
    assert np.array_equal(np.isnan(got), np.isnan(want)), "other rows are NaN"
    scale = max(1.0, np.nanmax(np.abs(want), initial=0.0), np.abs(v.astype("float64")).max())
    allowed = TOLERANCE[result.dtype] * scale * max(1.0, abs(problem.scale))
    np.testing.assert_allclose(got, want, rtol=0, atol=allowed, equal_nan=True)
    edges = np.concatenate([whole[:64], whole[-64:]])
    assert (edges == 55).all(), "wrote outside of its result"


def check_some(seed: int, dtype: str = "float32") -> None:
    print("seed", seed, dtype)
    dice, rng = random.Random(seed), np.random.default_rng(seed)
    if seed % 2:
        problem, plan = some_of_few(dice, dtype)
    else:
        problem = some_problem(dice, dtype)
        plan = some_plan(problem, dice)
    print(problem, plan)
    check(built([kernels.build(problem, plan)])["f0"], problem, arrays(problem, rng))


@pytest.mark.parametrize("seed", range(300 if FUZZ else 24))
def test_any_plan(seed: int) -> None:
    check_some(seed)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(7, 200 if FUZZ else 9))
def test_dtypes(dtype: str, seed: int) -> None:
    check_some(seed, dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_beside_pytorch(causal: bool, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    sizes = (("a", 2), ("h", 3), ("m", 33), ("n", 21), ("d", 40), ("e", 24))
    layout = ("ahmd", "ahnd", "ahne", "ahme")
    masks = () if causal else (Mask(KEEP, "amn", "bool"),)
    problem = Attention(
        sizes, *layout, ("float32",) * 4, 0.158, masks, "top_left" if causal else "", True
    )
    operands = arrays(problem, rng)
    if masks:
        operands[3][0, :5] = False
    q, k, v, *shown = (torch.from_numpy(one) for one in operands)
    want = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), *(one[:, None] for one in shown),
        is_causal=causal, scale=0.158,
    )  # fmt: skip
    np.testing.assert_allclose(attention(problem, *operands), want.numpy(), rtol=0, atol=1e-14)
    check(built([backend.build(problem, HOST)])["f0"], problem, operands)


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    """One function for any batch and any number of queries and keys."""
    names = {a: compat.size_var(a) for a in "amn"}
    sizes = (*names.items(), ("h", 2), ("d", 8), ("e", 5))
    mask = Mask(ADD, "amn", "float32")
    problem = Attention(sizes, "amhd", "anhd", "anhe", "amhe", ("float32",) * 4, 0.35, (mask,))
    plan = replace(choose(problem, MACHINE), lanes=8, vectors=2, keys=16)
    kernel = built([kernels.build(problem, plan)])["f0"]
    for a, m, n in [(1, 1, 1), (3, 16, 16), (2, 37, 45), (1, 7, 100), (2, 25, 15)]:
        known = replace(problem, sizes=(("a", a), ("m", m), ("n", n), *sizes[3:]))
        check(kernel, known, arrays(known, rng))


def test_steps_of_decoding(rng: np.random.Generator) -> None:
    """One query and any number of keys; threads share the keys of two heads."""
    n = compat.size_var("n")
    sizes = (("h", 2), ("m", 1), ("n", n), ("d", 24), ("e", 8))
    problem = Attention(
        sizes, "mhd", "nhd", "nhe", "mhe", ("float32",) * 4, 0.2, (Mask(ADD, "n", "float32"),),
        "bottom_right",
    )  # fmt: skip
    many = replace(MACHINE, threads=8)
    known = replace(problem, sizes=(*sizes[:2], ("n", 4096), *sizes[3:]))
    plan = choose(known, many)
    assert isinstance(plan, AttentionFewPlan) and plan.splits >= 4
    assert isinstance(choose(problem, MACHINE), AttentionFewPlan)
    kernel = built([kernels.build(problem, plan)])["f0"]
    for length in (1, 30, 700):
        known = replace(problem, sizes=(*sizes[:2], ("n", length), *sizes[3:]))
        check(kernel, known, arrays(known, rng))


def test_infinite_and_undefined_scores(rng: np.random.Generator) -> None:
    """NaN and infinite elements reach the queries that meet them, as in NumPy."""
    sizes = (("m", 9), ("n", 40), ("d", 4), ("e", 4))
    problem = Attention(sizes, "md", "nd", "ne", "me", ("float32",) * 4)
    operands = arrays(problem, rng)
    operands[0][2, 1], operands[0][5] = np.nan, np.inf
    operands[2][7, 1] = np.nan
    plans = [
        AttentionPlan(8, 1, 16, 4, 3, False, False, False),
        AttentionFewPlan(8, 4, 4, 1, 16, 3, 1, 2, False, False, False),
    ]
    library = built([kernels.build(problem, plan) for plan in plans])
    for name in ("f0", "f1"):
        check(library[name], problem, operands)


def test_scores_are_not_stored() -> None:
    """Workspace of tasks does not grow with the product of queries and keys."""
    layout = ("hmd", "hnd", "hne", "hme")
    small, large = (
        Attention((("h", 2), ("m", n), ("n", n), ("d", 40), ("e", 40)), *layout, ("float32",) * 4)
        for n in (1024, 8192)
    )
    plan = choose(large, MACHINE)
    used = [backend.workspace_bytes(kernels.build(one, plan), 2) for one in (small, large)]
    assert used[0] == used[1] and used[1] < 1 << 20


def test_heads_that_share_keys_become_queries() -> None:
    sizes = (("a", 1), ("h", 4), ("m", 3), ("n", 8), ("d", 2), ("e", 2))
    problem = Attention(sizes, "ahmd", "and", "ane", "ahme", ("float32",) * 4)
    merged = problem.merged()
    assert (merged.q, merged.k, merged.y, merged.size["m"]) == ("md", "nd", "me", 12)
    causal = replace(problem, causal="top_left").merged()
    assert (causal.q, causal.size["m"]) == ("hmd", 3)


def test_candidates_name_the_same_sums() -> None:
    """Every candidate fits the registers; estimates grow with the work."""
    sizes = (("h", 2), ("m", 64), ("n", 64), ("d", 40), ("e", 40))
    problem = Attention(sizes, "hmd", "hnd", "hne", "hme", ("float32",) * 4)
    costed = list(attention_candidates(problem, MACHINE))
    assert costed and all(
        plan.vectors * (max(plan.key_tile, plan.column_tile) + 1) < MACHINE.registers
        for _, plan in costed
    )
    few = replace(problem, sizes=(*sizes[:1], ("m", 4), *sizes[2:]))
    of_few = [plan for _, plan in attention_few_candidates(few, MACHINE)]
    assert of_few and all(
        plan.column_vectors * (plan.query_tile + 1) < MACHINE.registers
        and plan.inner_lanes + plan.inner_vectors < MACHINE.registers
        for plan in of_few
    )
    with pytest.raises(Refused, match="at most 16"):
        next(attention_few_candidates(problem, MACHINE))
    longer = replace(problem, sizes=(("h", 2), ("m", 64), ("n", 640), ("d", 40), ("e", 40)))
    assert min(costed)[0] < min(attention_candidates(longer, MACHINE), key=lambda a: a[0])[0]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"q": "mk"}, "attention: letters 'mk' must be 'md' and the batch"),
        ({"masks": (Mask("times", "mn", "float32"),)}, "attention: mask 'times' must be one of"),
    ],
)
def test_refusals(change: dict, line: str) -> None:
    sizes = (("m", 64), ("n", 64), ("d", 40), ("e", 40))
    problem = Attention(sizes, "md", "nd", "ne", "me", ("float32",) * 4)
    with pytest.raises(ValueError, match=line):
        replace(problem, **change)
