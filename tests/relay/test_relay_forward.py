# SPDX-License-Identifier: Apache-2.0
"""Every rank, window, layout, dtype and executor, compared with PyTorch in float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relay, te

from helpers.cases import Case, cases, numbers, permutations
from helpers.profile import FUZZ, compiling
from helpers.relay import call, check_forward, module, parameters, run, target
from topi_ext import backend

T, C = "conv_transpose", "conv"


def template(op: str, rank: int) -> Case:
    """All sizes differ, so that an axis taken for another is an error or a wrong value."""
    return Case(
        op, (5, 4, 6)[-rank:], (3, 2, 4)[-rank:], n=3, ins=4, outs=6, groups=2,
        stride=(1, 2, 3)[-rank:], padding=(0, 1, 2)[-rank:] + (1, 2, 0)[-rank:],
        output_padding=(0, 1, 0)[-rank:] if op == T else (), dilation=(2, 1, 2)[-rank:],
    )  # fmt: skip


ALL = [template(op, rank) for op in (T, C) for rank in (1, 2, 3)]


@pytest.mark.smoke
def test_every_rank(rng: np.random.Generator) -> None:
    check_forward(ALL, rng)


@pytest.mark.parametrize("opt_level", [0, 1, 2])
def test_channels_and_kernel_size_may_be_omitted(opt_level: int, rng: np.random.Generator) -> None:
    check_forward([case for case in ALL if case.rank < 3], rng, stated=False, opt_level=opt_level)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_executors(executor: str, rng: np.random.Generator) -> None:
    check_forward([template(T, 2), template(C, 2)], rng, executor=executor)


@pytest.mark.parametrize("batch", [2, relay.Any()], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("rank", "stated"),
    [
        (1, {"padding": (1,), "output_padding": (1, 0)}),  # as some callers of stock do
        (2, {"padding": (1, 1), "output_padding": (1,)}),
    ],
)
def test_windows_in_few_values(rank: int, stated: dict, batch, rng: np.random.Generator) -> None:
    """One value for all axes and sides; rank 1 takes the first output padding of several."""
    case = Case(
        T, (5, 4)[:rank], (3, 2)[:rank], n=2, ins=4, outs=3, stride=(2,) * rank,
        padding=(1,) * 2 * rank, output_padding=(1,) * rank,
    )  # fmt: skip
    operands = case.arrays(rng)
    data = relay.var("data", shape=(batch, *operands[0].shape[1:]))
    weight = relay.var("weight", shape=operands[1].shape)
    attributes = {**case.attributes(), **stated}
    conv_transpose = getattr(relay.nn, case.name)
    body = conv_transpose(data, weight, channels=3, kernel_size=case.kernel, **attributes)
    mod = tvm.IRModule.from_expr(relay.Function([data, weight], body))
    (got,) = run(mod, operands, executor="graph" if batch == 2 else "vm")
    case.check(got, *operands)


def test_windows_that_stock_refuses(rng: np.random.Generator) -> None:
    check_forward(
        [
            Case(T, (4, 3), (3, 3), dilation=(2, 2)),
            Case(T, (4, 3), (3, 2), stride=(1, 2), dilation=(3, 1), output_padding=(2, 1)),
            Case(T, (4, 3), (2, 1), stride=(3, 2)),
            Case(T, (4, 3), (3, 3), padding=(-1, 0, 2, -2)),
            Case(T, (3, 2, 3), (2, 2, 2), ins=4, outs=8, groups=4),
            Case(C, (5, 4, 3), (2, 2, 2), ins=4, outs=8, groups=4),
            Case(C, (5, 6), (2, 3), padding=(-1, 1, 0, -1)),
        ],
        rng,
    )


@compiling(3)
@given(st.data())
def test_random_windows(data: st.DataObject) -> None:
    some = st.one_of(*(cases(op, rank) for op in (T, C) for rank in (1, 2)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    check_forward([data.draw(some) for _ in range(4)], rng)


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", [T, C])
def test_layouts(op: str, rank: int, opt_level: int, rng: np.random.Generator) -> None:
    """Permutations walk at different paces, so that they meet in ever new combinations."""
    data, kernel = permutations(op, rank)
    total = len(data)
    every = 1 if FUZZ else max(1, total // (6 if rank < 3 else 2))
    check_forward(
        [
            template(op, rank).with_(
                data_layout=data[i],
                kernel_layout=kernel[(5 * i + 3) % total],
                out_layout=data[(7 * i + 11) % total],
            )
            for i in range(opt_level, total, every)
        ],
        rng,
        opt_level=opt_level,
    )


def test_blocked_layouts(rng: np.random.Generator) -> None:
    base = template(T, 2)
    check_forward(
        [base.with_(data_layout="NCHW4c", out_layout="NCHW2c"), base.with_(data_layout="NCHW2c")],
        rng,
    )


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        ("float16", ""), ("bfloat16", ""), ("float64", ""), ("float16", "float32"),
        ("int8", "int32"), ("uint8", "int32"), ("float32", "float64"),
    ],
)  # fmt: skip
def test_dtypes(dtype: str, out_dtype: str, rng: np.random.Generator) -> None:
    changes = {"dtype": dtype, "out_dtype": out_dtype}
    check_forward([template(op, 2).with_(**changes) for op in (T, C)], rng)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_largest_integers_do_not_saturate(dtype: str) -> None:
    """Stock adds pairs of products in 16 bits on AVX2, which hold one but not two."""
    largest, weight = np.iinfo(dtype).max, 127
    operands = [np.full((1, 16, 4, 4), largest, dtype), np.full((16, 16, 3, 3), weight, "int8")]
    x, w = (relay.var(v, shape=a.shape, dtype=str(a.dtype)) for v, a in zip("xw", operands))
    body = relay.nn.conv2d(x, w, channels=16, kernel_size=(3, 3), out_dtype="int32")
    (got,) = run(tvm.IRModule.from_expr(relay.Function([x, w], body)), operands)
    np.testing.assert_array_equal(got, np.full((1, 16, 2, 2), 16 * 9 * int(largest) * weight))


def bytes_module(shapes, dtype: str, **attributes) -> tvm.IRModule:
    x, w = (relay.var(v, shape=s, dtype=d) for v, s, d in zip("xw", shapes, (dtype, "int8")))
    outs, _, *kernel = shapes[1]
    stated = {"channels": outs, "kernel_size": kernel, "out_dtype": "int32", **attributes}
    return tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.conv2d(x, w, **stated)))


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize(
    ("ins", "outs", "kernel", "dilation", "size"),
    [
        (64, 32, 1, 1, 9),
        (64, 32, 3, 1, 9),
        (3, 20, 3, 1, 9),
        (64, 32, 3, 2, 9),
        (30, 20, 3, 2, 9),
        (32, 20, 3, 1, 20),
        (32, 20, 1, 1, 20),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sums_of_bytes(
    dtype: str, ins: int, outs: int, kernel: int, dilation: int, size: int, opt_level: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Exact over the whole range, whoever computes them."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    shapes = (2, ins, size, size), (outs, ins, kernel, kernel)
    mod = bytes_module(shapes, dtype, padding=(kernel // 2,) * 2, dilation=(dilation,) * 2)
    data = rng.integers(low, high + 1, shapes[0]).astype(dtype)
    data[0] = high
    weight = rng.integers(-128, 128, shapes[1]).astype("int8")
    weight[0] = 127
    (got,) = run(mod, [data, weight], opt_level=opt_level)
    wide = (torch.from_numpy(array.astype(np.int64)) for array in (data, weight))
    wanted = torch.nn.functional.conv2d(*wide, padding=kernel // 2, dilation=dilation)
    np.testing.assert_array_equal(got, wanted.numpy())


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("processor", "shapes", "attributes", "left"),
    [
        ("cascadelake", ((1, 64, 9, 9), (32, 64, 3, 3)), {}, True),
        ("icelake-client", ((1, 64, 9, 9), (32, 64, 1, 1)), {}, True),
        ("cascadelake", ((1, 64, 12, 12), (32, 64, 3, 3)), {}, "uint8"),
        ("cascadelake", ((7, 64, 12, 12), (32, 64, 3, 3)), {}, False),
        ("cascadelake", ((1, 64, 19, 21), (32, 64, 1, 1)), {}, True),
        ("cascadelake", ((1, 64, 20, 20), (32, 64, 1, 1)), {}, False),
        ("skylake-avx512", ((1, 64, 9, 9), (32, 64, 3, 3)), {}, False),
        ("core-avx2", ((1, 64, 9, 9), (32, 64, 3, 3)), {}, False),
        ("cascadelake", ((1, 3, 9, 9), (20, 3, 3, 3)), {}, True),
        ("cascadelake", ((1, 3, 9, 9), (32, 3, 1, 1)), {}, False),
        ("cascadelake", ((1, 64, 9, 9), (5, 64, 3, 3)), {}, False),
        ("cascadelake", ((1, 30, 9, 9), (32, 30, 3, 3)), {"dilation": (2, 2)}, False),
        ("cascadelake", ((relay.Any(), 64, 9, 9), (32, 64, 3, 3)), {}, False),
        ("cascadelake", ((1, 64, 9, 9), (32, 64, 3, 3)), {"dilation": (2, 2)}, "uint8"),
        ("cascadelake", ((1, 64, 9, 9), (32, 32, 3, 3)), {"groups": 2}, False),
        ("cascadelake", ((1, 64, 9, 9), (32, 64, 3, 3)), {"kernel_size": None}, False),
    ],
)
def test_sums_of_bytes_are_left_to_tvm_with_vnni(
    dtype: str, processor: str, shapes, attributes: dict, left: bool
) -> None:
    """Sums of few positions are left to TVM with VNNI; without VNNI TVM adds pairs in 16 bits,
    which saturate."""
    if "x86_64" not in map(str, tvm.target.codegen.llvm_get_targets()):
        pytest.skip("this TVM does not compile for x86")
    on = f"llvm -mtriple=x86_64-linux-gnu -mcpu={processor} -num-cores=2"
    with tvm.transform.PassContext(opt_level=3):
        made, _ = relay.optimize(bytes_module(shapes, dtype, **attributes), on)
    assert ("nn.contrib_conv2d_NCHWc" in str(made)) == (left in (True, dtype))


@pytest.mark.parametrize("on", ["core-avx2", "skylake-avx512", "cascadelake"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_depthwise_integers_in_nhwc_are_left_to_tvm(dtype: str, on: str) -> None:
    """Channels are neighbours, and lanes there; no pairs are added."""
    x = te.placeholder((1, 9, 8, 32), dtype)
    w = te.placeholder((3, 3, 32, 1), "int16" if dtype == "int16" else "int8")
    data, weight = (relay.var("", shape=t.shape, dtype=t.dtype) for t in (x, w))
    call = relay.nn.conv2d(
        data, weight, channels=32, kernel_size=(3, 3), groups=32, data_layout="NHWC",
        kernel_layout="HWOI", out_dtype="int32",
    )  # fmt: skip
    typed = relay.TensorType((1, 7, 6, 32), "int32")
    chosen, _ = relay.backend.te_compiler.select_implementation(
        call.op, call.attrs, [x, w], typed, tvm.target.Target(f"llvm -mcpu={on}")
    )
    assert chosen.name == "depthwise_conv2d_nhwc.generic"


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_depthwise_integers_in_nhwc(dtype: str, rng: np.random.Generator) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    wide = "int16" if dtype == "int16" else "int8"
    data = rng.integers(low, high + 1, (2, 9, 8, 32)).astype(dtype)
    weight = rng.integers(-128, 128, (3, 3, 32, 1)).astype(wide)
    x, w = (relay.var(v, shape=a.shape, dtype=str(a.dtype)) for v, a in zip("xw", (data, weight)))
    call = relay.nn.conv2d(
        x, w, channels=32, kernel_size=(3, 3), groups=32, padding=(1, 1), data_layout="NHWC",
        kernel_layout="HWOI", out_dtype="int32",
    )  # fmt: skip
    (got,) = run(tvm.IRModule.from_expr(relay.Function([x, w], call)), [data, weight])
    tx = torch.from_numpy(data.astype(np.int64)).permute(0, 3, 1, 2)
    tw = torch.from_numpy(weight.astype(np.int64)).permute(2, 3, 0, 1)
    wanted = torch.nn.functional.conv2d(tx, tw, groups=32, padding=1).permute(0, 2, 3, 1)
    np.testing.assert_array_equal(got, wanted.numpy())


def quantized(shape, weight: np.ndarray, zero: int) -> tvm.IRModule:
    """One layer of a quantized network, as frontends import it."""
    x = relay.var("x", shape=shape, dtype="uint8")
    scale, zeros = (relay.const(0.5), relay.const(0.25)), (zero, 0)
    body = relay.qnn.op.conv2d(
        x, relay.const(weight), *map(relay.const, zeros), *scale, kernel_size=weight.shape[2:],
        channels=weight.shape[0], padding=(1, 1), out_dtype="int32",
    )  # fmt: skip
    return tvm.IRModule.from_expr(relay.Function([x], body))


@pytest.mark.parametrize("on", ["", "llvm -mcpu=core-avx2"])
def test_quantized(on: str, rng: np.random.Generator) -> None:
    """Exact with and without VNNI; on AVX2 stock is off by thousands."""
    data = rng.integers(0, 256, (1, 64, 9, 9)).astype("uint8")
    weight = rng.integers(-128, 128, (32, 64, 3, 3)).astype("int8")
    (got,) = run(quantized(data.shape, weight, zero=7), [data], on=on or target())
    tx = torch.from_numpy(data.astype(np.int64) - 7)
    wanted = torch.nn.functional.conv2d(tx, torch.from_numpy(weight.astype(np.int64)), padding=1)
    np.testing.assert_array_equal(got, wanted.numpy())


@pytest.mark.parametrize("zeros", [(0, 0), (7, 0), (128, -3)], ids=str)
def test_quantized_transposed(zeros: tuple[int, int], rng: np.random.Generator) -> None:
    """Exact, output padding included."""
    data = rng.integers(0, 256, (2, 16, 7, 6)).astype("uint8")
    weight = rng.integers(-128, 128, (16, 12, 3, 4)).astype("int8")
    window = {"padding": (1, 1), "output_padding": (1, 0)}
    x, parts = (
        relay.var("x", shape=data.shape, dtype="uint8"),
        map(relay.const, (*zeros, 0.5, 0.25)),
    )
    body = relay.qnn.op.conv2d_transpose(
        x, relay.const(weight), *parts, kernel_size=(3, 4), channels=12, strides=(2, 2),
        out_dtype="int32", **window,
    )  # fmt: skip
    (got,) = run(tvm.IRModule.from_expr(relay.Function([x], body)), [data])
    operands = (torch.tensor(v.astype(np.float64) - z) for v, z in zip((data, weight), zeros))
    wanted = torch.nn.functional.conv_transpose2d(*operands, stride=2, **window)
    np.testing.assert_array_equal(got, wanted.numpy())


def test_narrow_floats_are_added_up_in_float32(rng: np.random.Generator) -> None:
    """512 channels: in bfloat16 the sum would be some 10 % off."""
    for dtype in ("float16", "bfloat16"):
        check_forward([Case(T, (3, 3), (4, 4), n=1, ins=512, outs=2, dtype=dtype)], rng)


@pytest.mark.parametrize("unknown", ["N", "HW", "NDHW"])
@pytest.mark.parametrize("stated", [True, False])
def test_sizes_unknown_until_run_time(unknown: str, stated: bool, rng: np.random.Generator) -> None:
    small = [case for case in ALL if case.rank < 3 or stated]
    nhwc = template(T, 2).with_(data_layout="NHWC", kernel_layout="HWIO")
    check_forward([*small, nhwc], rng, unknown=unknown, stated=stated, executor="vm")


def test_one_build_serves_many_sizes(rng: np.random.Generator) -> None:
    case = template(T, 2)
    mod, _ = module([case], unknown="NHW")
    executor = relay.create_executor("vm", mod=mod, device=tvm.cpu(), target=target()).evaluate()
    for n, size in ((1, (2, 1)), (2, (7, 19)), (5, (3, 40))):
        other = case.with_(n=n, size=size)
        data, weight = other.arrays(rng)
        other.check(executor(data, weight).numpy(), data, weight)


@pytest.mark.parametrize("op", [C, T])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_channels_of_data_follow_from_the_weight(
    op: str, rank: int, rng: np.random.Generator
) -> None:
    check_forward([template(op, rank)], rng, unknown="NC", executor="vm")


@pytest.mark.parametrize("stated", [True, False])
def test_channels_of_depthwise_data_follow_too(stated: bool, rng: np.random.Generator) -> None:
    case = Case(C, (5, 4), (3, 2), n=2, ins=4, outs=4, groups=4)
    check_forward([case], rng, unknown="C", stated=stated, executor="vm")


@pytest.mark.parametrize(
    ("ins", "outs", "size", "kernel", "stride"),
    [(64, 64, 64, 3, 1), (128, 64, 32, 3, 2)],
)
def test_sums_stay_in_registers(ins: int, outs: int, size: int, kernel: int, stride: int) -> None:
    """No loop of multiply-adds touches the stack with a vector register: it is half as fast."""
    if "x86_64" not in map(str, tvm.target.codegen.llvm_get_targets()):
        pytest.skip("this TVM does not compile for x86")
    x = relay.var("x", shape=(1, ins, size, size))
    w = relay.var("w", shape=(ins, outs, kernel, kernel))
    body = relay.nn.conv2d_transpose(
        x, w, channels=outs, kernel_size=(kernel,) * 2, strides=(stride,) * 2, padding=(1, 1)
    )
    on = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake -num-cores=2"
    built = relay.build(tvm.IRModule.from_expr(relay.Function([x, w], body)), on)
    ends = re.compile(r"^\.\w+:|^\s+j\w+\s.*$", flags=re.MULTILINE)
    blocks = ends.split(built.get_lib().get_source("asm"))
    # What combines the points of tiles has multiply-adds too, but by constants.
    hot = [
        block
        for block in blocks
        if block.count("vfmadd") > len(block.splitlines()) // 4 and "vbroadcastss" in block
    ]
    assert hot
    for block in hot:
        assert not [line for line in block.splitlines() if "%ymm" in line and "%rsp" in line]


def test_bias_and_relu_stay_one_function(rng: np.random.Generator) -> None:
    """A following bias_add and relu are fused, parallel and vectorized."""
    case = template(T, 2)
    data, weight = parameters(case, 0)
    bias = relay.var("bias", shape=(case.outs,))
    body = relay.nn.relu(relay.nn.bias_add(call(case, data, weight), bias))
    mod = tvm.IRModule.from_expr(relay.Function([data, weight, bias], body))
    with tvm.transform.PassContext(opt_level=3):
        optimized, _ = relay.optimize(mod, target=target())
    assert str(optimized).count("Primitive=1") == 1
    x, w = case.arrays(rng)
    b = numbers(rng, (case.outs,), "float32")
    (got,) = run(mod, [x, w, b])
    want = case.forward(torch.tensor(x).double(), torch.tensor(w).double()).numpy()
    want = np.maximum(want + b[:, None, None], 0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_depthwise_weight_with_a_multiplier(rng: np.random.Generator) -> None:
    """TVM's weight (channels, multiplier) has the memory of (both, 1)."""
    case = Case(C, (6, 5), (3, 2), ins=4, outs=8, groups=4)
    data, weight = case.arrays(rng)
    x = relay.var("x", shape=data.shape)
    w = relay.var("w", shape=(4, 2, 3, 2))
    body = relay.nn.conv2d(x, w, groups=4, channels=8, kernel_size=(3, 2))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], body))
    (got,) = run(mod, [data, weight.reshape(4, 2, 3, 2)])
    case.check(got, data, weight)


def test_llvm_without_a_processor(rng: np.random.Generator) -> None:
    check_forward([template(T, 1), template(T, 2)], rng, on="llvm")


def test_definition_is_what_a_target_without_kernels_gets(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    library = relay.build(module([template(T, 2)])[0], target="c")
    assert "conv2d_transpose" in library.lib.get_source()
    monkeypatch.setattr(backend, "supports", lambda *_: backend.Support(False))
    check_forward([template(T, 1), template(T, 2), template(T, 2).with_(dtype="float16")], rng)
