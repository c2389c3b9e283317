# SPDX-License-Identifier: Apache-2.0
"""torch.export, with and without decomposition, and torch.fx: what a model means in PyTorch.

Each form is also seen to be wrong where it is said to be, with the corrections taken out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import tvm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program, from_fx  # noqa: E402

from helpers.imported import assert_close, assert_stock_is_wrong, runner, runners  # noqa: E402
from topi_ext.compat import tir  # noqa: E402

DOORS = ("export", "raw", "fx")


class Call(nn.Module):
    """A functional call whose weights are parameters."""

    def __init__(self, function: Callable, weight: tuple, *args: Any, bias: int = 0, **kwargs: Any):
        super().__init__()
        self.function, self.args, self.kwargs = function, args, kwargs
        self.w = nn.Parameter(torch.randn(weight))
        self.b = nn.Parameter(torch.randn(bias)) if bias else None

    def forward(self, x: Any) -> Any:
        return self.function(x, self.w, self.b, *self.args, **self.kwargs)


class Keywords(Call):
    """The call with every argument by keyword."""

    def forward(self, x: Any) -> Any:
        return self.function(input=x, weight=self.w, bias=self.b, **self.kwargs)


class Sized(nn.Module):
    """A transposed convolution that is asked for a size when it is called."""

    def __init__(self, module: nn.Module, *size: int):
        super().__init__()
        self.module, self.size = module, list(size)

    def forward(self, x: Any) -> Any:
        return self.module(x, output_size=self.size)


class Normed(nn.Module):
    """A layer and a batch normalization that has seen other data than it is given."""

    def __init__(self, layer: nn.Module, norm: nn.Module, functional: bool = False):
        super().__init__()
        self.layer, self.norm, self.functional = layer, norm, functional
        for tensor in norm.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        y, norm = self.layer(x), self.norm
        if not self.functional:
            return norm(y)
        return F.batch_norm(y, norm.running_mean, norm.running_var, bias=norm.bias, eps=norm.eps)


@dataclass(frozen=True)
class Form:
    """A model, its input, and through which doors TVM alone gets it wrong."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    wrong: tuple[str, ...] = DOORS
    dtype: str = "float32"
    free: tuple[int, ...] = ()


RAW_FX = ("raw", "fx")
FORMS = {
    "module of rank 1": Form(
        lambda: nn.ConvTranspose1d(4, 6, 4, 3, 1, 2, groups=2, dilation=2), (2, 4, 6), ()
    ),
    "module of rank 3": Form(
        lambda: nn.ConvTranspose3d(2, 4, (3, 2, 4), (2, 1, 3), (1, 0, 1), (1, 0, 2), groups=2),
        (2, 2, 3, 4, 3),
    ),
    "keywords, rank 1": Form(
        lambda: Keywords(F.conv_transpose1d, (2, 3, 4), stride=3, padding=1, output_padding=2),
        (2, 2, 5),
        ("fx",),
    ),
    "keywords, rank 2": Form(
        lambda: Keywords(
            F.conv_transpose2d, (4, 1, 3, 2), bias=2, stride=(2, 3), groups=2, dilation=(2, 1)
        ),
        (2, 4, 5, 4),
        ("fx",),
    ),
    "positions, rank 3": Form(
        lambda: Call(F.conv_transpose3d, (2, 3, 3, 2, 2), 2, (1, 0, 1), 1, 1, 1, bias=3),
        (2, 2, 3, 4, 3),
    ),
    "keywords, convolution": Form(
        lambda: Keywords(F.conv2d, (4, 1, 3, 3), bias=4, stride=(2, 1), padding=1, groups=2),
        (2, 2, 7, 6),
        ("fx",),
    ),
    "output_size, rank 1": Form(
        lambda: Sized(nn.ConvTranspose1d(2, 3, 3, 3, 1), 15), (2, 2, 5), ("fx",)
    ),
    "output_size, rank 2": Form(
        lambda: Sized(nn.ConvTranspose2d(2, 3, 3, 2, 1), 2, 3, 10, 9), (2, 2, 5, 5), ("fx",)
    ),
    "output_size, rank 3": Form(
        lambda: Sized(nn.ConvTranspose3d(2, 3, 2, 2), 7, 9, 6), (2, 2, 3, 4, 3)
    ),
    "padding=same, rank 1": Form(
        lambda: nn.Conv1d(2, 3, 4, padding="same", dilation=3), (2, 2, 11), RAW_FX
    ),
    "padding=same, rank 2": Form(
        lambda: Call(F.conv2d, (3, 2, 2, 3), 1, "same", (1, 2), bias=3), (2, 2, 6, 7), RAW_FX
    ),
    "padding=same, rank 3": Form(
        lambda: Keywords(F.conv3d, (3, 2, 2, 3, 2), padding="same"), (2, 2, 4, 5, 4), RAW_FX
    ),
    "padding=valid": Form(
        lambda: Keywords(F.conv2d, (3, 2, 2, 3), stride=2, padding="valid"), (2, 2, 6, 7), RAW_FX
    ),
    "padding=same, free sizes": Form(
        lambda: nn.Conv2d(2, 3, (3, 4), padding="same"), (3, 2, 8, 8), RAW_FX, free=(0, 2, 3)
    ),
    "circular": Form(
        lambda: nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"), (2, 2, 7), ("fx",)
    ),
    "reflect": Form(
        lambda: nn.Conv2d(2, 3, 3, 2, (1, 2), padding_mode="reflect"), (2, 2, 6, 7), ("fx",)
    ),
    "replicate": Form(
        lambda: nn.Conv3d(1, 2, 3, padding=(1, 2, 1), padding_mode="replicate"),
        (2, 1, 5, 4, 5),
        ("fx",),
    ),
    "no batch": Form(lambda: nn.Conv2d(2, 3, 3, 2, 1), (2, 6, 7), RAW_FX),
    "no batch, transposed": Form(
        lambda: nn.ConvTranspose1d(2, 3, 3, 2, 1, 1, dilation=2), (2, 6), RAW_FX
    ),
    "float16": Form(lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1), (2, 4, 5, 5), dtype="float16"),
    "bfloat16": Form(lambda: nn.Conv2d(4, 2, 3, bias=False), (2, 4, 5, 5), dtype="bfloat16"),
    "bfloat16, bias": Form(lambda: nn.ConvTranspose1d(3, 2, 3, 2), (2, 3, 5), dtype="bfloat16"),
    "float64": Form(lambda: nn.Conv1d(3, 2, 3), (2, 3, 8), dtype="float64"),
    "float64, rank 3": Form(
        lambda: nn.ConvTranspose3d(2, 3, 2, 2, output_padding=1), (1, 2, 3, 3, 3), dtype="float64"
    ),
    "batch norm": Form(
        lambda: Normed(nn.ConvTranspose2d(2, 3, 3, 2), nn.BatchNorm2d(3, eps=0.1)),
        (2, 2, 4, 5),
        RAW_FX,
    ),
    "batch norm, rank 1, not learned": Form(
        lambda: Normed(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3, affine=False)), (2, 2, 7), RAW_FX
    ),
    "batch norm, rank 3": Form(
        lambda: Normed(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3)), (2, 2, 3, 4, 3), RAW_FX
    ),
    "batch norm, none tracked": Form(
        lambda: Normed(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)),
        (2, 2, 4, 5),
        RAW_FX,
    ),
    "batch norm, called": Form(
        lambda: Normed(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, eps=0.1), functional=True),
        (2, 2, 4, 5),
        RAW_FX,
    ),
    "batch norm, bfloat16": Form(
        lambda: Normed(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (2, 2, 4, 5), dtype="bfloat16"
    ),
    "free sizes": Form(lambda: nn.ConvTranspose3d(2, 3, 3, 2, 1, 1), (3, 2, 3, 4, 3), free=(0, 3)),
}


def imported(model: nn.Module, form: Form, door: str, x: Any) -> tvm.IRModule:
    if door == "fx":
        shape = [tir.Var(f"n{i}", "int64") if i in form.free else a for i, a in enumerate(x.shape)]
        return from_fx(torch.fx.symbolic_trace(model), [(shape, form.dtype)])
    dims = {i: torch.export.Dim(f"n{i}", min=2, max=64) for i in form.free}
    exported = torch.export.export(model, (x,), dynamic_shapes=(dims,) if dims else None)
    return from_exported_program(exported, run_ep_decomposition=door == "export")


def drawn(form: Form) -> tuple[nn.Module, list[Any]]:
    """Return a model, and inputs of it."""
    torch.manual_seed(0)
    dtype = getattr(torch, form.dtype)
    model = nn.Sequential(form.model()).eval().to(dtype)
    inputs = [torch.randn(form.shape).to(dtype)]
    if form.free:
        larger = [size + (i in form.free) for i, size in enumerate(form.shape)]
        inputs.append(torch.randn(larger).to(dtype))
    return model, inputs


def check(names: Sequence[str], door: str) -> None:
    """Import and compile models as one module, and compare each with PyTorch."""
    made = {name: drawn(FORMS[name]) for name in names}
    modules = {n: imported(model, FORMS[n], door, x) for n, (model, (x, *_)) in made.items()}
    run = runners(modules)
    for name, (model, inputs) in made.items():
        for x in inputs:
            with torch.no_grad():
                assert model(x).dtype is x.dtype
                want = copy.deepcopy(model).double()(x.double())
            got = torch.from_dlpack(run[name](tvm.runtime.from_dlpack(x.contiguous())))
            assert got.dtype is x.dtype, name
            assert_close(got.double().numpy(), want.numpy(), FORMS[name].dtype)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("first", range(0, len(FORMS), 8))
def test_as_in_torch(first: int, door: str) -> None:
    """Eight forms at a time."""
    names = list(FORMS)[first : first + 8]
    check(names, door)
    for name in names:
        if door in FORMS[name].wrong:
            assert_stock_is_wrong(lambda name=name: check([name], door))


def test_parameters_of_other_layers_and_parameters_as_inputs() -> None:
    """Parameters that the importer converts itself, beside ours, in a model of several layers."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Linear(6, 3))
    x = torch.randn(2, 2, 8, 8)
    graph = torch.fx.symbolic_trace(model)
    want = model(x).detach().numpy()
    bound = runner(from_fx(graph, [((2, 2, 8, 8), "float32")]))
    assert_close(bound(tvm.runtime.tensor(x.numpy())).numpy(), want)
    mod = from_fx(graph, [((2, 2, 8, 8), "float32")], keep_params_as_input=True)
    params = mod["main"].attrs["params"]
    free = runner(mod)
    assert_close(free(tvm.runtime.tensor(x.numpy()), *params).numpy(), want)


@pytest.mark.parametrize("door", DOORS)
def test_batch_norm_of_data_narrower_than_what_it_has_learned(door: str) -> None:
    """Autocast makes data that is narrower than the statistics."""
    model = nn.Sequential(nn.BatchNorm2d(3)).eval()
    model[0].running_mean.uniform_(0.5, 2)
    x = torch.randn(2, 3, 4, 5).bfloat16()
    run = runner(imported(model, Form(lambda: model, x.shape, dtype="bfloat16"), door, x))
    got = torch.from_dlpack(run(tvm.runtime.from_dlpack(x)))
    want = model(x).detach()
    assert got.dtype is want.dtype is torch.bfloat16
    assert_close(got.double().numpy(), want.double().numpy(), "bfloat16")


def test_refusals_are_one_line() -> None:
    strided = Keywords(F.conv2d, (3, 2, 2, 3), stride=2, padding="same")
    graph = torch.fx.symbolic_trace(strided)
    said = r"^conv2d: padding='same' is not supported for strided convolutions$"  # as PyTorch says
    with pytest.raises(ValueError, match=said):
        from_fx(graph, [((1, 2, 6, 6), "float32")])
    sized = torch.fx.symbolic_trace(nn.Sequential(Sized(nn.ConvTranspose1d(2, 3, 3, 2), 14)))
    with pytest.raises(ValueError, match=r"^ConvTranspose1d: sizes must be known at import: .*$"):
        from_fx(sized, [((1, 2, tir.Var("n", "int64")), "float32")])
