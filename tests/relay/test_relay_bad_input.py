# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused in one clear line: operator, value, rule; when types are inferred."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relay

from helpers.relay import target

D2, W2 = (1, 4, 8, 8), (4, 4, 3, 3)

BAD = [
    # rank and channels
    ("conv2d_transpose", (1, 4, 8), W2, {}, r"data has 3 axes"),
    ("conv2d_transpose", D2, (4, 4, 3), {}, r"weight has 3 axes"),
    ("conv2d_transpose", D2, (5, 4, 3, 3), {},
     r"weight input channels=5 must equal data channels=4"),
    ("conv2d", D2, (4, 5, 3, 3), {}, r"channels=5 must equal data channels/groups=4/1"),
    ("conv2d_transpose", D2, W2, {"channels": 5}, r"channels=5 must equal 4"),
    ("conv2d_transpose", D2, W2, {"kernel_size": (2, 3)}, r"kernel_size=\(2, 3\) must equal"),
    # groups
    ("conv2d_transpose", D2, W2, {"groups": 3}, r"groups=3 must divide"),
    # output padding
    ("conv2d_transpose", D2, W2, {"strides": (2, 2), "output_padding": (2, 0)},
     r"output_padding=\(2, 0\) must be at least 0 and smaller than stride=\(2, 2\) "
     r"or dilation=\(1, 1\)"),
    # stride, dilation and sizes
    ("conv2d_transpose", D2, W2, {"strides": (0, 1)}, r"stride=\(0, 1\) must be at least 1"),
    ("conv2d_transpose", D2, W2, {"dilation": (0, 1)}, r"dilation=\(0, 1\) must be at least 1"),
    ("conv2d_transpose", (1, 4, 1, 1), (4, 4, 1, 1), {"padding": (3, 3)},
     r"output size=\(-5, -5\) must be at least 1"),
    ("conv2d", (1, 4, 2, 2), W2, {}, r"output size=\(0, 0\) must be at least 1"),
    # attributes are integers, as many as there are axes
    *(
        (name, shape, W2, {attribute: value}, rule)
        for name, shape in (("conv2d", D2), ("conv2d_transpose", D2))
        for attribute, value, rule in (
            ("strides", (1.5, 1), r"strides=\(1.5, 1\) must be integers$"),
            ("strides", (), r"strides=\(\) must have 2 values$"),
            ("strides", (1,) * 4, r"strides=\(1, 1, 1, 1\) must have 2 values$"),
            ("strides", (1 << 40, 1), r"strides=\(1099511627776, 1\) must fit into 32 bits$"),
            ("dilation", None, r"dilation=None must be an integer$"),
            ("dilation", (1.5, 1), r"dilation=\(1.5, 1\) must be integers$"),
            ("channels", 1.5, r"channels=1.5 must be an integer$"),
            ("kernel_size", (3.5, 3), r"kernel_size=\(3.5, 3\) must be integers$"),
            ("kernel_size", (3, 3, 3), r"kernel_size=\(3, 3, 3\) must have 2 values$"),
        )
    ),
    ("conv2d_transpose", D2, W2, {"output_padding": (0, 0, 0)},
     r"output_padding=\(0, 0, 0\) must have 1 or 2 values$"),
    ("conv2d_transpose", D2, W2, {"dilation": (1 << 30, 1)},
     r"dilation=\(1073741824, 1\) must have a product of at most 1048576$"),
    # blocks
    ("conv2d", (3, 4, 8, 8), W2, {"out_layout": "NCHW2n"},
     r"layout 'NCHW2n' needs axis N=3 to be a multiple of 2$"),
    ("conv2d", (relay.Any(), 4, 8, 8), W2, {"out_layout": "NCHW2n"},
     r"layout 'NCHW2n' needs axis N=size to be a multiple of 2, which is not known$"),
    ("conv2d_transpose", D2, W2, {"kernel_layout": "IOHW8o"},
     r"weight has 4 axes, layout 'IOHW8o' has 5$"),
    # layouts
    ("conv2d_transpose", D2, W2, {"data_layout": "NCHX"}, r"data_layout='NCHX' must be"),
    ("conv2d_transpose", D2, W2, {"kernel_layout": "OIXW"}, r"kernel_layout='OIXW' must be"),
    ("conv2d_transpose", D2, W2, {"out_layout": "NHW"}, r"out_layout='NHW' must be"),
    ("conv2d_transpose", (1, 1, 8, 8, 4), (4, 3, 3, 3), {"data_layout": "NCHW4c"},
     r"axis C=3 to be a multiple of 4"),
    # the weight gradient
    ("conv2d_backward_weight", (1, 4, 6, 6), D2, {"kernel_size": (3, 3), "strides": ()},
     r"strides=\(\) must have 2 values$"),
    ("conv2d_backward_weight", (1, 4, 6, 6), D2, {"kernel_size": (3.5, 3)}, r"must be integers$"),
    ("conv2d_backward_weight", (1, 4, 6, 6), D2, {}, r"kernel_size=None must be given"),
    ("conv2d_backward_weight", (2, 4, 6, 6), D2, {"kernel_size": (3, 3)},
     r"batch=2 must equal 1"),
    ("conv2d_backward_weight", (1, 4, 3, 6), D2, {"kernel_size": (3, 3)}, r"do not belong to"),
]  # fmt: skip

DTYPES = [
    ("conv2d_transpose", "bool,bool", {}, r"dtype bool is not supported"),
    ("conv2d", "float32,float32", {"out_dtype": "int32"}, r"output dtype int32 must be floating"),
    ("conv2d", "float32,float16", {}, r"dtypes float32 and float16 must be equal unless out_dtype"),
    ("conv2d_transpose", "int8,float32", {"out_dtype": "float32"}, r"int8 and float32 must both"),
]


def refused(name: str, shapes, dtypes, attributes: dict, rule: str) -> None:
    """One line, the operator first; nothing of TVM's own, no traceback pasted into a message."""
    first, second = (relay.var(v, shape=s, dtype=d) for v, s, d in zip("xw", shapes, dtypes))
    body = getattr(relay.nn, name)(first, second, **attributes)
    with pytest.raises((ValueError, TypeError)) as caught:
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([first, second], body)))
    said = str(caught.value)
    assert "\n" not in said.strip(), said
    assert re.match(rf"{name}: .*(?:{rule})", said), said


@pytest.mark.parametrize(
    ("name", "data", "weight", "attributes", "rule"),
    BAD,
    ids=[f"{b[0]}-{i}" for i, b in enumerate(BAD)],
)
def test_attributes_and_shapes(name, data, weight, attributes, rule) -> None:
    refused(name, (data, weight), ("float32", "float32"), attributes, rule)


@pytest.mark.parametrize(("name", "dtypes", "attributes", "rule"), DTYPES)
def test_dtypes(name, dtypes, attributes, rule) -> None:
    refused(name, (D2, W2), dtypes.split(","), attributes, rule)


def test_gradient_of_unknown_sizes_where_they_would_be_needed() -> None:
    x = relay.var("x", shape=(1, 4, relay.Any(), 8))
    w = relay.var("w", shape=W2)
    body = relay.nn.conv2d(x, w, channels=4, kernel_size=(3, 3), strides=(2, 2))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], body)))
    with pytest.raises(ValueError, match=r"^conv2d: the gradient needs known sizes"):
        relay.transform.gradient(mod["main"], mode="first_order")


@pytest.mark.parametrize(
    ("attribute", "value", "rule"),
    [
        ("groups", 0, r"groups=0 must be at least 1$"),
        ("strides", (), r"strides=\(\) must have 2 values$"),
        ("channels", 1.5, r"channels=1.5 must be an integer$"),
        ("kernel_size", (3.5, 3), r"kernel_size=\(3.5, 3\) must be integers$"),
    ],
)
def test_attributes_beside_a_weight_without_a_type(attribute: str, value, rule: str) -> None:
    x, w = relay.var("x", shape=D2), relay.var("w")
    attributes = {"channels": 4, "kernel_size": (3, 3), attribute: value}
    body = relay.nn.conv2d(x, w, **attributes)
    with pytest.raises(ValueError, match=rf"^conv2d: {rule}"):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], body)))


def test_weight_without_a_type_gets_it_from_the_attributes() -> None:
    x, w = relay.var("x", shape=D2), relay.var("w")
    body = relay.nn.conv2d_transpose(x, w, channels=6, kernel_size=(3, 2), groups=2)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], body)))
    assert tuple(map(int, mod["main"].params[1].checked_type.shape)) == (4, 3, 3, 2)
    assert tuple(map(int, mod["main"].ret_type.shape)) == (1, 6, 10, 9)


ANY = relay.Any()


@pytest.mark.parametrize(
    ("name", "stated", "actual", "attributes", "rule"),
    [
        ("conv2d", ((1, ANY, 8, 8), W2), ((1, 5, 8, 8), W2), {},
         "conv2d: data channels must equal 4, what the weight takes"),
        ("conv2d_transpose", ((1, ANY, 8, 8), W2), ((1, 3, 8, 8), W2), {},
         "conv2d_transpose: data channels must equal 4, what the weight takes"),
        ("conv2d_transpose", ((1, 4, ANY, 8), W2), ((1, 4, 0, 8), W2), {},
         "conv2d_transpose: data size must be at least 1 on every axis"),
        ("conv2d", ((1, 4, ANY, 8), W2), ((1, 4, 2, 8), W2), {},
         "conv2d: output size must be at least 1 on every axis"),
        *(
            ("conv2d_backward_weight", ((ANY, 4, 6, 6), (ANY, 4, 8, 8)),
             ((batch, 4, 6, 6), (other, 4, 8, 8)), {"kernel_size": (3, 3)},
             "conv2d_backward_weight: batch of grad must equal that of data")
            for batch, other in ((3, 1), (1, 3), (30000, 1))
        ),
        ("conv2d_backward_weight", ((1, 4, ANY, 6), (1, 4, ANY, 8)),
         ((1, 4, 9, 6), (1, 4, 8, 8)), {"kernel_size": (3, 3)},
         "conv2d_backward_weight: sizes of data and grad must belong to "),
    ],
)  # fmt: skip
def test_sizes_at_run_time(name: str, stated, actual, attributes: dict, rule: str) -> None:
    """Sizes that types leave open are checked at run time; the error adds one line to TVM's
    comparison."""
    first, second = (relay.var(v, shape=s) for v, s in zip("xw", stated))
    body = getattr(relay.nn, name)(first, second, **attributes)
    mod = tvm.IRModule.from_expr(relay.Function([first, second], body))
    made = relay.create_executor("vm", mod=mod, device=tvm.cpu(), target=target()).evaluate()
    with pytest.raises(tvm.TVMError) as caught:
        made(*(tvm.nd.array(np.ones(shape, "float32")) for shape in actual))
    assert re.search(rf"Assert fail: [^\n]*, {re.escape(rule)}", str(caught.value))


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_tensors_that_are_not_aligned_are_refused_by_tvm(offset: int) -> None:
    """TVM 0.17 takes none that do not begin with a multiple of 64 bytes, so kernels rely on it."""
    memory = np.zeros(64 + 256, "uint8")
    first = -memory.ctypes.data % 64 + offset
    with pytest.raises(tvm.error.TVMError, match="not aligned"):
        tvm.nd.from_dlpack(memory[first : first + 64].view("float32"))
