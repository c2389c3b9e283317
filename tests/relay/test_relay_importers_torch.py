# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modules, traced, scripted and frozen, through relay.frontend.from_pytorch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relay

import relay_ext
from helpers.relay import target
from helpers.relay_imported import TARGET, is_right, uncorrected


def imported(model: nn.Module, shape: tuple[int, ...]) -> tuple[tvm.IRModule, dict, np.ndarray]:
    traced = torch.jit.trace(model.eval(), torch.zeros(shape))
    mod, params = relay.frontend.from_pytorch(traced, [("data", shape)])
    return mod, params


def convolution(mod: tvm.IRModule) -> relay.Call:
    """The only convolution of a module."""
    found = []

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Call) and str(getattr(node.op, "name", "")).startswith("nn.conv"):
            found.append(node)

    relay.analysis.post_order_visit(mod["main"], visit)
    (call,) = found
    return call


@pytest.mark.parametrize(
    ("model", "shape", "name", "layout"),
    [
        (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), (1, 4, 9),
         "nn.conv1d_transpose", "IOW"),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2),
         (1, 4, 5, 6), "nn.conv2d_transpose", "IOHW"),
        (nn.ConvTranspose2d(4, 4, (3, 2), padding=(2, 1), bias=False), (2, 4, 5, 6),
         "nn.conv2d_transpose", "IOHW"),
        (nn.ConvTranspose3d(4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2),
         (1, 4, 3, 4, 2), "nn.conv3d_transpose", "IODHW"),
        (nn.Conv1d(4, 6, 3, groups=2, dilation=2), (1, 4, 9), "nn.conv1d", "OIW"),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9), "nn.conv1d", "OIW"),
        (nn.Conv2d(4, 8, 3, groups=4), (1, 4, 5, 6), "nn.conv2d", "OIHW"),
        (nn.Conv2d(4, 6, (4, 3), padding="same", dilation=(1, 2)), (1, 4, 5, 6),
         "nn.conv2d", "OIHW"),
        (nn.Conv2d(4, 6, 3, padding="valid"), (1, 4, 5, 6), "nn.conv2d", "OIHW"),
        (nn.Conv1d(4, 6, 4, padding="same"), (1, 4, 9), "nn.conv1d", "OIW"),
        (nn.Conv3d(4, 8, 3, groups=4), (1, 4, 5, 4, 3), "nn.conv3d", "OIDHW"),
        (nn.Conv3d(2, 3, 2, padding="same"), (1, 2, 3, 4, 3), "nn.conv3d", "OIDHW"),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_module(
    model: nn.Module, shape: tuple[int, ...], name: str, layout: str, rng: np.random.Generator
) -> None:
    """Right values, the rank of the module, and the layout that its weight really has."""
    mod, params = imported(model, shape)
    call = convolution(mod)
    assert call.op.name == name
    assert call.attrs.kernel_layout == layout
    weight = relay.transform.InferType()(mod)["main"].params[1].checked_type
    assert tuple(map(int, weight.shape)) == tuple(model.weight.shape)
    data = rng.standard_normal(shape).astype("f")
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=target(), params=params)
    runner = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu()))
    runner.set_input("data", data)
    runner.run()
    want = model.double()(torch.tensor(data).double()).detach().numpy()
    assert runner.get_output(0).shape == want.shape
    np.testing.assert_allclose(runner.get_output(0).numpy(), want, rtol=1e-4, atol=1e-4)


def test_stock_has_its_own_converters() -> None:
    model = nn.Conv1d(4, 6, 3, groups=2)
    with relay_ext.stock():
        mod, _ = imported(model, (1, 4, 9))
        assert convolution(mod).op.name == "nn.conv2d"
    mod, _ = imported(model, (1, 4, 9))
    assert convolution(mod).op.name == "nn.conv1d"


# ------------------------------------------------------------------- each way to a TorchScript

TRACED, SCRIPTED, FROZEN = "traced", "scripted", "frozen"
EVERY_WAY = (TRACED, SCRIPTED, FROZEN)
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative to the largest value: some rounding of sums, and half an ulp, or two where both a
convolution and its bias round."""


def script_of(model: nn.Module, data: torch.Tensor, way: str) -> torch.jit.ScriptModule:
    if way == TRACED:
        return torch.jit.trace(model, data)
    scripted = torch.jit.script(model)
    return torch.jit.freeze(scripted) if way == FROZEN else scripted


def check(model: nn.Module, shape: tuple[int, ...], way: str, dtype: str = "float32") -> None:
    """Shape, dtype and values of PyTorch, in float64."""
    torch.manual_seed(0)
    model = model.eval().to(getattr(torch, dtype))
    data = torch.randn(shape).to(getattr(torch, dtype))
    script = script_of(model, data, way)
    want = copy.deepcopy(model).double()(data.double()).detach()
    mod, params = relay.frontend.from_pytorch(script, [("data", (shape, dtype))])
    assert tuple(map(int, relay.transform.InferType()(mod)["main"].ret_type.shape)) == want.shape
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=TARGET, params=params)
    runner = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu()))
    # A copy: TVM wants tensors aligned to 64 bytes.
    runner.set_input("data", tvm.nd.from_dlpack(data.clone()).copyto(tvm.cpu()))
    runner.run()
    got = torch.from_dlpack(runner.get_output(0))
    assert str(got.dtype) == f"torch.{dtype}"
    assert (got.double() - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()


class Sized(nn.Module):
    """A transposed convolution of a wanted size, given or computed."""

    def __init__(self, layer: nn.Module, size: list[int] | None = None) -> None:
        super().__init__()
        self.layer, self.size = layer, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = self.size
        if size is None:
            return self.layer(x, output_size=[2 * rows for rows in x.shape[2:]])
        return self.layer(x, output_size=size)


class Branching(nn.Module):
    """Control flow that shapes decide, and a parameter that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(3, 3, 4, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[-1] - 4):
            x = torch.relu(self.up(x))
        return x if x.dim() == 3 else x[0]


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), (2, 2, 6)),
        (nn.Conv3d(1, 2, 2, padding="same", padding_mode="circular"), (1, 1, 4, 3, 5)),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (1, 2, 5, 6)),
        (nn.Conv2d(2, 3, 3, padding="same", padding_mode="replicate"), (1, 2, 5, 6)),
        (nn.Conv1d(4, 2, 4, padding="same", dilation=2, groups=2, bias=False), (1, 4, 9)),
        (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False), nn.ReLU()),
         (1, 4, 5, 6)),
        (nn.ConvTranspose3d(2, 3, (3, 2, 1), stride=2, output_padding=1), (2, 3, 2, 4)),
        (Sized(nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), [10, 11]), (2, 2, 5, 6)),
        (Sized(nn.ConvTranspose1d(2, 3, 4, stride=3), [2, 3, 15]), (2, 2, 4)),
        (Sized(nn.ConvTranspose3d(1, 2, 3, stride=2, padding=1)), (1, 1, 3, 2, 4)),
        (Branching(), (2, 3, 6)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_every_way_to_a_script(model: nn.Module, shape: tuple[int, ...], way: str) -> None:
    check(model, shape, way)
    mode, padding = (getattr(model, name, None) for name in ("padding_mode", "padding"))
    if way != TRACED or mode == "circular" or (mode == "zeros" and isinstance(padding, str)):
        with uncorrected():
            assert not is_right(lambda: check(model, shape, way))


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dtypes(dtype: str, way: str) -> None:
    up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    check(nn.Sequential(up, nn.ReLU()), (1, 4, 5, 6), way, dtype)
    if way != TRACED or dtype == "bfloat16":
        with uncorrected():
            assert not is_right(lambda: check(up, (1, 4, 5, 6), way, dtype))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_keeps_its_parameters_and_is_left_alone() -> None:
    model = torch.jit.script(nn.Sequential(nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(3, 2, 3)).eval())
    before = str(model.graph)
    mod, params = relay.frontend.from_pytorch(model, [("data", (1, 2, 7))])
    assert sorted(tuple(p.shape) for p in params.values()) == [(2,), (3,), (3, 2, 3), (3, 2, 3)]
    assert mod["main"].params[0].name_hint == "data"
    assert str(model.graph) == before


def test_circular_padding_that_crops_is_refused_in_one_line() -> None:
    class Cropped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(x, [-1, 2], mode="circular")

    with pytest.raises(ValueError, match=r"^aten::pad: pad=\[-1, 2\] must be at least 0"):
        imported(Cropped(), (1, 2, 5))


class Changed(nn.Module):
    """Module that changes a tensor in place, reads it, and changes it once more."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result = self.conv(data)
        other = self.relu(result)
        result.add_(1.0)
        return other + result


@pytest.mark.parametrize("way", [SCRIPTED, FROZEN])
def test_operators_in_place(way: str) -> None:
    check(Changed(), (1, 2, 6, 5), way)


class Indexed(nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result = torch.relu(data)
        result[:, 0] = 0.0
        return result


def test_what_cannot_be_simplified_is_refused_as_tvm_refuses_it() -> None:
    script = torch.jit.script(Indexed().eval())
    with pytest.raises(Exception, match="are not implemented") as stock, relay_ext.stock():
        relay.frontend.from_pytorch(script, [("data", (1, 2, 3))])
    with pytest.raises(type(stock.value), match="are not implemented"):
        relay.frontend.from_pytorch(script, [("data", (1, 2, 3))])
