# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused in one clear line: operator, value, rule; when emitted or parsed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import from_source
from tvm.script import relax as R

import relax_ext
from helpers import build
from helpers.cases import Case
from topi_ext.compat import size_var, tir

D2, W2 = (1, 4, 8, 8), (4, 4, 3, 3)
Y2 = (1, 6, 6, 6)
N, C, H = map(size_var, "nch")
K3 = {"kernel_size": (3, 3)}


def emit(name: str, data, weight, dtype: str, attributes: dict) -> None:
    """Build a function as a user does: the error comes from `emit`, not from compiling."""
    dtypes = dtype.split(",") * 2
    x = relax.Var("x", R.Tensor(data, dtypes[0]))
    w = relax.Var("w", R.Tensor(weight, dtypes[1]))
    op = getattr(relax.op.nn, name, None) or getattr(relax_ext, name)
    build.module(lambda x, w: op(x, w, **attributes), x, w)


BAD = [
    # rank and channels
    ("conv2d_transpose", (1, 4, 8), W2, {}, r"data|axes"),
    ("conv2d_transpose", D2, (4, 4, 3), {}, r"weight|axes"),
    ("conv2d", (1, 4, 8, 8, 8), W2, {}, r"data|axes"),
    ("conv1d", D2, W2, {}, r"axes"),
    ("conv3d_transpose", D2, W2, {}, r"axes"),
    ("conv2d_transpose", D2, (5, 4, 3, 3), {},
     r"weight input channels=5 must equal data channels=4"),
    ("conv2d", D2, (4, 5, 3, 3), {}, r"channels=5 must equal data channels/groups=4/1"),
    # groups
    ("conv2d_transpose", D2, W2, {"groups": 3}, r"groups=3 must divide"),
    # output padding
    ("conv2d_transpose", D2, W2, {"strides": (2, 2), "output_padding": (2, 0)},
     r"output_padding=\(2, 0\) must be at least 0 and smaller than stride=\(2, 2\) "
     r"or dilation=\(1, 1\)"),
    ("conv1d_transpose", (1, 4, 8), (4, 4, 3), {"output_padding": 1}, r"output_padding=\(1,\)"),
    # stride and dilation
    ("conv2d_transpose", D2, W2, {"strides": (0, 1)}, r"stride=\(0, 1\) must be at least 1"),
    ("conv2d", D2, W2, {"strides": 0}, r"stride=\(0, 0\) must be at least 1"),
    ("conv2d_transpose", D2, W2, {"dilation": (0, 1)}, r"dilation=\(0, 1\) must be at least 1"),
    # sizes
    ("conv2d_transpose", (1, 4, 1, 1), (4, 4, 1, 1), {"padding": (3, 3)},
     r"output size=\(-5, -5\) must be at least 1"),
    ("conv2d", (1, 4, 2, 2), W2, {}, r"output size=\(0, 0\) must be at least 1"),
    ("conv2d", D2, (4, 4, 0, 3), {}, r"kernel size=0 must be at least 1"),
    ("conv2d", (1, 4, 0, 8), W2, {"padding": 2}, r"data size=\(0, 8\) must be at least 1"),
    ("conv2d_transpose", D2, (4, 0, 3, 3), {}, r"channels=0 must be at least 1"),
    ("conv2d", D2, (0, 4, 3, 3), {}, r"channels of y=0 must be at least 1"),
    ("conv2d", D2, W2, {"strides": 1 << 40},
     r"stride=\(1099511627776, 1099511627776\) must fit into 32 bits$"),
    ("conv2d_transpose", D2, W2, {"output_padding": 1 << 40}, r"output_padding=.* 32 bits$"),
    ("conv2d_transpose", D2, W2, {"dilation": 1 << 30},
     r"dilation=\(1073741824, 1073741824\) must have a product of at most 1048576$"),
    ("conv2d", (N, 4, H, H), W2, {"strides": (1 << 30, 1)}, r"stride=\(1073741824, 1\) must have"),
    ("conv2d_transpose", (1, 4, 1 << 30, 1 << 30), W2, {"strides": 1 << 10},
     r"x of shape \(1, 4, 1099511626755, 1099511626755\) must have at most \d+ elements$"),
    # layouts
    ("conv2d_transpose", D2, W2, {"data_layout": "NCHX"}, r"data_layout='NCHX' must be"),
    ("conv2d_transpose", D2, W2, {"kernel_layout": "OIXW"}, r"kernel_layout='OIXW' must be"),
    ("conv2d_transpose", D2, W2, {"out_layout": "NHW"}, r"out_layout='NHW' must be"),
    ("conv2d", (), (), {}, r"data has 0 axes, layout 'NCHW' has 4$"),
    ("conv2d_transpose", D2, (4, 4, 3), {}, r"weight has 3 axes, layout 'IOHW' has 4$"),
    ("conv2d_transpose", D2, (4, 1, 3, 3, 4), {"kernel_layout": "IOHW8o"},
     r"block 8o of layout 'IOHW8o' is 4$"),
    ("conv2d", (3, 4, 8, 8), W2, {"out_layout": "NCHW2n"},
     r"layout 'NCHW2n' needs axis N=3 to be a multiple of 2$"),
    ("conv2d", (N, 4, 8, 8), W2, {"out_layout": "NCHW2n"},
     r"layout 'NCHW2n' needs axis N=n to be a multiple of 2, which is not known$"),
    ("conv2d_transpose", (N, 4, 8, 8, 2), W2, {"data_layout": "NCHW2n", "out_layout": "NCHW4n"},
     r"layout 'NCHW4n' needs axis N=.* to be a multiple of 4, which is not known$"),
    ("conv2d", (1, 4, H, 8), W2, {"out_layout": "NCHW4h"},
     r"layout 'NCHW4h' needs axis H=h - .*2.* to be a multiple of 4, which is not known$"),
    ("conv2d", D2, W2, {"out_layout": "NCHW3c"}, r"axis C=4 to be a multiple of 3"),
    ("conv2d_transpose", (1, 1, 8, 8, 4), (4, 3, 3, 3), {"data_layout": "NCHW4c"},
     r"axis C=3 to be a multiple of 4"),
    ("conv2d", (1, 1, 8, 8, 3), W2, {"data_layout": "NCHW4c"}, r"block 4c of layout 'NCHW4c' is 3"),
]  # fmt: skip

DTYPES = [
    ("conv2d_transpose", "bool", {}, r"dtype bool is not supported"),
    ("conv2d", "float8_e4m3fn", {}, r"dtype float8_e4m3fn is not supported"),
    ("conv2d_transpose", "uint32", {}, r"dtype uint32 is not supported"),
    ("conv2d", "float32", {"out_dtype": "int32"}, r"output dtype int32 must be floating point"),
    ("conv2d", "float32,float16", {}, r"dtypes float32 and float16 must be equal unless out_dtype"),
    ("conv2d_transpose", "int8,float32", {"out_dtype": "float32"}, r"int8 and float32 must both"),
]


def refused(run, name: str, rule: str) -> None:
    """One line, the operator first; nothing of TVM's own, no traceback pasted into a message."""
    with pytest.raises((ValueError, TypeError)) as caught:
        run()
    said = str(caught.value)
    assert "\n" not in said.strip(), said
    assert re.match(rf"{name}: .*(?:{rule})", said), said


@pytest.mark.parametrize(
    ("name", "data", "weight", "attributes", "rule"),
    BAD,
    ids=[f"{b[0]}-{i}" for i, b in enumerate(BAD)],
)
def test_emitting(name, data, weight, attributes, rule) -> None:
    refused(lambda: emit(name, data, weight, "float32", attributes), name, rule)


@pytest.mark.parametrize(
    ("name", "attributes", "rule"),
    [
        ("conv2d", {"groups": 0}, r"groups in convolution .* positive.* is 0$"),
        ("conv2d_transpose", {"groups": -2}, r"groups in convolution .* positive.* is -2$"),
        ("conv2d", {"strides": (1, 1, 1)}, r"strides length is expected to be 2.*\(1, 1, 1\)$"),
        ("conv2d", {"dilation": (1,) * 3}, r"dilation length is expected to be 2.*\(1, 1, 1\)$"),
        ("conv2d_transpose", {"padding": (1, 2, 3)}, r"padding length .*1, 2 or 4.*\(1, 2, 3\)$"),
    ],
)
def test_refused_by_tvm_before_any_rule_is_asked(name: str, attributes: dict, rule: str) -> None:
    """TVM's constructors of calls check these themselves, in one line with value and rule."""
    with pytest.raises(Exception, match=rule) as caught:
        emit(name, D2, W2, "float32", attributes)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(("name", "dtype", "attributes", "rule"), DTYPES)
def test_dtypes(name: str, dtype: str, attributes: dict, rule: str) -> None:
    refused(lambda: emit(name, D2, W2, dtype, attributes), name, rule)


def test_stock_accepts_what_is_refused_here() -> None:
    """Output sizes of -5, strides of -1: with our rules taken out nobody says a word."""
    with relax_ext.stock():
        emit("conv2d_transpose", (1, 4, 1, 1), (4, 4, 1, 1), "float32", {"padding": (3, 3)})
        emit("conv2d", D2, W2, "float32", {"strides": (1, -1)})


OWN = [
    ("conv_weight_grad", (1, 4, 8, 8), (1, 6, 8, 8), {"kernel_size": (3, 3)},
     r"sizes x=\(8, 8\) and y=\(8, 8\) do not belong to kernel=\(3, 3\)"),
    ("conv_weight_grad", (1, 4, 8, 8), (2, 6, 6, 6), {"kernel_size": (3, 3)},
     r"batches 1 of x and 2 of y must be equal"),
    ("conv_weight_grad", (1, 4, 8, 8), (1, 6, 6, 6), {"kernel_size": (3, 3), "groups": 4},
     r"groups=4 must divide the channels 4 and 6"),
    ("conv_weight_grad", (1, 4, 8), (1, 6, 6, 6), {"kernel_size": (3, 3)}, r"axes"),
    ("conv_weight_grad", (1, 4, 8, 8), (1, 6, 6, 6), {"kernel_size": (3, 0)},
     r"kernel size=0 must be at least 1"),
    ("conv_transpose", (1, 4, 8, 8), (4, 2, 3, 3), {"size": (20, 20)},
     r"sizes x=\(20, 20\) and y=\(8, 8\) do not belong"),
    ("conv_transpose", (1, 4, 8, 8), (4, 2, 3, 3), {"size": (10,)}, r"axes|size"),
    ("conv_transpose", (1, 4, 8, 8), (5, 2, 3, 3), {"size": (10, 10)},
     r"weight input channels=5 must equal data channels=4"),
    ("conv_transpose", (1, 4, 8, 8), (4, 2, 3, 3), {"size": (10, 10), "strides": (0, 1)},
     r"stride=\(0, 1\) must be at least 1"),
    # attributes are integers, as many as there are axes
    *(
        ("conv_weight_grad", D2, Y2, {**K3, name: value}, rule)
        for name, value, rule in (
            ("strides", (1.5, 1), r"stride=\(1.5, 1\) must be integers$"),
            ("strides", (1,) * 4, r"stride=\(1, 1, 1, 1\) must have 1 or 2 values$"),
            ("padding", None, r"padding=None must be an integer$"),
            ("dilation", None, r"dilation=None must be an integer$"),
            ("dilation", (1, relax.const(1)), r"dilation=.* must be integers$"),
            ("groups", 1.5, r"groups=1.5 must be an integer$"),
            ("kernel_size", 3, r"kernel_size=3 must have 1, 2 or 3 values, one per axis$"),
            ("kernel_size", "33", r"kernel_size='33' must have 1, 2 or 3 values, one per axis$"),
            ("kernel_size", (3,) * 4, r"kernel_size=\(3, 3, 3, 3\) must have 1, 2 or 3 values$"),
            ("kernel_size", (3.0, 3), r"kernel_size=\(3.0, 3\) must be integers$"),
            ("data_layout", "nchw", r"data_layout='nchw' must be a permutation of 'NCHW'"),
            ("out_dtype", "foo", r"dtype foo is not supported"),
        )
    ),
    *(
        ("conv_transpose", D2, (4, 2, 3, 3), {"size": (10, 10), name: value}, rule)
        for name, value, rule in (
            ("strides", (1.5, 1), r"stride=\(1.5, 1\) must be integers$"),
            ("data_layout", "NC", r"data_layout='NC' must be a permutation of 'NCW' or 'NCHW'"),
            ("kernel_layout", "IOHW8o", r"weight has 4 axes, layout 'IOHW8o' has 5$"),
            ("out_layout", "NCHW4h", r"needs axis H=10 to be a multiple of 4$"),
            ("size", (0, 5), r"size=\(0, 5\) must be at least 1 on every axis$"),
            ("size", (10,), r"size=\(10,\) must have 2 values, one per spatial axis$"),
            ("size", (10.0, 10), r"size=10.0 must be an integer$"),
            ("size", "10", r"size='10' must be a tensor, a shape, or one value per spatial axis$"),
            ("size", None, r"size=None must be a tensor, a shape, or one value per spatial axis$"),
            ("size", 10, r"size=10 must be a tensor, a shape, or one value per spatial axis$"),
        )
    ),
    ("conv_transpose", D2, (4, 2, 3, 3), {"size": (H, 10), "out_layout": "NCHW4h"},
     r"axis H=h to be a multiple of 4, which is not known$"),
    # symbolic channels
    ("conv_weight_grad", (1, C, 8, 8), Y2, K3, r"channels and kernel sizes must be constant$"),
    ("conv_weight_grad", D2, (1, C, 6, 6), K3, r"channels and kernel sizes must be constant$"),
    ("conv_transpose", (1, C, 8, 8), (C, 2, 3, 3), {"size": (10, 10)},
     r"channels and kernel sizes must be constant$"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "weight", "attributes", "rule"),
    OWN,
    ids=[f"{b[0]}-{i}" for i, b in enumerate(OWN)],
)
def test_own_operators(name, data, weight, attributes, rule) -> None:
    refused(lambda: emit(name, data, weight, "float32", attributes), name, rule)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"strides": [1.5, 1]}, r"stride=\(1.5, 1\) must be integers"),
        ({"groups": 1.5}, r"groups=1.5 must be an integer"),
        ({"dilation": None}, r"dilation=None must be an integer"),
        ({"kernel_size": "33"}, r"kernel_size='33' must have 1, 2 or 3 values"),
        ({"padding": [[0]]}, r"padding=.* must be integers"),
        ({"strides": None}, r"stride=None must be an integer"),
    ],
)
def test_attributes_of_calls_made_by_hand(change: dict, rule: str) -> None:
    x, y = (relax.Var(name, R.Tensor(shape, "float32")) for name, shape in (("x", D2), ("y", Y2)))
    call = relax_ext.conv_weight_grad(x, y, (3, 3))
    attrs = dict(call.attrs.items()) | change
    bad = relax.Call(call.op, [x, y], tvm.ir.make_node("ir.DictAttrs", **attrs))
    refused(lambda: relax.BlockBuilder().normalize(bad), "conv_weight_grad", rule)
    del attrs["padding"]
    bad = relax.Call(call.op, [x, y], tvm.ir.make_node("ir.DictAttrs", **{**attrs, "groups": 1}))
    with pytest.raises(ValueError, match=r"^conv_weight_grad: "):
        relax.BlockBuilder().normalize(bad)


def test_integers_of_numpy_and_of_tvm_are_taken() -> None:
    one, three = tir.IntImm("int64", 1), np.array([3, 3])
    emit("conv_weight_grad", D2, Y2, "float32", {"kernel_size": three, "strides": one})
    emit("conv_weight_grad", D2, Y2, "float32", {**K3, "strides": [one, np.int32(1)]})


def test_blocks_that_divide_whatever_the_size(rng: np.random.Generator) -> None:
    """Twice as many images as blocks: nothing is lost."""
    case = Case("conv", (5, 4), (3, 3), n=4, data_layout="NCHW2n", out_layout="NCHW2n")
    shapes = (N, *build.stored_shape(case, 0)[1:]), case.weight_shape
    mod = build.module(lambda x, w: build.call(case, x, w), *shapes)
    build.run_forward(build.compiled(mod), "main", case, rng)


@pytest.mark.parametrize(("name", "out_dtype"), [("conv2d", None), ("conv2d_transpose", "float32")])
def test_unknown_dtypes_are_refused_when_compiled(name: str, out_dtype: str | None) -> None:
    x, w = relax.Var("x", R.Tensor(D2)), relax.Var("w", R.Tensor(W2, "float32"))
    call = getattr(relax.op.nn, name)
    mod = build.module(lambda x, w: call(x, w, out_dtype=out_dtype), x, w)
    rule = "the dtypes of both operands must be known$"
    refused(lambda: tvm.compile(mod, build.target()), name, rule)
    whole = relax_ext.pipeline(build.target())
    refused(lambda: tvm.compile(mod, build.target(), relax_pipeline=whole), name, rule)


def test_own_operator_unregistered() -> None:
    """Its name stays with the process; without our rules it says so."""
    with relax_ext.stock(), pytest.raises(Exception, match=r"conv_weight_grad: .*register"):
        emit("conv_weight_grad", (1, 4, 8, 8), (1, 6, 6, 6), "float32", {"kernel_size": (3, 3)})


TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((1, 4, 8, 8), "float32"), w: R.Tensor((4, 4, 3, 3), "float32")):
        y = R.nn.conv2d_transpose(x, w, ATTRIBUTES)
        return y
"""


@pytest.mark.parametrize(
    ("attributes", "rule"),
    [
        ("strides=(0, 1)", r"conv2d_transpose: stride=\(0, 1\) must be at least 1"),
        ("output_padding=(1, 0)", r"conv2d_transpose: output_padding=\(1, 0\) must be"),
        ("groups=3", r"conv2d_transpose: groups=3 must divide"),
        ('data_layout="NCHX"', r"conv2d_transpose: data_layout='NCHX' must be"),
    ],
)
def test_parsing(attributes: str, rule: str, capsys: pytest.CaptureFixture) -> None:
    """TVM's parser shows the line of the program and the rule under it."""
    with pytest.raises(Exception) as caught:
        from_source(TEXT.replace("ATTRIBUTES", attributes))
    printed = capsys.readouterr()
    said = f"{caught.value}{printed.out}{printed.err}"
    assert re.search(rule, said), said


def test_normalizing() -> None:
    """A call made by hand is refused when a builder normalizes it."""
    good = build.forward_module([Case("conv_transpose", (8, 8), (3, 3), ins=4, outs=4)])
    call = good["f0"].body.blocks[0].bindings[0].value
    bad = relax.Call(call.op, [call.args[0], call.args[0]], call.attrs)
    refused(
        lambda: relax.BlockBuilder().normalize(bad),
        "conv2d_transpose",
        r"weight input channels=2 must equal data channels=4",
    )


def test_wrong_arrays_at_run_time(rng: np.random.Generator) -> None:
    """Static sizes too: an error, never a wrong value."""
    case = Case("conv_transpose", (5, 4), (3, 3), stride=(2, 2))
    vm = build.compiled(build.forward_module([case]))
    data, weight = case.arrays(rng)
    for wrong in (data[:1], data[:, :1], data[..., :3], data[0], data.astype("float64")):
        with pytest.raises(Exception):  # noqa: B017
            build.run(vm, "f0", wrong, weight)
    (got,) = build.run(vm, "f0", data, weight)
    case.check(got, data, weight)
