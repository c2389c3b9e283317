# SPDX-License-Identifier: Apache-2.0
"""Operators around convolutions under ``relax_ext.pipeline``: right, parallel, inlined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

import relax_ext
from helpers import build
from topi_ext.schedules.loops import parallelized

OP = relax.op

# Name: shapes of the operands, what is computed of them, and whether threads share it.
OPERATORS: dict[str, tuple[list[tuple], Callable[..., relax.Expr], bool]] = {
    "softmax": ([(64, 1000)], lambda bb, x: OP.nn.softmax(x, -1), True),
    "max_pool": ([(1, 64, 56, 56)], lambda bb, x: OP.nn.max_pool2d(x, (3, 3), (2, 2)), True),
    "avg_pool": ([(1, 64, 56, 56)], lambda bb, x: OP.nn.avg_pool2d(x, (2, 2), (2, 2)), True),
    "mean of images": ([(8, 64, 28, 28)], lambda bb, x: OP.mean(x, [2, 3], True), True),
    "gradient of a bias": ([(8, 64, 28, 28)], lambda bb, x: OP.sum(x, [0, 2, 3]), True),
    "sum of all": ([(8, 64, 28, 28)], lambda bb, x: OP.sum(x), False),
    "matmul": ([(33, 70), (70, 45)], lambda bb, x, y: OP.matmul(x, y), True),
    "matmul of a transposed": (
        [(33, 70), (45, 70)], lambda bb, x, y: OP.matmul(x, bb.emit(OP.permute_dims(y))), True,
    ),
    "vector by matrix": ([(1, 512), (512, 100)], lambda bb, x, y: OP.matmul(x, y), True),
    "element-wise": (
        [(2, 64, 28, 28)] * 2,
        lambda bb, x, y: OP.nn.relu(bb.emit(OP.add(bb.emit(OP.tanh(x)), y))),
        True,
    ),
    "concat": ([(1, 64, 28, 28)] * 2, lambda bb, x, y: OP.concat([x, y], 1), True),
    "concat between operators": (
        [(3, 32, 28, 28), (3, 80, 28, 28), (3, 1, 28, 28)],
        lambda bb, x, y, z: OP.tanh(bb.emit(OP.concat([bb.emit(OP.exp(x)), y, z], 1))),
        True,
    ),
    "concat of what a mean scales": (
        [(1, 64, 28, 28)] * 2,
        lambda bb, x, y: OP.concat([bb.emit(OP.multiply(x, bb.emit(OP.mean(y)))), y], 1),
        True,
    ),
    "concat of batches": ([(2, 8, 9), (5, 8, 9)], lambda bb, x, y: OP.concat([x, y], 0), False),
    "concat of rows": ([(600, 64), (600, 20)], lambda bb, x, y: OP.concat([x, y], 1), True),
    "resize": (
        [(1, 32, 28, 28)],
        lambda bb, x: OP.image.resize2d(x, (56, 56), method="linear", layout="NCHW"),
        True,
    ),
    "group_norm": (
        [(2, 64, 28, 28), (64,), (64,)],
        lambda bb, x, g, b: OP.nn.group_norm(x, g, b, 4, 1, [2, 3]),
        True,
    ),
    "a waveform": ([(1, 1, 65536)], lambda bb, x: OP.tanh(x), True),
    "few numbers": ([(4, 4)], lambda bb, x: OP.tanh(x), False),
    # Of which LLVM makes wrong vectors, unless a row is computed in parts of 8.
    "relative positions": (
        [(2, 64, 8, 1), (2, 64, 1, 8)],
        lambda bb, x, y: OP.reshape(bb.emit(OP.add(x, y)), (2, 64, 64)),
        False,
    ),
    "cumsum": ([(64, 1000)], lambda bb, x: OP.cumsum(x, 1), False),
}  # fmt: skip


def module(name: str, sizes: dict[int, object] | None = None) -> tvm.IRModule:
    shapes, body, _ = OPERATORS[name]
    shapes = [[(sizes or {}).get(size, size) for size in shape] for shape in shapes]
    return build.module(lambda *operands: body(relax.BlockBuilder.current(), *operands), *shapes)


def arrays(name: str, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype("float32") for shape in OPERATORS[name][0]]


def results(mod: tvm.IRModule, given: list[np.ndarray], **options: object) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(mod, build.target(), **options), tvm.cpu())
    return build.run(vm, "main", *given)[0]


@pytest.mark.parametrize("name", OPERATORS)
def test_values_are_those_of_stock(name: str, rng: np.random.Generator) -> None:
    """Values equal those of stock TVM: the same products, each sum in the same order; LLVM may
    contract some of them."""
    given = arrays(name, rng)
    ours = results(module(name), given, relax_pipeline=relax_ext.pipeline(build.target()))
    with relax_ext.stock():
        want = results(module(name), given)
    np.testing.assert_allclose(ours, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_threads_share_what_is_worth_it(name: str) -> None:
    lowered = relax.transform.LegalizeOps()(module(name))
    funcs = [f for _, f in lowered.functions_items() if not isinstance(f, relax.Function)]
    assert any("T.parallel" in parallelized(f).script() for f in funcs) == OPERATORS[name][2]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("concat", 2),
        ("concat between operators", 3),
        ("concat of batches", 2),
        ("concat of rows", 0),
    ],
)
def test_concatenations_are_copies_of_parts(name: str, parts: int) -> None:
    """The part is not chosen inside of a loop, unless rows are short."""
    fused = relax.transform.FuseTIR()(
        relax.transform.FuseOps()(
            relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(module(name)))
        )
    )
    funcs = [f for _, f in fused.functions_items() if not isinstance(f, relax.Function)]
    found = [parallelized(f).script().count("_partition") for f in funcs]
    assert max(found) == parts


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    """An axis of unknown size is parallel."""
    n = tvm.tirx.Var("n", "int64")
    given = arrays("element-wise", rng)
    mod = module("element-wise", {2: n})
    lowered = relax.transform.LegalizeOps()(mod)
    funcs = [f for _, f in lowered.functions_items() if not isinstance(f, relax.Function)]
    assert all("T.parallel" in parallelized(f).script() for f in funcs)
    got = results(mod, given, relax_pipeline=relax_ext.pipeline(build.target()))
    want = np.maximum(np.tanh(given[0]) + given[1], 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_scheduled_functions_are_left_alone() -> None:
    lowered = relax.transform.LegalizeOps()(module("concat"))
    (func,) = (f for _, f in lowered.functions_items() if not isinstance(f, relax.Function))
    once = parallelized(func)
    assert parallelized(once).same_as(once)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_columns_have_no_masked_stores(name: str) -> None:
    """They are several times slower than the comparisons on processors without AVX-512."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
    mod = build.module(lambda x: getattr(OP, name)(x, [0]), (8, 64, 32, 512))
    with target:
        mod = relax_ext.pipeline(target)(mod)
    (func,) = (f for v, f in mod.functions_items() if v.name_hint == name)
    text = tvm.tirx.build(func.with_attr("global_symbol", name), target).inspect_source("asm")
    assert f"v{name}ps" in text and "vmaskmovps" not in text
