# SPDX-License-Identifier: Apache-2.0
"""Relay's convolutions with what follows in one kernel, and constant weights packed.

Values are compared with PyTorch in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import meta_schedule, relay
from tvm.contrib import graph_executor
from tvm.relay.backend import Executor, Runtime, te_compiler

import relay_ext
from helpers.relay import target
from helpers.relay_model import (
    TOLERANCE,
    Model,
    batch_norm,
    bias,
    clip,
    gelu,
    leaky,
    prelu,
    problems,
    relu,
    residual,
    silu,
    steps,
    tanh,
    unary,
)
from topi_ext import backend

exp = unary(relay.exp, torch.exp)
shifted = unary(lambda y: (y - relay.const(0.25)) / relay.const(3.0), lambda y: (y - 0.25) / 3)
TAILS = {
    "none": ([], []),
    "bias_relu": ([bias, relu], ["add", "relu"]),
    "norm": ([batch_norm, residual, relu], ["add", "add", "relu"]),
    "leaky": ([leaky], ["leaky_relu"]),
    "clip": ([clip, tanh], ["minimum", "maximum", "tanh"]),
    "silu": ([bias, silu], ["add", "sigmoid", "multiply"]),
    "gelu": ([gelu], ["multiply", "erf", "multiply", "add", "multiply"]),
    "prelu": ([bias, prelu], ["add", "prelu"]),
    "numbers": ([tanh, shifted], ["tanh", "subtract", "divide"]),
    "exp": ([bias, exp, relu], ["add"]),  # kernels do not know it
}


@pytest.mark.parametrize("tail", TAILS)
def test_post_ops(tail: str) -> None:
    model = Model()
    adding, wanted = TAILS[tail]
    for add in adding:
        add(model)
    result, found = model.build()
    model.check(result)
    assert steps(found[-1]) == wanted


KINDS = [
    Model(rank=1),
    Model(rank=1, transposed=True),
    Model(rank=2, transposed=True),
    Model(rank=3, last=True),
    Model(rank=3, transposed=True),
    Model(last=True),
    Model(transposed=True, last=True),
    Model(groups=4),
    Model(groups=8, outs=8),
    Model(groups=8),
    Model(dtype="float16"),
    Model(constant=False),
    Model(ins=32, outs=32),
]


@pytest.mark.parametrize(
    "kind", KINDS, ids=lambda m: f"{m.rank}{m.transposed:d}{m.last:d}{m.groups}"
)
def test_kinds(kind: Model) -> None:
    for add in (bias, residual, leaky):
        add(kind)
    result, found = kind.build()
    kind.check(result)
    assert steps(found[-1]) == ["add", "add", "leaky_relu"]


def test_constant_weights_are_packed() -> None:
    """In a product of some size, and of a weight that only FoldConstant makes a constant."""
    for level in (2, 3):
        model = Model(ins=32, outs=32)
        batch_norm(model)
        relu(model)
        result, found = model.build(level)
        model.check(result)
        assert found[-1].prepacked
        assert steps(found[-1])[-1] == "relu"


def test_a_packed_weight_keeps_the_plan_of_the_operator_alone() -> None:
    """One tap, channels last: the estimate of `gemm` counts post-ops."""
    model = Model(ins=32, outs=64, last=True, taps=1)
    for add in (bias, silu, residual, tanh):
        add(model)
    result, found = model.build()
    model.check(result)
    assert steps(found[-1]) == ["add", "sigmoid", "multiply", "add", "tanh"]


def run_vm(model: Model) -> np.ndarray:
    machine = tvm.runtime.vm.VirtualMachine(relay.vm.compile(model.module(), target()), tvm.cpu())
    arrays = {name: tvm.nd.array(array) for name, array in model.inputs.items()}
    return machine.invoke("main", **arrays).numpy()


def run_aot(model: Model, folder: Any) -> np.ndarray:
    executor = Executor("aot", {"interface-api": "packed"})
    options = {"executor": executor, "runtime": Runtime("cpp")}
    relay.build(model.module(), target(), **options).export_library(str(folder / "model.so"))
    library = tvm.runtime.load_module(str(folder / "model.so"))
    module = tvm.runtime.executor.AotModule(library["default"](tvm.cpu()))
    for name, array in model.inputs.items():
        module.set_input(name, array)
    module.run()
    return module.get_output(0).numpy()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_executors_and_levels(executor: str, level: int, tmp_path: Any) -> None:
    if (executor, level) == ("vm", 0):
        pytest.skip("TVM's VM compiler needs opt_level 1")
    model = Model(ins=16, outs=32, dtype="float32")
    for add in (bias, residual, relu, tanh):
        add(model)
    te_compiler.get().clear()
    with backend.recording() as works, tvm.transform.PassContext(opt_level=level):
        if executor == "graph":
            result, found = model.build(level)
        else:
            result = run_vm(model) if executor == "vm" else run_aot(model, tmp_path)
            found = problems(works)
    model.check(result)
    if executor != "graph":
        found = problems(works)
    # Without opt_level 1, FuseOps fuses nothing.
    assert level == 0 or steps(found[-1]) == ["add", "add", "relu", "tanh"]


def test_what_others_read_stays() -> None:
    """A second result, and a second reader that no kernel computes."""
    model = Model()
    bias(model)
    kept, exact_kept = model.value, model.exact
    relu(model)
    first = relay.nn.relu(kept)
    te_compiler.get().clear()
    with backend.recording() as works, tvm.transform.PassContext(opt_level=3):
        library = relay.build(model.module(kept, relay.exp(first) + first), target())
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.run(**model.inputs)
    results = [executor.get_output(number).numpy() for number in range(2)]
    exact = torch.relu(exact_kept)
    for result, wanted in zip(results, (exact_kept, exact.exp() + exact)):
        limit = TOLERANCE["float32"] * wanted.abs().max().item()
        np.testing.assert_allclose(result, wanted.numpy(), rtol=0, atol=4 * limit)
    assert steps(problems(works)[-1]) in ([], ["add"])


def test_the_chain_is_cut_where_a_value_has_another_reader() -> None:
    """All is one function of Relay; relu is computed behind the kernel, which keeps its sum."""
    model = Model()
    bias(model)
    model.value = relay.nn.relu(model.value) * relay.exp(relay.const(0.1) * model.value)
    model.exact = torch.relu(model.exact) * torch.exp(0.1 * model.exact)
    result, found = model.build()
    model.check(result)
    assert steps(found[-1]) == ["add"]


def test_a_value_that_is_read_twice_within_the_chain() -> None:
    model = Model()
    bias(model)
    silu(model)
    model.value = model.value * model.value
    model.exact = model.exact**2
    result, found = model.build()
    model.check(result)
    assert steps(found[-1]) == ["add", "sigmoid", "multiply", "multiply"]


def test_a_residual_that_is_the_input() -> None:
    model = Model(ins=16, outs=16)
    x = model.inputs["x"]
    model.value = relay.nn.relu(model.value + relay.analysis.free_vars(model.value)[0])
    model.exact = torch.relu(model.exact + torch.from_numpy(x.astype("float64")))
    result, found = model.build()
    model.check(result)
    assert steps(found[-1]) == ["add", "relu"]


def test_an_operand_of_one_element_and_one_of_another_shape() -> None:
    model = Model()
    scale, row = model.numbers((1,)), model.numbers((7,))
    model.value = model.value * model.given("scale", scale) + model.given("row", row)
    exact = (torch.from_numpy(one.astype("float64")) for one in (scale, row))
    model.exact = model.exact * next(exact) + next(exact)
    result, found = model.build()
    model.check(result)
    assert steps(found[-1]) == ["multiply", "add"]


def test_integers_that_become_fractions() -> None:
    x = relay.var("x", shape=(1, 8, 9, 9), dtype="int8")
    random = np.random.default_rng(0)
    weight, data = (
        random.integers(-100, 100, s).astype("int8") for s in ((8, 8, 3, 3), (1, 8, 9, 9))
    )
    y = relay.nn.conv2d(x, relay.const(weight), padding=(1, 1), out_dtype="int32")
    y = relay.nn.relu(relay.cast(y, "float32") * relay.const(0.01) + relay.const(1.0))
    te_compiler.get().clear()
    with backend.recording() as works, tvm.transform.PassContext(opt_level=3):
        library = relay.build(
            tvm.IRModule.from_expr(relay.Function([x], y)), "llvm -mcpu=core-avx2"
        )
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.run(x=data)
    exact = (torch.from_numpy(one.astype("float64")) for one in (data, weight))
    wanted = torch.relu(torch.conv2d(*exact, padding=1) * 0.01 + 1)
    # Sums are exact; two roundings follow.
    np.testing.assert_allclose(executor.get_output(0).numpy(), wanted.numpy(), rtol=2e-7, atol=1e-6)
    assert steps(problems(works)[-1]) == ["cast", "multiply", "add", "relu"]


@pytest.mark.parametrize("tuner", ["auto_scheduler", "meta_schedule"])
def test_tuners_see_no_stage_that_only_our_schedule_compiles(tuner: str) -> None:
    model = Model()
    relu(model)
    config = {f"relay.backend.use_{tuner}": True}
    if tuner == "meta_schedule":
        config["relay.backend.use_meta_schedule_dispatch"] = 7
    te_compiler.get().clear()
    context = tvm.transform.PassContext(opt_level=3, config=config)
    with backend.recording() as works, meta_schedule.database.MemoryDatabase(), context:
        library = relay.build(model.module(), target())
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.run(**model.inputs)
    model.check(executor.get_output(0).numpy())
    assert not any(work.problem.epilogue or work.problem.prepacked for work in works)


def test_another_schedule_is_refused_when_it_is_compiled() -> None:
    model = Model()
    call = relay.transform.InferType()(model.module())["main"].body
    operands = [
        tvm.te.placeholder(tuple(map(int, one.checked_type.shape)), name="x") for one in call.args
    ]
    strategy = tvm.ir.Op.get("nn.conv2d").get_attr("FTVMStrategy")
    with target():
        chosen = strategy(call.attrs, operands, call.checked_type, target())
    (implementation,) = chosen.specializations[0].implementations
    (result,) = implementation.compute(call.attrs, operands, call.checked_type)
    with pytest.raises(tvm.TVMError, match="kernel_without_its_schedule"):
        tvm.build(tvm.te.create_schedule(result.op), [*operands, result], target())


def test_symbolic_sizes_and_blocked_layouts() -> None:
    x = relay.var("x", shape=(relay.Any(), 8, relay.Any(), 12))
    model = Model()
    y = relay.nn.relu(relay.nn.conv2d(x, model.value.args[1], padding=(1, 1)))
    blocked = relay.layout_transform(relay.var("z", shape=(1, 8, 9, 9)), "NCHW", "NCHW8c")
    options = {"data_layout": "NCHW8c", "kernel_layout": "OIHW", "padding": (1, 1)}
    options |= {"channels": 16, "kernel_size": (3, 3)}
    z = relay.nn.relu(relay.nn.conv2d(blocked, model.value.args[1], **options))
    random = np.random.default_rng(0)
    weight = torch.from_numpy(model.value.args[1].data.numpy()).double()
    for body, shape in ((y, (2, 8, 7, 12)), (z, (1, 8, 9, 9))):
        mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
        data = random.standard_normal(shape, np.float32)
        with tvm.transform.PassContext(opt_level=3):
            result = relay.create_executor("vm", mod, tvm.cpu(), target()).evaluate()(data).numpy()
        wanted = torch.relu(torch.conv2d(torch.from_numpy(data).double(), weight, padding=1))
        if result.ndim == 5:
            result = result.transpose(0, 1, 4, 2, 3).reshape(wanted.shape)
        np.testing.assert_allclose(result, wanted.numpy(), rtol=0, atol=2e-5)


def test_stock_in_between() -> None:
    """In one process, before and after: stock's own rules have no operator of ours."""
    model = Model(ins=32, outs=32)
    relu(model)
    result, found = model.build()
    assert steps(found[-1]) == ["relu"]
    with relay_ext.stock():
        theirs, none = model.build()
        assert none == []
    model.check(theirs)
    assert model.build()[0].tobytes() == result.tobytes()


def test_packed_weights_refuse_in_one_line_when_unregistered() -> None:
    model = Model(ins=32, outs=32)
    with target(), tvm.transform.PassContext(opt_level=3):
        mod = relay.transform.InferType()(model.module())
        mod = relay.transform.AlterOpLayout()(mod)
    assert "relay_ext.conv_packed" in str(mod)
    assert relay.transform.InferType()(mod)["main"].body.checked_type.shape[1] == 32
    relay_ext.unregister()
    again = tvm.IRModule.from_expr(relay.Function(mod["main"].params, mod["main"].body))
    with pytest.raises(RuntimeError, match=r"^conv_packed: relay_ext is unregistered"):
        relay.transform.InferType()(again)
