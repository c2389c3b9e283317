# SPDX-License-Identifier: Apache-2.0
"""The TE definitions, compiled as they stand, against PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te

from helpers.cases import SPATIAL, Case, any_case, geometry_of
from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.profile import compiling
from topi_ext.spec.layout import Layouts
from topi_ext.te import definitions

FACES = list(definitions.DEFINITIONS)
seeds = st.integers(0, 2**32 - 1)


def build(cases: list[FaceCase]) -> tvm.runtime.Executable:
    """One module: what takes long is compiling, and that is mostly per module."""
    functions = {}
    for number, case in enumerate(cases):
        a, b, _ = (
            te.placeholder(case.stored_shape(role), dtype, role)
            for role, dtype in zip(case.roles, case.dtypes)
        )
        out = definitions.DEFINITIONS[case.face](a, b, case.geometry, case.orders, case.dtypes[2])
        name = f"f{number}"
        functions[name] = te.create_prim_func([a, b, out]).with_attr("global_symbol", name)
    return tvm.compile(tvm.IRModule(functions), tvm.target.Target({"kind": "llvm"}))


def check(cases: list[FaceCase], seed: int) -> None:
    built, rng = build(cases), np.random.default_rng(seed)
    for number, case in enumerate(cases):
        a, b = case.arrays(rng)
        role, dtype = case.roles[2], case.dtypes[2]
        # Not zeros: an element that is never written has to show.
        out = tvm.runtime.tensor(np.full(case.stored_shape(role), 77, numpy_dtype(dtype)))
        stored = [case.stored(r, v) for r, v in zip(case.roles, (a, b))]
        built[f"f{number}"](*map(tvm.runtime.tensor, stored), out)
        case.check(out.numpy(), a, b)


@compiling(3)
@given(some=st.lists(any_case, min_size=6, max_size=6), seed=seeds)
def test_any_geometry(some: list[Case], seed: int) -> None:
    check([FaceCase(face, geometry_of(c), c.n) for c in some for face in FACES], seed)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layouts(rank: int) -> None:
    """Every permutation of every operand once; for 3-D every seventh."""
    case = Case(
        "conv_transpose", (3, 2, 4)[:rank], (2, 3, 2)[:rank], groups=2, ins=4, outs=6,
        stride=(2, 1, 3)[:rank], dilation=(1, 2, 1)[:rank], padding=(1, 0, 0, 0, 1, 1)[: 2 * rank],
    )  # fmt: skip
    data = ["".join(p) for p in itertools.permutations("NC" + SPATIAL[rank])]
    kernel = ["".join(p) for p in itertools.permutations("OI" + SPATIAL[rank])]
    step = {1: 1, 2: 1, 3: 7}[rank]
    check(
        [
            FaceCase(
                FACES[i // step % 3],
                geometry_of(case),
                layouts=Layouts(data[i], kernel[(5 * i + 3) % len(data)], data[-1 - i]),
            )
            for i in range(0, len(data), step)
        ],
        seed=0,
    )


@pytest.mark.parametrize("face", FACES)
def test_dtypes(face: str) -> None:
    """Whatever the operands, a sum of 512 and more products is as good as its output dtype."""
    dtypes = [
        ("float64",) * 3,
        ("float16",) * 3,
        ("bfloat16",) * 3,
        ("bfloat16", "bfloat16", "float32"),
        ("float32", "float32", "float16"),
        ("float32", "float32", "float64"),
        ("int8", "int8", "int8"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
        ("int16", "int16", "int64"),
    ]
    wide = Case("conv_transpose", (3, 3), (4, 4), n=60, stride=(2, 2), padding=(1,) * 4)
    if face == "conv":
        wide = wide.with_(outs=512, n=1)
    elif face == "conv_transpose":
        wide = wide.with_(ins=512, n=1)
    check([FaceCase(face, geometry_of(wide), wide.n, None, d) for d in dtypes], seed=1)


def test_empty_batch() -> None:
    """The weight gradient of a run-time empty batch is the adapters' business: a sum of nothing
    is never begun, so TE leaves its result unwritten.
    """
    case = geometry_of(Case("conv_transpose", (3, 2), (2, 2)))
    check([FaceCase(face, case, n=0) for face in ("conv", "conv_transpose")], seed=0)
