# SPDX-License-Identifier: Apache-2.0
"""register, unregister and stock() restore Relay exactly: its behaviour is run, not looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import tvm
from tvm import relay

import relay_ext
from helpers.cases import Case
from helpers.process import in_new_process
from helpers.relay import check_forward, module, run
from relay_ext.attrs import OWN, STOCK

DILATED = Case("conv_transpose", (4, 5), (3, 3), dilation=(2, 2))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    yield
    relay_ext.register()


def behaviour() -> dict[str, str]:
    """Return the behaviour of stock Relay: what it refuses, and what it silently gets wrong."""
    seen = {}
    operands = [np.ones(shape, "f") for shape in ((1, 4, 5, 5), (4, 4, 3, 3))]
    try:
        run(module([DILATED.with_(n=1, ins=4, outs=4, size=(5, 5))])[0], operands)
    except Exception as error:
        seen["dilation"] = re.findall(r"not support dilate now|$", str(error))[0]
    grad, data = np.arange(64.0, dtype="f").reshape(1, 4, 4, 4), np.ones((1, 4, 6, 6), "f")
    g, x = relay.var("g", shape=grad.shape), relay.var("x", shape=data.shape)
    body = relay.nn.conv2d_backward_weight(g, x, kernel_size=(3, 3), groups=2, channels=4)
    try:
        (got,) = run(tvm.IRModule.from_expr(relay.Function([g, x], body)), [grad, data])
        seen["backward_weight"] = str(got.shape)
    except Exception as error:
        seen["backward_weight"] = type(error).__name__
    return seen


def attributes() -> list[object]:
    """Everything that Relay's operators carry."""
    found = []
    for name in STOCK:
        op = tvm.ir.Op.get(name)
        (constraint,) = op.op_type.type_constraints
        found.append((name, constraint.func.name))
        for key in ("FTVMStrategy", "FTVMLegalize", "FTVMAlterOpLayout", "FPrimalGradient",
                    "FShapeFunc", "TShapeDataDependent"):  # fmt: skip
            value = op.get_attr(key)
            handle = getattr(value, "handle", None)
            found.append((name, key, value is None, getattr(handle, "value", handle)))
    return found


def test_stock_is_stock_before_and_after(rng: np.random.Generator) -> None:
    """In one process: before any import of ours, inside stock(), and after unregister()."""
    before = "from tvm import relay; import tvm\n"
    probe = (
        "x, w = relay.var('x', shape=(1, 4, 5, 5)), relay.var('w', shape=(4, 4, 3, 3))\n"
        "f = relay.Function([x, w], relay.nn.conv2d_transpose(x, w, channels=4,"
        " kernel_size=(3, 3), dilation=(2, 2)))\n"
        "try:\n    relay.build(tvm.IRModule.from_expr(f), 'llvm -mcpu=core-avx2'); print('built')\n"
        "except Exception as e: print('not support dilate now' in str(e))\n"
    )
    code = (
        before + probe + "import relay_ext\n" + probe + "relay_ext.unregister()\n" + probe
        + "relay_ext.register(); relay_ext.register()\n" + probe
    )  # fmt: skip
    assert in_new_process(code).split() == ["True", "built", "True", "built"]


def test_behaviour_inside_stock_and_after() -> None:
    with relay_ext.stock():
        stock, ours_gone = behaviour(), attributes()
    assert stock["dilation"] == "not support dilate now"
    ours = behaviour()
    assert ours == {"backward_weight": "(4, 2, 3, 3)"}
    relay_ext.unregister()
    assert behaviour() == stock
    names = [entry[:3] for entry in attributes()]
    assert names == [entry[:3] for entry in ours_gone]


ATTRIBUTES = f"""
import importlib, sys
import tvm
from tvm.relay.frontend.pytorch import PyTorchOpConverter

STOCK = {list(STOCK)}
KEYS = ("FTVMStrategy", "FTVMLegalize", "FTVMAlterOpLayout", "FPrimalGradient", "FShapeFunc",
        "TShapeDataDependent")

def attributes():
    found = [PyTorchOpConverter.create_convert_map]
    for op in map(tvm.ir.Op.get, STOCK):
        (relation,) = op.op_type.type_constraints
        values = [op.get_attr(key) for key in KEYS]
        handles = [getattr(value, "handle", None) for value in values]
        found += [relation.func.name, *(getattr(handle, "value", handle) for handle in handles)]
    return found

before = attributes()
import relay_ext
"""


@pytest.mark.parametrize(
    "again",
    [
        "importlib.reload(relay_ext.registry)",
        """
for name in [name for name in sys.modules if name.split(".")[0] in ("relay_ext", "topi_ext")]:
    del sys.modules[name]
import relay_ext
""",
    ],
    ids=["registry reloaded", "imported again"],
)
def test_imported_twice(again: str) -> None:
    """Rules of a first import are not taken for Relay's own by a second one."""
    in_new_process(
        ATTRIBUTES
        + again
        + """
with relay_ext.stock():
    assert attributes() == before
assert attributes() != before
relay_ext.unregister()
assert attributes() == before
"""
    )


def test_what_another_package_set_after_ours_stays() -> None:
    said = in_new_process(
        ATTRIBUTES
        + """
import warnings

op = tvm.ir.Op.get("nn.conv2d")
op.reset_attr("FPrimalGradient")
op.set_attr("FPrimalGradient", lambda call, grad: [grad, grad], 10)
theirs = op.get_attr("FPrimalGradient").handle.value
tvm.ir.Op.get("nn.conv1d").add_type_rel("Conv2D")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    relay_ext.unregister()
    relay_ext.unregister()
print(*(warning.message for warning in caught if "relay_ext" in str(warning.message)), sep="\\n")
assert op.get_attr("FPrimalGradient").handle.value == theirs
"""
    )
    assert said == (
        "relay_ext: unregister() leaves what was set after ours: FPrimalGradient of nn.conv2d, "
        "the type relation of nn.conv1d\n"
    )


def test_registering_twice_and_nested_stock(rng: np.random.Generator) -> None:
    relay_ext.register()
    check_forward([DILATED], rng)
    with relay_ext.stock():
        with relay_ext.stock():
            pass
        relay_ext.register()
        with pytest.raises(Exception, match="not support dilate now"):
            run(module([DILATED])[0], DILATED.arrays(rng))
    check_forward([DILATED], rng)


def test_own_operators_refuse_in_one_line_when_unregistered() -> None:
    x, w = relay.var("x", shape=(1, 4, 9)), relay.var("w", shape=(4, 4, 3))
    body = relay.nn.conv1d(x, w, channels=4, kernel_size=(3,))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], body)))
    gradient = relay.transform.gradient(mod["main"], mode="first_order")
    assert any(name in str(gradient) for name in OWN)
    relay_ext.unregister()
    with pytest.raises(RuntimeError, match=r"^conv1d_backward_weight: relay_ext is unregistered"):
        relay.transform.InferType()(tvm.IRModule.from_expr(gradient))


def test_gradient_of_stock_comes_back() -> None:
    x, w = relay.var("x", shape=(1, 4, 9, 9)), relay.var("w", shape=(4, 4, 3, 3))
    body = relay.nn.conv2d(x, w, channels=4, kernel_size=(3, 3), dilation=(2, 2))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], body)))

    def dx() -> tuple[int, ...]:
        gradient = tvm.IRModule.from_expr(relay.transform.gradient(mod["main"], mode="first_order"))
        arrays = [np.ones((1, 4, 9, 9), "f"), np.ones((4, 4, 3, 3), "f")]
        return run(gradient, arrays)[1].shape

    assert dx() == (1, 4, 9, 9)
    with relay_ext.stock():
        with pytest.raises(Exception, match=r"(?s).+"):
            dx()
    assert dx() == (1, 4, 9, 9)
    assert torch.conv2d(torch.ones(1, 4, 9, 9), torch.ones(4, 4, 3, 3), dilation=2).shape[2] == 5
