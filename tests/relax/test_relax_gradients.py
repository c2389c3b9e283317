# SPDX-License-Identifier: Apache-2.0
"""Gradients through ``relax.transform.Gradient``, against torch.autograd, to second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.script import relax as R

import relax_ext
from helpers import build, compare
from helpers.build import check_gradients, check_second_order
from helpers.cases import Case, cases, geometry_of, numbers
from helpers.faces import FaceCase
from helpers.named import NAMED
from helpers.profile import compiling
from topi_ext.spec.layout import Layouts

T, C = "conv_transpose", "conv"


def test_named_cases(rng: np.random.Generator) -> None:
    """The table of the forward test, differentiated."""
    check_gradients(list(NAMED.values()), rng)


@pytest.mark.parametrize("op", [T, C])
@pytest.mark.parametrize("rank", [1, 2, 3])
@compiling(1)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_call(op: str, rank: int, data, seed: int) -> None:
    some = data.draw(st.lists(cases(op, rank), min_size=6, max_size=6))
    check_gradients(some, np.random.default_rng(seed))


@compiling(1)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_call_as_wide_as_vectors(data, seed: int) -> None:
    """Channels and sizes around the widths of vector registers and tiles, bodies and tails."""
    wide = st.one_of(
        cases(C, 2, channels=(7, 8, 16, 17, 33), groups=(1, 1, 2), size=19),
        cases(T, 2, channels=(7, 8, 16, 17, 33), groups=(1, 1, 2), size=19),
        cases(T, 1, channels=(1, 15, 16, 31, 48), groups=(1, 2), size=70),
        cases(C, 2, channels=(1,), groups=(8, 19, 32), size=35),
    )
    some = data.draw(st.lists(wide, min_size=6, max_size=6))
    check_gradients(some, np.random.default_rng(seed))


@pytest.mark.parametrize("op", [T, C])
@pytest.mark.parametrize("rank", [1, 2, 3])
@compiling(1)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_second_order(op: str, rank: int, data, seed: int) -> None:
    some = data.draw(st.lists(cases(op, rank), min_size=3, max_size=3))
    check_second_order(some, np.random.default_rng(seed))


def test_second_order_in_layouts(rng: np.random.Generator) -> None:
    case = Case(T, (4, 5), (3, 2), ins=4, outs=6, groups=2, stride=(2, 1), dilation=(1, 2))
    check_second_order(
        [
            case.with_(data_layout="NHWC", kernel_layout="HWOI"),
            case.with_(data_layout="CHWN", kernel_layout="OWIH", out_layout="NHWC"),
            case.with_(op=C, size=(6, 7), data_layout="NHWC", kernel_layout="HWIO"),
        ],
        rng,
    )


@pytest.mark.smoke
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", [T, C])
def test_smoke(op: str, rank: int, rng: np.random.Generator) -> None:
    """Every attribute at once, to second order: the weight gradient's value and gradient too."""
    case = Case(
        op, (4, 5, 3)[:rank], (3, 2, 2)[:rank], ins=4, outs=6, groups=2, stride=(2, 1, 2)[:rank],
        padding=(1, 0, 2, 0, 1, 1)[: 2 * rank], dilation=(2, 3, 1)[:rank],
        output_padding=(1, 2, 0)[:rank] if op == T else (),
    )  # fmt: skip
    check_gradients([case], rng)
    check_second_order([case], rng)


def test_gradient_of_a_network(rng: np.random.Generator) -> None:
    """Strided convolution down, ReLU, transposed convolution up, squared error: a training step."""
    shapes = {
        "x": (2, 3, 9, 8), "w1": (8, 3, 3, 3), "b": (8,), "w2": (8, 3, 4, 4), "t": (2, 3, 10, 8)
    }  # fmt: skip

    def squared_error(w1: Any, b: Any, w2: Any, x: Any, t: Any) -> Any:
        down = relax.op.nn.conv2d(x, w1, strides=2, padding=1)
        biased = relax.op.add(down, relax.op.reshape(b, (1, 8, 1, 1)))
        up = relax.op.nn.conv2d_transpose(relax.op.nn.relu(biased), w2, strides=2, padding=1)
        error = build.emit(relax.op.subtract(up, t))
        return relax.op.mean(relax.op.multiply(error, error))

    arrays = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    given = [arrays[k] for k in ("w1", "b", "w2", "x", "t")]
    vm = build.compiled(build.differentiated(build.module(squared_error, *given), "main", 3))
    loss, *got = build.run(vm, "main_adjoint", *given)

    torch = pytest.importorskip("torch")
    leaves = {k: build.oracle.tensor(a, k in ("w1", "b", "w2")) for k, a in arrays.items()}
    F = torch.nn.functional
    down = F.conv2d(leaves["x"], leaves["w1"], leaves["b"], 2, 1)
    up = F.conv_transpose2d(F.relu(down), leaves["w2"], None, 2, 1)
    want = F.mse_loss(up, leaves["t"])
    np.testing.assert_allclose(loss, want.item(), rtol=1e-5)
    wanted = torch.autograd.grad(want, [leaves[k] for k in ("w1", "b", "w2")])
    for one, grad in zip(got, wanted):
        # Means over some 10**2 squares of sums of some 10**2 products.
        np.testing.assert_allclose(one, grad.numpy(), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- our own operators


def own_call(case: FaceCase, a: relax.Expr, b: relax.Expr) -> relax.Call:
    """``relax_ext.conv_weight_grad`` or ``relax_ext.conv_transpose``, in its own letters."""
    g, layouts = case.geometry, case.orders
    attributes = dict(
        strides=g.stride, padding=g.padding, dilation=g.dilation, groups=g.groups,
        out_dtype=case.dtypes[2],
    )  # fmt: skip
    if case.face == "conv_weight_grad":
        return relax_ext.conv_weight_grad(
            a, b, g.kernel, data_layout=layouts.x, kernel_layout=layouts.w, out_layout=layouts.y,
            **attributes,
        )  # fmt: skip
    return relax_ext.conv_transpose(
        a, b, g.x_size, data_layout=layouts.y,
        kernel_layout=layouts.w.translate(str.maketrans("IO", "OI")), out_layout=layouts.x,
        **attributes,
    )  # fmt: skip


def check_own(some: list[FaceCase], rng: np.random.Generator) -> None:
    bb = relax.BlockBuilder()
    for number, case in enumerate(some):
        a, b = (
            relax.Var(role, R.Tensor(case.stored_shape(role), dtype))
            for role, dtype in zip(case.roles[:2], case.dtypes)
        )
        with bb.function(f"f{number}", [a, b]):
            with bb.dataflow():
                out = bb.emit_output(own_call(case, a, b))
            bb.emit_func_output(out)
    vm = build.compiled(bb.get())
    for number, case in enumerate(some):
        a, b = case.arrays(rng)
        stored = [case.stored(role, v) for role, v in zip(case.roles, (a, b))]
        (got,) = build.run(vm, f"f{number}", *stored)
        case.check(got, a, b)


@pytest.mark.parametrize("face", ["conv_weight_grad", "conv_transpose"])
def test_own_operators(face: str, rng: np.random.Generator) -> None:
    """Called by the user, in layouts and dtypes that Gradient itself cannot ask for too."""
    case = Case(
        T, (5, 4), (3, 2), ins=4, outs=6, groups=2, stride=(2, 3), dilation=(1, 2),
        padding=(1, -1, 0, 2), output_padding=(1, 2),
    )  # fmt: skip
    g = geometry_of(case)
    some = [FaceCase(face, g, 3)]
    for dtypes in (
        ("bfloat16",) * 3, ("float16",) * 3, ("float64",) * 3, ("int8", "int8", "int32"),
        ("bfloat16", "bfloat16", "float32"),
    ):  # fmt: skip
        some.append(FaceCase(face, g, 3, None, dtypes))
    for layouts in (
        Layouts("NHWC", "OHWI", "NHWC"), Layouts("CHWN", "HWIO", "NCHW"),
        Layouts("NCHW", "IWOH", "WNHC"),
    ):  # fmt: skip
        some.append(FaceCase(face, g, 3, layouts))
    some.append(FaceCase(face, geometry_of(Case(T, (5,), (3,), stride=(2,))), 2))
    some.append(FaceCase(face, geometry_of(Case(C, (5, 6, 4), (3, 2, 1), stride=(2, 1, 3))), 2))
    some.append(FaceCase(face, g, 0))
    check_own(some, rng)


def test_bfloat16_weight_gradient_of_4096_positions(rng: np.random.Generator) -> None:
    """Within the last rounding: Gradient refuses bfloat16 itself, the operator does not."""
    g = geometry_of(Case(T, (32, 32), (2, 2), ins=3, outs=4, stride=(2, 2)))
    check_own([FaceCase("conv_weight_grad", g, 4, None, ("bfloat16",) * 3)], rng)


@pytest.mark.parametrize("face", ["conv_weight_grad", "conv_transpose"])
def test_gradients_of_own_operators(face: str, rng: np.random.Generator) -> None:
    """Differentiated as the user's own call, not only as part of another gradient."""
    case = Case(
        T, (5, 4), (3, 2), ins=4, outs=6, groups=2, stride=(2, 3), dilation=(1, 2),
        padding=(1, -1, 0, 2), output_padding=(1, 2),
    )  # fmt: skip
    own = FaceCase(face, geometry_of(case), 2)
    mod = build.module(
        lambda a, b, seed: relax.op.sum(relax.op.multiply(own_call(own, a, b), seed)),
        *map(own.stored_shape, own.roles),
    )
    vm = build.compiled(build.differentiated(mod, "main", 2))
    arrays = [numbers(rng, own.shape(role), "float32") for role in own.roles]
    _, *got = build.run(vm, "main_adjoint", *arrays)

    def both(*arrays: np.ndarray) -> list[np.ndarray]:
        a, b, seed = arrays
        pair = dict(zip(own.roles, (a, b, seed)))
        faces = {"x": "conv_transpose", "w": "conv_weight_grad", "y": "conv"}
        results = []
        for role in own.roles[:2]:
            other = FaceCase(faces[role], own.geometry, 2)
            results.append(other.want(*(pair[r] for r in other.roles[:2])))
        return results

    wanted = both(*arrays)
    limits = both(*(np.abs(v.astype(np.float64)) for v in arrays))
    for one, want, limit in zip(got, wanted, limits):
        compare.assert_close(one, want, limit, 200, dtypes=("float32",) * 3, what=face)


# ---------------------------------------------------------------- what stock gets wrong


STOCK_FAILS = {
    "conv2d with dilation": Case(C, (9, 8), (3, 2), dilation=(2, 3), stride=(2, 1)),
    "conv1d": Case(C, (9,), (3,)),
    "conv3d": Case(C, (3, 4, 3), (2, 2, 2)),
    "conv2d NHWC": Case(C, (6, 5), (3, 2), data_layout="NHWC", kernel_layout="HWIO"),
    "conv2d_transpose": Case(T, (4, 5), (3, 2), stride=(2, 2)),
}


@pytest.mark.parametrize("name", STOCK_FAILS)
def test_the_fix_is_what_these_tests_see(name: str, rng: np.random.Generator) -> None:
    with relax_ext.stock(), pytest.raises(Exception):  # noqa: B017
        check_gradients([STOCK_FAILS[name]], rng)
    check_gradients([STOCK_FAILS[name]], rng)
