# SPDX-License-Identifier: Apache-2.0
"""Dtypes through plain ``tvm.compile``: sums are wide, results are as exact as their dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

import relax_ext
from helpers import build, compare, oracle
from helpers.build import check_forward, check_gradients
from helpers.cases import Case, cases, permutations
from helpers.profile import compiling
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.reference import Reference

T, C = "conv_transpose", "conv"
DTYPES = [
    ("float64", ""),
    ("float32", ""),
    ("float16", ""),
    ("bfloat16", ""),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float32", "float64"),
    ("float32", "float16"),
    ("float64", "float32"),
    ("int8", ""),
    ("int8", "int32"),
    ("int8", "int16"),
    ("uint8", "int32"),
    ("int16", "int32"),
    ("int32", ""),
    ("int32", "int64"),
]


def typed(case: Case) -> list[Case]:
    return [case.with_(dtype=dtype, out_dtype=out) for dtype, out in DTYPES]


@pytest.mark.parametrize("op", [T, C])
def test_every_dtype(op: str, rng: np.random.Generator) -> None:
    case = Case(
        op, (6, 5), (3, 4), ins=12, outs=20, groups=2, stride=(2, 1), padding=(1, 0, 0, 2),
        dilation=(1, 2),
    )  # fmt: skip
    check_forward(typed(case), rng)


def test_every_dtype_depthwise_and_other_ranks(rng: np.random.Generator) -> None:
    depthwise = Case(T, (6, 9), (3, 4), ins=16, outs=16, groups=16, stride=(2, 2))
    line = Case(T, (33,), (5,), ins=3, outs=4, stride=(2,))
    cube = Case(T, (3, 4, 5), (2, 3, 2), ins=4, outs=3, stride=(2, 1, 2))
    check_forward([c for case in (depthwise, line, cube) for c in typed(case)[2:4]], rng)
    check_forward([c for case in (depthwise, line, cube) for c in typed(case)[9:11]], rng)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", [T, C])
def test_512_channels_within_rounding_of_float64(op: str, dtype: str, rng) -> None:
    """Only the last rounding shows; accumulated in the output dtype, bfloat16 errs by 13.6 %."""
    case = Case(
        op, (4, 4), (4, 4), n=1, ins=512, outs=8, stride=(2, 2), padding=(1,) * 4, dtype=dtype
    )
    check_forward([case], rng)
    # The same with positive operands, where every narrow addition rounds the same way.
    data, weight = (np.abs(a) for a in case.arrays(rng))
    vm = build.compiled(build.forward_module([case]))
    (got,) = build.run(vm, "f0", data, weight)
    want = case.forward(*map(build.oracle.tensor, (data, weight))).numpy()
    worst = (np.abs(got.astype(np.float64) - want) / want).max()
    assert worst <= 0.51 * compare.epsilon(dtype)


def test_stock_accumulates_in_the_output_dtype(rng: np.random.Generator) -> None:
    """The test above notices when our rules are taken out."""
    case = Case(T, (4, 4), (4, 4), n=1, ins=512, outs=8, stride=(2, 2), dtype="bfloat16")
    with relax_ext.stock(), pytest.raises(AssertionError, match="elements differ"):
        check_forward([case], rng)


def test_int8_without_out_dtype_wraps_a_32_bit_sum(rng: np.random.Generator) -> None:
    """The exact sum is cast modulo 256, as stock casts it."""
    case = Case(T, (3, 3), (2, 2), ins=64, outs=3, dtype="int8")
    data, weight = case.arrays(rng)
    vm = build.compiled(build.forward_module([case, case.with_(out_dtype="int32")]))
    narrow, wide = (build.run(vm, f"f{i}", data, weight)[0] for i in (0, 1))
    assert narrow.dtype == np.int8 and wide.dtype == np.int32
    np.testing.assert_array_equal(narrow, wide.astype(np.int8))
    assert np.abs(wide).max() > 127


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_gradients_carry_the_dtype_of_what_they_differentiate(dtype: str, rng) -> None:
    case = Case(T, (6, 5), (3, 4), ins=6, outs=10, groups=2, stride=(2, 1), padding=(1, 0, 0, 2))
    both = [
        c.with_(dtype=dtype, out_dtype=out)
        for c in (case, case.with_(op=C))
        for out in ("", "float32")
    ]
    check_gradients(both, rng)


def test_weight_gradient_of_many_positions_within_rounding(rng: np.random.Generator) -> None:
    """4096 products per element: a narrow sum would stop growing."""
    case = Case(T, (32, 32), (2, 2), n=4, ins=3, outs=4, stride=(2, 2), dtype="float16")
    check_gradients([case, case.with_(op=C, size=(64, 64))], rng)


def test_gradient_of_bfloat16_is_refused_by_the_pass_itself() -> None:
    """``relax.transform.Gradient`` takes no bfloat16 parameter, whatever the operators.

    The operators themselves do: test_relax_gradients.py runs our weight gradient in bfloat16.
    """
    case = Case(T, (3, 3), (2, 2), dtype="bfloat16")
    with pytest.raises(Exception, match="Only Tensors of floating point dtype"):
        build.gradient_module([case])


@compiling(2)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_call_in_any_dtype_and_layout(data, seed: int) -> None:
    some = []
    for _ in range(10):
        op, rank = data.draw(st.sampled_from([T, C])), data.draw(st.integers(1, 3))
        dtype, out = data.draw(st.sampled_from(DTYPES))
        datas, kernels = permutations(op, rank)
        case = data.draw(cases(op, rank, channels=(1, 2, 5, 16)))
        case = case.with_(
            dtype=dtype,
            out_dtype=out,
            data_layout=data.draw(st.sampled_from(datas)),
            kernel_layout=data.draw(st.sampled_from(kernels)),
            out_layout=data.draw(st.sampled_from(["", *datas])),
        )
        some.append(case)
    check_forward(some, np.random.default_rng(seed))


@pytest.mark.parametrize("op", [T, C])
def test_to_mixed_precision(op: str, rng: np.random.Generator) -> None:
    """float32 in, computed on float16 operands, float32 sums."""
    case = Case(op, (6, 5), (3, 4), ins=6, outs=10, groups=2, stride=(2, 1), padding=(1, 0, 0, 2))
    # Operands that float16 holds, so that rounding them is no difference.
    narrow = case.with_(dtype="float16", out_dtype="float32")
    data, weight = narrow.arrays(rng)
    mod = relax.transform.ToMixedPrecision()(build.forward_module([case]))
    assert "float16" in str(mod)
    operands = [a.astype(np.float32) for a in (data, weight)]
    (got,) = build.run(build.compiled(mod), "f0", *operands)
    # ToMixedPrecision itself stores what an operator gives as float16, if a later one reads it so.
    assert got.dtype == np.float32
    want = case.forward(*map(build.oracle.tensor, operands)).numpy()
    np.testing.assert_allclose(got, want, rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize("op", [T, C])
def test_to_mixed_precision_of_gradients(op: str, rng: np.random.Generator) -> None:
    """Our own weight gradient has a mixed-precision rule too."""
    case = Case(op, (6, 5), (3, 4), ins=6, outs=10, groups=2, stride=(2, 1), padding=(1, 0, 0, 2))
    mod = relax.transform.ToMixedPrecision()(build.gradient_module([case]))
    text = str(mod)
    line = next(line for line in text.splitlines() if "R.relax_ext.conv_weight_grad(" in line)
    assert 'out_dtype="float32"' in line
    narrow = case.with_(dtype="float16")
    data, weight = (a.astype(np.float32) for a in narrow.arrays(rng))
    seed = rng.standard_normal(case.out_shape).astype(np.float16).astype(np.float32)
    _, *got = build.run(build.compiled(mod), "f0_adjoint", data, weight, seed)
    for one, want in zip(got, build.gradients(case, data, weight, seed)):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, want, rtol=2**-9, atol=2**-8)


@pytest.mark.parametrize("name", ["conv_weight_grad", "conv_transpose"])
def test_to_mixed_precision_of_own_operators(name: str, rng: np.random.Generator) -> None:
    """Called without out_dtype: float16 operands then, and a float32 result all the same."""
    x, y = rng.integers(-9, 9, (2, 3, 8, 7)), rng.integers(-9, 9, (2, 4, 6, 6))
    w = rng.integers(-9, 9, (4, 3, 3, 2))
    first, second = (x, y) if name == "conv_weight_grad" else (y, w)
    size = (3, 2) if name == "conv_weight_grad" else (8, 7)
    mod = build.module(lambda a, b: getattr(relax_ext, name)(a, b, size), first.shape, second.shape)
    mod = relax.transform.ToMixedPrecision()(mod)
    line = next(line for line in str(mod).splitlines() if f"R.relax_ext.{name}(" in line)
    assert 'out_dtype="float32"' in line and "float16" in str(mod)
    (got,) = build.run(build.compiled(mod), "main", *(v.astype("float32") for v in (first, second)))
    g = Geometry.of_sizes("op", x.shape, y.shape, (3, 2))
    # Integers, so that nothing is rounded.
    np.testing.assert_array_equal(got, getattr(Reference(), name)(first, second, g))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", [T, C])
def test_behind_a_batch_norm(op: str, dtype: str, rng: np.random.Generator) -> None:
    """TVM legalizes it to float32; the convolution was emitted for half precision."""
    case = Case(op, (6, 5), (3, 3), ins=4, outs=8, dtype=dtype)

    def body(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
        ones = relax.const(np.ones(4, "float32"))
        stats = [build.emit(relax.op.astype(ones, dtype)) for _ in range(4)]
        normed = build.emit(relax.op.nn.batch_norm(data, *stats, 1, epsilon=0.0, training=False))
        value = build.emit(relax.op.nn.relu(relax.TupleGetItem(normed, 0)))
        return relax.op.negative(build.call(case, value, weight))

    arrays = case.arrays(rng)
    mod = build.module(body, *build.parameters(case))
    (got,) = build.run(build.compiled(mod), "main", *arrays)
    before, kernel = (oracle.tensor(array) for array in arrays)
    want = -case.forward(before.relu(), kernel)
    # The norm subtracts 1, adds 1, and rounds to half precision on its way: errors are those of 1.
    size = case.forward(before.relu() + 1, kernel.abs())
    limit = size * {"float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert str(got.dtype) == dtype
    assert (np.abs(got.astype("float64") - want.numpy()) <= limit.numpy()).all()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_batch_norm_keeps_its_dtype(dtype: str, training: bool, rng: np.random.Generator) -> None:
    """The result has the dtype that TVM infers; its own lowering gives float32, which stock() still
    does."""

    def body(*operands: relax.Expr) -> relax.Expr:
        normed = build.emit(relax.op.nn.batch_norm(*operands, 1, training=training))
        y = build.emit(relax.TupleGetItem(normed, 0))
        return relax.op.multiply(y, y)

    arrays = [rng.uniform(0.5, 2, shape).astype(dtype) for shape in ((2, 3, 4, 5), *[(3,)] * 4)]
    mod = build.module(body, *arrays)
    (got,) = build.run(build.compiled(mod), "main", *arrays)
    assert str(got.dtype) == dtype
    data, gamma, beta, mean, var = map(oracle.tensor, arrays)
    want = torch.nn.functional.batch_norm(data, mean, var, gamma, beta, training) ** 2
    # Rounded to half precision after the norm and after the product.
    limit = {"float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    np.testing.assert_allclose(got.astype("float64"), want.numpy(), rtol=limit, atol=limit)
    with relax_ext.stock():
        alone = relax.transform.LegalizeOps()(mod)["main"].script()
    assert 'R.Tensor((2, 3, 4, 5), dtype="float32")' in alone
