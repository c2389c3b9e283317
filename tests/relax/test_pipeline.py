# SPDX-License-Identifier: Apache-2.0
"""``relax_ext.pipeline``: chains computed by one kernel, weights packed at compile time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax
from tvm.script import relax as R

import relax_ext
from helpers import build, compare, oracle
from helpers.cases import Case, numbers
from relax_ext.fusion.fuse import fuse_kernels
from relax_ext.pipeline import first_passes
from topi_ext.compat import tensor_type_of

T = "conv_transpose"
C = "conv"
NN = relax.op.nn

PLAIN = Case(C, (9, 11), (3, 3), ins=5, outs=6, padding=(1, 1, 1, 1))
STRIDED = Case(
    T, (9, 11), (4, 3), ins=16, outs=12, groups=2, stride=(2, 3), padding=(1, 0, 1, 2),
    output_padding=(1, 0),
)  # fmt: skip
SMALL = Case(T, (2, 3), (4, 4), ins=8, outs=6, stride=(2, 2), padding=(1, 1, 1, 1))
ONE = Case(T, (35,), (7,), ins=4, outs=5, stride=(3,))
VOLUME = Case(C, (3, 5, 4), (2, 3, 2), ins=4, outs=6, groups=2, stride=(1, 2, 1))
LAST = Case(
    T, (6, 5), (3, 2), ins=4, outs=6, stride=(2, 2), data_layout="NHWC", kernel_layout="HWIO"
)

Body = Callable[[relax.BlockBuilder, relax.Expr, Sequence[relax.Expr]], relax.Expr]


def chain(*steps: Callable[..., relax.Expr]) -> Body:
    """The steps one after the other; those that take an operand get the next one."""

    def body(bb: relax.BlockBuilder, value: relax.Expr, operands: Sequence[relax.Expr]):
        given = iter(operands)
        for step in steps:
            value = bb.emit(step(value, given) if step.__name__ == "<lambda>" else step(value))
        return value

    return body


def add(value, given):
    return relax.op.add(value, next(given))


def gelu_written_out(bb: relax.BlockBuilder, v: relax.Expr, _: Sequence[relax.Expr]) -> relax.Expr:
    """Emit gelu as ONNX before opset 20 writes it."""
    number = [relax.const(a, "float32") for a in (2**0.5, 1.0, 0.5)]
    erf = bb.emit(relax.op.erf(bb.emit(relax.op.divide(v, number[0]))))
    twice = bb.emit(relax.op.multiply(v, bb.emit(relax.op.add(erf, number[1]))))
    return bb.emit(relax.op.multiply(twice, number[2]))


def hard_swish(bb: relax.BlockBuilder, v: relax.Expr, operands: Sequence[relax.Expr]) -> relax.Expr:
    v = bb.emit(relax.op.add(v, operands[0]))
    gate = bb.emit(relax.op.clip(bb.emit(relax.op.add(v, relax.const(3.0, "float32"))), 0, 6))
    scaled = bb.emit(relax.op.divide(gate, relax.const(6.0, "float32")))
    return bb.emit(relax.op.multiply(v, scaled))


def turned_gelu(bb: relax.BlockBuilder, v: relax.Expr, _: Sequence[relax.Expr]) -> relax.Expr:
    """Channels become the last axis, and come back."""
    turned = bb.emit(relax.op.permute_dims(v, [0, 2, 3, 1]))
    return bb.emit(relax.op.permute_dims(bb.emit(NN.gelu(turned)), [0, 3, 1, 2]))


# Name: case, steps in Relax, the same in torch, and the operands' broadcast axes.
CHAINS = {
    "bias": (PLAIN, chain(lambda v, g: add(v, g)), lambda v, b: v + b, ["C"]),
    "bias and relu": (
        STRIDED, chain(lambda v, g: add(v, g), NN.relu), lambda v, b: F.relu(v + b), ["C"],
    ),
    "bias and tanh of a small image": (
        SMALL, chain(lambda v, g: add(v, g), relax.op.tanh), lambda v, b: torch.tanh(v + b), ["C"],
    ),
    "batch norm and leaky relu": (
        STRIDED,
        chain(
            lambda v, g: relax.op.subtract(v, next(g)),
            lambda v, g: relax.op.divide(v, next(g)),
            lambda v, g: relax.op.multiply(v, next(g)),
            lambda v, g: relax.op.add(v, next(g)),
            lambda v, g: NN.leakyrelu(v, 0.3),
        ),
        lambda v, m, s, a, b: F.leaky_relu((v - m) / s * a + b, 0.3),
        ["C"] * 4,
    ),
    "residual on the left": (
        VOLUME,
        chain(lambda v, g: relax.op.add(next(g), v), NN.relu),
        lambda v, r: F.relu(r + v),
        ["NCDHW"],
    ),
    "mean of three": (
        ONE,
        chain(lambda v, g: add(v, g), lambda v, g: relax.op.divide(v, relax.const(3.0, "float32"))),
        lambda v, r: (v + r) / 3,
        ["NCW"],
    ),
    "mask of an image, scale of a sample": (
        PLAIN,
        chain(
            lambda v, g: relax.op.multiply(v, next(g)), lambda v, g: relax.op.multiply(next(g), v)
        ),
        lambda v, m, s: v * m * s,
        ["HW", "NC"],
    ),
    "sigmoid": (ONE, chain(relax.op.sigmoid), torch.sigmoid, []),
    "gelu": (ONE, chain(NN.gelu), F.gelu, []),
    "gelu by tanh": (SMALL, chain(NN.gelu_tanh), lambda v: F.gelu(v, approximate="tanh"), []),
    "gelu written out": (PLAIN, gelu_written_out, F.gelu, []),
    "hard swish of a sum": (SMALL, hard_swish, lambda v, b: F.hardswish(v + b), ["C"]),
    "twice the same": (ONE, chain(lambda v, _: relax.op.add(v, v)), lambda v: v + v, []),
    "silu of a small image": (SMALL, chain(NN.silu), F.silu, []),
    "sigmoid and tanh": (
        PLAIN, chain(relax.op.sigmoid, relax.op.tanh), lambda v: v.sigmoid().tanh(), [],
    ),
    "relu, scale, silu and tanh": (
        SMALL,
        chain(NN.relu, lambda v, g: relax.op.multiply(v, next(g)), NN.silu, relax.op.tanh),
        lambda v, s: torch.tanh(F.silu(F.relu(v) * s)),
        ["C"],
    ),
    "channels last": (
        LAST, chain(lambda v, g: add(v, g), NN.relu), lambda v, b: F.relu(v + b), ["C"],
    ),
}  # fmt: skip


def operand_shape(case: Case, axes: str) -> tuple[int, ...]:
    """Canonical shape of an operand that varies along `axes`."""
    return tuple(n if a in axes else 1 for a, n in zip(case.data_canonical, case.out_shape))


def module(case: Case, body: Body, axes: Sequence[str], weight: np.ndarray | None = None):
    """``main(data, weight, *operands)``, or with the weight as a constant."""
    data, variable = build.parameters(case)
    operands = []
    for number, varies in enumerate(axes):
        shape = case.stored(np.empty(operand_shape(case, varies), np.int8), 2).shape
        operands.append(relax.Var(f"operand{number}", R.Tensor(shape, case.dtypes[2])))
    given = variable if weight is None else relax.const(weight)
    variables = [data, *([variable] if weight is None else []), *operands]

    def whole(*_: relax.Var) -> relax.Expr:
        bb = relax.BlockBuilder.current()
        return body(bb, bb.emit(build.call(case, data, given)), operands)

    return build.module(whole, *variables)


def fused(mod: tvm.IRModule) -> tvm.IRModule:
    with build.target():
        return fuse_kernels(mod)


def calls(mod: tvm.IRModule) -> list[str]:
    """Return the callees of ``main``: operators, and kernels as ``call_tir``."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                found.append(str(binding.value.op.name).rpartition(".")[2])
    return found


compiled = partial(build.compiled, pipeline=True)


def check(case: Case, got: np.ndarray, want: torch.Tensor, limit: torch.Tensor) -> None:
    # Steps round a few times more, and multiply what the sum has erred by at most a factor of 8.
    compare.assert_close(
        case.opened(got, 2), want.numpy(), 8 * limit.numpy() + 8, case.terms, dtypes=case.dtypes,
        what=case,
    )  # fmt: skip


def expected(
    case: Case, data: np.ndarray, weight: np.ndarray, steps: Callable, operands: Sequence
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chain in float64, and how large the sum before it can be."""
    value = case.forward(oracle.tensor(data), oracle.tensor(weight))
    limit = case.forward(oracle.tensor(np.abs(data)), oracle.tensor(np.abs(weight)))
    return steps(value, *map(oracle.tensor, operands)), limit


def operands_of(case: Case, axes: Sequence[str], rng: np.random.Generator) -> list[np.ndarray]:
    # Away from zero, since some of them divide.
    return [
        (np.abs(numbers(rng, operand_shape(case, varies), case.dtypes[2])) + 0.5).astype(
            compare.numpy_dtype(case.dtypes[2])
        )
        for varies in axes
    ]


@pytest.mark.parametrize("constant", [False, True], ids=["weight given", "weight constant"])
def test_chains(constant: bool, rng: np.random.Generator) -> None:
    """One kernel computes each chain; its values are PyTorch's."""
    modules, given = {}, {}
    for name, (case, body, _, axes) in CHAINS.items():
        data, weight = case.arrays(rng)
        given[name] = data, weight, operands_of(case, axes, rng)
        mod = module(case, body, axes, case.stored(weight, 1) if constant else None)
        found = calls(fused(mod))
        assert found in (["call_tir"], ["call_tir"] * (2 if constant else 1)), name
        modules[name] = mod
    vm = compiled(build.joined(modules))
    for name, (case, _, steps, _) in CHAINS.items():
        data, weight, operands = given[name]
        arrays = [case.stored(data, 0)] + [case.stored(weight, 1)] * (not constant)
        arrays += [case.stored(operand, 2) for operand in operands]
        (got,) = build.run(vm, name, *arrays)
        check(case, got, *expected(case, data, weight, steps, operands))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype: str, rng: np.random.Generator) -> None:
    """Steps are computed in the dtype of the sums; one rounding comes last."""
    case = Case(T, (9, 11), (4, 4), ins=64, outs=3, stride=(2, 2), padding=(1,) * 4, dtype=dtype)
    body = chain(lambda v, g: add(v, g), relax.op.tanh)
    data, weight = case.arrays(rng)
    (bias,) = operands_of(case, ["C"], rng)
    arrays = [case.stored(a, which) for which, a in enumerate((data, weight, bias))]
    (got,) = build.run(compiled(module(case, body, ["C"])), "main", *arrays)
    want, limit = expected(case, data, weight, lambda v, b: torch.tanh(v + b), [bias])
    check(case, got, want, limit)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_division_by_the_number_zero(zero: float, rng: np.random.Generator) -> None:
    """TVM itself refuses to fold it.  A sum of nothing but zeros gives NaN, as in PyTorch."""
    body = chain(lambda v, _: relax.op.divide(v, relax.const(zero, "float32")), NN.relu)
    data, weight = PLAIN.arrays(rng)
    weight[0] = 0
    (got,) = build.run(compiled(module(PLAIN, body, [])), "main", data, weight)
    sums = PLAIN.forward(oracle.tensor(data), oracle.tensor(weight))
    np.testing.assert_array_equal(got, F.relu(sums / zero))


def test_many_functions_in_a_row_build_soon() -> None:
    """TVM would put each value into all of its uses: seven in a row took 20 seconds."""
    mod = module(PLAIN, chain(*[NN.relu] * 7), [])
    began = time.process_time()
    compiled(mod)
    assert time.process_time() - began < 5


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    """A residual of symbolic size is an operand; a wrong one is refused when it runs."""
    n, h, w = (tvm.tirx.Var(name, "int64") for name in "nhw")

    def added(x: relax.Expr, k: relax.Expr, residual: relax.Expr) -> relax.Expr:
        return NN.relu(relax.op.add(NN.conv2d(x, k, padding=1), residual))

    mod = build.module(added, [n, 4, h, w], [6, 4, 3, 3], [n, 6, h, w])
    assert calls(fused(mod)) == ["call_tir"]
    vm = compiled(mod)
    for size in ((2, 5, 7), (1, 33, 18)):
        arrays = [
            rng.standard_normal(shape).astype("float32")
            for shape in ((size[0], 4, *size[1:]), (6, 4, 3, 3), (size[0], 6, *size[1:]))
        ]
        x, k, r = map(oracle.tensor, arrays)
        want = F.relu(F.conv2d(x, k, padding=1) + r)
        np.testing.assert_allclose(build.run(vm, "main", *arrays)[0], want, rtol=0, atol=1e-5)
    with pytest.raises(Exception, match=r"(?i)shape|match"):
        build.run(vm, "main", *arrays[:2], arrays[2][:, :, 1:])


def test_packed_weights_of_a_long_dilation(rng: np.random.Generator) -> None:
    """An atrous pyramid of any batch leaves out padding, because its images have a known size."""
    n, kernel = tvm.tirx.Var("n", "int64"), rng.standard_normal((32, 24, 3, 3)).astype("float32")

    def layer(x: relax.Expr) -> relax.Expr:
        y = NN.conv2d(x, relax.const(kernel), padding=12, dilation=12)
        return NN.relu(relax.op.add(y, relax.const(np.float32(3))))

    vm = compiled(build.module(layer, [n, 24, 17, 16]))
    for batch in (1, 3):
        x = rng.standard_normal((batch, 24, 17, 16)).astype("float32")
        want = F.relu(
            F.conv2d(oracle.tensor(x), oracle.tensor(kernel), padding=12, dilation=12) + 3
        )
        # Sums of up to 216 products of float32.
        np.testing.assert_allclose(build.run(vm, "main", x)[0], want, rtol=0, atol=1e-4)


def test_what_two_read_is_written(rng: np.random.Generator) -> None:
    """A sum that something else reads too ends its chain."""

    def body(bb, value, operands):
        first = bb.emit(relax.op.add(value, operands[0]))
        return bb.emit(relax.op.multiply(bb.emit(relax.op.abs(first)), first))

    mod = module(PLAIN, body, ["C"])
    assert calls(fused(mod)) == ["call_tir", "abs", "multiply"]
    data, weight = PLAIN.arrays(rng)
    (bias,) = operands_of(PLAIN, ["C"], rng)
    (got,) = build.run(compiled(mod), "main", data, weight, bias)
    want, limit = expected(PLAIN, data, weight, lambda v, b: (v + b).abs() * (v + b), [bias])
    check(PLAIN, got, want, limit * (1 + want.abs()))


def test_what_enlarges_the_result_is_no_step() -> None:
    """An operand whose batch is larger than the sum's."""
    case = Case(C, (9, 11), (3, 3), n=1)
    mod = build.module(
        lambda data, weight, other: relax.op.add(build.call(case, data, weight), other),
        *build.parameters(case),
        [4, 3, 7, 9],
    )
    assert calls(fused(mod)) == ["call_tir", "add"]


def test_a_step_between_transposes_is_part_of_the_kernel(rng: np.random.Generator) -> None:
    """They come behind it; those at the end of a chain stay for what reads them."""
    mod = module(PLAIN, turned_gelu, [])
    assert calls(fused(mod)) == ["call_tir", "permute_dims", "permute_dims"]
    data, weight = PLAIN.arrays(rng)
    (got,) = build.run(compiled(mod), "main", data, weight)
    check(PLAIN, got, *expected(PLAIN, data, weight, F.gelu, []))


def test_values_that_moved_are_no_operands() -> None:
    """A square that is added to its transpose."""
    case = Case(C, (5, 5), (1, 1), ins=4, outs=6)

    def body(bb, v, _):
        turned = bb.emit(NN.relu(bb.emit(relax.op.permute_dims(v, [0, 1, 3, 2]))))
        return bb.emit(relax.op.add(v, turned))

    assert calls(fused(module(case, body, []))) == ["call_tir", "permute_dims", "relu", "add"]


def test_constant_weights_are_packed_once(rng: np.random.Generator) -> None:
    """Compiled code holds the packed weights; nothing is left to pack when it runs."""
    # No two taps are neighbours, so none are combined: as many are packed as there are.
    case = Case(T, (24, 24), (2, 2), ins=16, outs=16, stride=(2, 2))
    _, weight = case.arrays(rng)
    mod = fused(module(case, chain(NN.relu), [], weight))
    assert calls(mod) == ["call_tir"] * 2
    mod = relax.transform.FoldConstant()(mod)
    assert calls(mod) == ["call_tir"]
    kernel = mod["main"].body.blocks[0].bindings[0].value
    packed = tensor_type_of(kernel.args[1].fields[1])
    assert [int(size) for size in packed.shape] == [weight.size]


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(training: bool, rng: np.random.Generator) -> None:
    """Folded into the kernel in inference; in training its statistics are the batch's."""

    def normed(data: relax.Expr, weight: relax.Expr, *stats: relax.Expr) -> relax.Expr:
        y = build.call(PLAIN, data, weight)
        normed = build.emit(NN.batch_norm(y, *stats, 1, epsilon=1e-5, training=training))
        return NN.relu(relax.TupleGetItem(normed, 0))

    mod = build.module(normed, *build.parameters(PLAIN), *[(6,)] * 4)
    arrays = [*PLAIN.arrays(rng), *(np.abs(rng.standard_normal((4, 6))) + 0.5).astype("float32")]
    (got,) = build.run(compiled(mod), "main", *arrays)
    gamma, beta, mean, var = map(oracle.tensor, arrays[2:])

    def steps(v: torch.Tensor) -> torch.Tensor:
        return F.relu(F.batch_norm(v, mean, var, gamma, beta, training, eps=1e-5))

    check(PLAIN, got, *expected(PLAIN, *arrays[:2], steps, []))


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        (STRIDED, "_add_sigmoid_multiply"),
        (VOLUME, "_add_sigmoid_multiply"),
        (LAST, "_add_sigmoid_multiply"),
        (replace(PLAIN, dtype="float16"), "_multiply_add_sigmoid_multiply"),
    ],
    ids=["groups of a transpose", "groups", "channels last", "halves"],
)
def test_batch_norm_of_constants(case: Case, steps: str, rng: np.random.Generator) -> None:
    """Float32 weights take the factor, and one addition is left; halves would be rounded again."""
    data, weight = case.arrays(rng)
    bias, gamma, beta, mean = rng.standard_normal((4, case.outs)).astype(case.dtype)
    var = (np.abs(gamma) + 0.5).astype(case.dtype)
    axis = case.layouts[2].index("C")

    def body(bb: relax.BlockBuilder, v: relax.Expr, _: Sequence[relax.Expr]) -> relax.Expr:
        shape = case.stored(np.empty(operand_shape(case, "C")), 2).shape
        v = bb.emit(relax.op.add(v, relax.const(bias.reshape(shape))))
        stats = map(relax.const, (gamma, beta, mean, var))
        normed = bb.emit(NN.batch_norm(v, *stats, axis, epsilon=1e-5, training=False))
        v = bb.emit(relax.TupleGetItem(normed, 0))
        return bb.emit(relax.op.multiply(v, bb.emit(relax.op.sigmoid(v))))

    mod = module(case, body, [], case.stored(weight, 1))
    with build.target():
        names = tvm.transform.Sequential(first_passes(mod))(mod).get_global_vars()
    assert case.name + steps in [name.name_hint for name in names]
    stats = [oracle.tensor(a) for a in (mean, var, gamma, beta)]

    def norm(v: torch.Tensor) -> torch.Tensor:
        v = v + oracle.tensor(bias).reshape(-1, *[1] * case.rank)
        return F.silu(F.batch_norm(v, *stats, eps=1e-5))

    (got,) = build.run(compiled(mod), "main", case.stored(data, 0))
    check(case, got, *expected(case, data, weight, norm, []))


@pytest.mark.parametrize(
    "name", ["relu", "leakyrelu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"]
)
def test_activation_of_every_size(name: str) -> None:
    """Apply every activation to numbers from the smallest to the largest, infinities and NaN,
    through a 1x1 kernel of 1.

    Float32 functions may err by 4 units in the last place of float32; gelu, whose tail is a small
    difference, by as many of its argument where that is small, and beyond it is zero.
    """
    exponents = np.linspace(-45, 38, 2000)
    x = np.concatenate([10.0**exponents, np.linspace(0, 100, 4001), [0.0, np.inf, np.nan]])
    x = np.concatenate([x, -x]).astype("float32").reshape(1, 1, 1, -1)
    case = Case(C, x.shape[2:], (1, 1), n=1, ins=1, outs=1)
    step = getattr(relax.op.nn, name, None) or getattr(relax.op, name)
    vm = compiled(module(case, lambda bb, value, _: bb.emit(step(value)), []))
    (got,) = build.run(vm, "main", x, np.ones((1, 1, 1, 1), "float32"))
    of = {
        "leakyrelu": lambda v: F.leaky_relu(v, 0.01),
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        **{one: getattr(F, one) for one in ("relu", "silu", "gelu")},
    }
    want = of.get(name, getattr(torch, name, None))(torch.tensor(x.astype(np.float64))).numpy()
    # silu(-inf) is NaN by its formula, -inf * 0; torch's float32 kernel gives the same.
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    inside = np.isfinite(want)
    # Below 1e-36 float32 cannot state exp(-x), here as in PyTorch.
    sizes = np.abs(want)
    if "gelu" in name:
        sizes = np.where(np.abs(x) < 10, np.abs(x), sizes)
    limit = 4 * np.finfo("float32").eps * sizes[inside] + 1e-36
    wrong = ~(np.abs(got[inside] - want[inside]) <= limit)
    assert not wrong.any(), f"{name} of {x[inside][wrong]} is {got[inside][wrong]}"
    np.testing.assert_array_equal(got[~inside], want[~inside].astype("float32"))


def test_other_targets_get_their_own_pipeline() -> None:
    """On targets without kernels of ours, TVM's default pipeline runs unchanged."""
    metal = tvm.target.Target({"kind": "metal"})
    assert relax_ext.pipeline(metal) is not None
    with metal:
        mod = fuse_kernels(module(*_bias_relu()))
    assert calls(mod) == ["conv2d", "add", "relu"]


def _bias_relu() -> tuple[Case, Body, list[str]]:
    return PLAIN, chain(lambda v, g: add(v, g), NN.relu), ["C"]
