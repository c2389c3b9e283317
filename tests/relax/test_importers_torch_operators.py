# SPDX-License-Identifier: Apache-2.0
"""torch.export: each operator that TVM's importer converts, with random arguments.

Every call is either imported with PyTorch's values or refused in one line.  A call that fails is
replayed by ``DRAWS[name](Draw(seed))`` with the name and the seed of the failure's message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm

from helpers import build

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program, from_fx  # noqa: E402

from helpers.imported import TARGET, assert_stock_is_wrong, runners, uncorrected  # noqa: E402
from helpers.torch_draws import DRAWS, Call, Draw  # noqa: E402
from helpers.whole import Function  # noqa: E402

DOORS = ("export", "raw", "fx")

DRAWN = {"raw": 3, "export": 1, "fx": 1}
"""Calls of each operator; fewer of those that PyTorch decomposes first, which takes longest."""

NOT_TRACED = frozenset((*("split", "unbind", "scatter", "meshgrid", "lstm", "gru", "rnn"),))
"""Operators whose calls the importer of traced graphs gets wrong, or refuses otherwise than in one
line."""

MOST_DRAWN = 12
"""Calls of an operator until one is accepted."""

GROUP = 12
"""Operators of one compiled module."""

REFUSED = frozenset(("bilinear, antialiased", "grid_sample", "meshgrid"))
"""Operators of which all calls may be refused, decomposed or not."""

# Relative to the largest value.  The functions of float32 and float64 that TVM calls are exact to
# a few units in the last place, its tanh to 1e-7; of float16 each operator rounds, PyTorch once.
RELATIVE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.float16: 1e-2}


def grouped(names: Iterable[str]) -> list[list[str]]:
    """Return names by the module in which their operators are compiled."""
    every = list(names)
    return [every[i : i + GROUP] for i in range(0, len(every), GROUP)]


@dataclass(frozen=True)
class Imported:
    """A call and the module that was made of it."""

    what: str
    call: Call
    module: tvm.IRModule


def of_count(module: nn.Module, count: int) -> nn.Module:
    """Return a module with as many arguments, which torch.fx cannot trace as a list."""
    names = ", ".join(f"x{number}" for number in range(count))
    forward = eval(f"lambda self, {names}: self.module({names})")
    traced = type("Traced", (nn.Module,), {"forward": forward})()
    traced.module = module
    return traced


def imported(call: Call, door: str) -> tvm.IRModule:
    """Return the module of a call; ValueError of one line where it is refused."""
    module = Function(call.function)
    if door == "fx":
        info = [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in call.tensors]
        return from_fx(torch.fx.symbolic_trace(of_count(module, len(info))), info)
    exported = torch.export.export(module, call.tensors)
    return from_exported_program(exported, run_ep_decomposition=door == "export")


def accepted(what: str, call: Call, door: str) -> Imported | None:
    """Return an imported call, None where it is refused by us or not known to TVM."""
    try:
        return Imported(what, call, imported(call, door))
    except (ValueError, AssertionError) as error:
        is_unknown = str(error).startswith("Unsupported function")
        if "\n" in str(error) or (isinstance(error, AssertionError) and not is_unknown):
            raise AssertionError(f"{what}: {error}") from error
    return None


def compare(cases: Sequence[Imported]) -> None:
    """Compare modules with PyTorch."""
    run = runners({f"f{number}": case.module for number, case in enumerate(cases)})
    for number, case in enumerate(cases):
        inputs = [tvm.runtime.from_dlpack(t.contiguous()) for t in case.call.tensors]
        assert_equal(torch.from_dlpack(run[f"f{number}"](*inputs)), case)


def assert_equal(got: Any, case: Imported) -> None:
    with torch.no_grad():
        want = case.call.function(*case.call.tensors)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), case.what
    scale = want[want.isfinite()].double().abs().max().item() if want.isfinite().any() else 0
    tolerance = RELATIVE.get(want.dtype, 0) * scale
    torch.testing.assert_close(
        got, want, rtol=0, atol=tolerance, equal_nan=True, msg=lambda said: f"{case.what}: {said}"
    )


@pytest.mark.parametrize("door", DRAWN)
@pytest.mark.parametrize("names", grouped(DRAWS), ids=lambda names: f"{names[0]} to {names[-1]}")
def test_any_call(names: list[str], door: str, rng: np.random.Generator) -> None:
    cases = []
    for name in (name for name in names if door != "fx" or name not in NOT_TRACED):
        seeds = rng.integers(2**32, size=MOST_DRAWN).tolist()
        found: list[Imported | None] = []
        for seed in seeds:
            if len(found) >= DRAWN[door] and (door != "raw" or any(found)):
                break
            found.append(accepted(f"{name}, seed {seed}", DRAWS[name](Draw(seed)), door))
        if door == "raw":
            assert name in REFUSED or any(found), f"{name}: all of {seeds} are refused"
        cases += [one for one in found if one is not None]
    compare(cases)


def image(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape or (2, 4, 6, 6), generator=generator) * 2).to(dtype)


DOUBLE, HALF = torch.float64, torch.float16
INTS = torch.arange(-6, 6).reshape(3, 4)
CLASSES = torch.arange(24).reshape(2, 3, 4) % 5
EXPORT, RAW, FX, RIGHT = ("export",), ("raw",), ("fx",), ()
BOTH, RAW_FX, EXPORT_FX = (*EXPORT, *RAW), (*RAW, *FX), (*EXPORT, *FX)
"""Ways into TVM by which TVM alone is wrong."""

BYTES = torch.arange(0, 250, 5, dtype=torch.uint8)
SMALL = torch.arange(-5, 6)
TRUTHS = torch.tensor([True, False, True])
FLOATS = torch.linspace(-3, 3, 11)


FAULTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = {
    "selu": (F.selu, (image(),), EXPORT),
    "activations as modules": (
        nn.Sequential(nn.ELU(0.5), nn.CELU(0.5), nn.Hardtanh(-2, 0.5), nn.GELU("tanh")),
        (image(),),
        RAW_FX,
    ),
    "layer norm without weights": (nn.LayerNorm(6, elementwise_affine=False), (image(),), FX),
    "sums with factors": (
        lambda x, y: torch.stack(
            [torch.add(x, y, alpha=3), torch.sub(x, y, alpha=0.5), torch.rsub(x, y, alpha=3)]
        ),
        (image(), image().abs()),
        BOTH,
    ),
    "products of float64": (
        lambda x, y, b: torch.stack(
            [x @ y, torch.addmm(b, x, y), (x[None] @ y)[0], torch.bmm(x[None], y[None])[0]]
        ),
        (image(3, 4, dtype=DOUBLE), image(4, 5, dtype=DOUBLE), image(5, dtype=DOUBLE)),
        BOTH,
    ),
    "linear of float64 as a module": (nn.Linear(6, 3).double(), (image(dtype=DOUBLE),), DOORS),
    "baddbmm, alpha 0": (
        partial(torch.baddbmm, alpha=0),
        (image(5), image(2, 3, 4), image(2, 4, 5)),
        RAW,
    ),
    "clamps of integers": (
        lambda x, y: torch.stack(
            [torch.clamp(x, min=-1), torch.clamp(x, max=2), torch.clamp_min(x, 1), x.clamp(y)]
        ),
        (INTS, INTS.flip(0)),
        DOORS,
    ),
    "clamp of integers by a fraction": (lambda x: torch.clamp(x, -1.5, 2.5), (INTS,), DOORS),
    "clamps": (
        lambda x: torch.stack([torch.clamp_max(x, 0.5), x.clamp(1, 0.25)]), (image(),), DOORS,
    ),
    "deviations": (
        lambda x: torch.stack(torch.var_mean(x, 1)) + x.std(1) + x.var(1, keepdim=True)[:, 0],
        (image(),),
        DOORS,
    ),
    "deviation of all": (lambda x: x.std(), (image(),), RAW_FX),
    "rows and columns": (
        lambda x: x[:, -1] * 2 + x[0, 1::2] + x.narrow(1, 2, 2)[1] + x[1][2:], (image(),), DOORS,
    ),
    "chunks of two sizes": (lambda x: torch.chunk(x, 5, 2)[-1] * 2, (image(2, 3, 7),), RAW_FX),
    "norms without weights": (
        lambda x: F.instance_norm(x, eps=0.5) + F.group_norm(x, 2) + F.layer_norm(x, (6,)),
        (image(),),
        DOORS,
    ),
    "group_norm, bfloat16": (
        lambda x: F.group_norm(x, 2).float(), (image(dtype=torch.bfloat16),), DOORS,
    ),
    "mean of layer_norm": (
        lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5)[1], (image(),), DOORS,
    ),
    "mean of group_norm": (
        lambda x, w: torch.native_group_norm(x, w, w, 2, 4, 36, 2, 1e-5)[1],
        (image(), image(4)),
        BOTH,
    ),
    "max_pool without strides": (
        partial(F.max_pool2d, kernel_size=2, padding=1), (image(),), DOORS,
    ),
    "indices of max_pool": (
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1], (image(),), DOORS,
    ),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 3), (image(),), DOORS),
    "avg_pool without a batch": (lambda x: F.avg_pool1d(x, 2) * 2, (image(3, 8),), DOORS),
    "divisor of windows beyond the padding": (
        partial(
            F.avg_pool2d, kernel_size=3, stride=2, padding=1, ceil_mode=True, divisor_override=5
        ),
        (image(1, 2, 8, 8),),
        DOORS,
    ),
    "softmax in another dtype": (
        partial(F.softmax, dim=1, dtype=torch.float32), (image(dtype=HALF),), RAW_FX,
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (image(),), RAW_FX),
    "any of floats": (
        lambda x: torch.any(x > 0, 1) | torch.any(x, 1) & (x < -1).any(), (-image().abs(),), DOORS,
    ),
    "sums and products of truth values": (
        lambda x: ((x > 0) * (x < 1)) + (x < -1), (image(),), DOORS,
    ),
    "prod of integers": (torch.prod, (INTS.int(),), DOORS),
    "exp of integers": (torch.exp, (INTS,), DOORS),
    "factors that give no whole size": (
        lambda x: F.interpolate(x, scale_factor=1.5)
        + F.interpolate(x, scale_factor=1.5, mode="bilinear")
        + F.interpolate(x, scale_factor=1.5, mode="bicubic"),
        (image(1, 2, 5, 7),),
        DOORS,
    ),
    "bilinear, factor of sizes": (
        partial(F.interpolate, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True),
        (image(1, 2, 5, 7),),
        FX,
    ),
    "nearest by a factor that keeps the size": (
        partial(F.interpolate, scale_factor=1.3), (image(1, 2, 3),), RAW_FX,
    ),
    "linear of one axis": (
        partial(F.interpolate, scale_factor=1.5, mode="linear"), (image(2, 3, 7),), DOORS,
    ),
    "extremes and products": (lambda x: x.amax(1) + x.min(1)[0] + x.prod(1), (image(),), DOORS),
    "place of a minimum": (lambda x: x.min(1)[1], (image(),), DOORS),
    "windows": (lambda x: x.unfold(2, 3, 2), (image(),), DOORS),
    "norms": (
        lambda x: torch.norm(x, keepdim=True) + x.norm(p=3, dim=(1, 2)), (image(),), FX,
    ),
    "attention without heads": (F.scaled_dot_product_attention, (image(5, 4),) * 3, RAW),
    "attention without images": (
        partial(F.scaled_dot_product_attention, is_causal=True), (image(3, 5, 4),) * 3, RAW,
    ),
    "attention of shared heads": (
        partial(F.scaled_dot_product_attention, enable_gqa=True),
        (image(2, 6, 5, 4), image(2, 3, 5, 4), image(2, 3, 5, 4)),
        RAW,
    ),
    "a mask of truth values, one row empty": (
        F.scaled_dot_product_attention,
        (*(image(2, 3, 5, 4),) * 3, torch.arange(25).reshape(5, 5) % 7 > 4),
        RAW,
    ),
    "cross_entropy of images": (
        lambda x, w: F.cross_entropy(x, CLASSES, w, ignore_index=2, label_smoothing=0.1),
        (image(2, 5, 3, 4), image(5).abs()),
        RAW,
    ),
    "cross_entropy of probabilities, summed": (
        lambda x, y: F.cross_entropy(x, y.softmax(1), reduction="sum", label_smoothing=0.1),
        (image(4, 5), image(4, 5)),
        RAW,
    ),
    "zeros_like in another dtype": (
        lambda x: torch.zeros_like(x, dtype=torch.int64), (image(),), RAW_FX,
    ),
    "integers and fractions": (
        lambda x: torch.stack([x + 0.5, 1.5 - x, x * 0.5, x / 2, x.abs() ** 0.5]), (SMALL,), DOORS,
    ),
    "integers compared with fractions": (lambda x: (x < 0.5) & (x != -0.5), (SMALL,), DOORS),
    "bytes read twice": (lambda x: x / 255.0 + x * 2, (BYTES,), DOORS),
    "truths * 2": (lambda x: x * 2, (TRUTHS,), DOORS),
    "truths * 2.5": (lambda x: x * 2.5, (TRUTHS,), DOORS),
    "cumsum of truths": (lambda x: torch.cumsum(x, 0), (TRUTHS,), DOORS),
    "cumsum of small ints": (
        lambda x: torch.cumsum(x, 0), (torch.full((40,), 9, dtype=torch.int8),), DOORS,
    ),
    "ints / 2, truncated": (lambda x: torch.div(x, 2, rounding_mode="trunc"), (SMALL,), DOORS),
    "floats / 0.7, truncated": (
        lambda x: torch.div(x, 0.7, rounding_mode="trunc"), (FLOATS.double(),), DOORS,
    ),
    "ints // 2": (lambda x: x // 2, (SMALL,), EXPORT),
    "floats // 2": (lambda x: x // 2, (FLOATS,), EXPORT),
    "integers and floats": (
        lambda i, f, half, narrow: (i + f) + i * half + (narrow - i),
        (SMALL, FLOATS, FLOATS.half(), SMALL.int()),
        RIGHT,
    ),
    "integers": (
        lambda i: i**2 + i % 3 + torch.div(i, i.abs() + 2, rounding_mode="floor"), (SMALL,), RIGHT,
    ),
}  # fmt: skip
"""Calls that TVM alone gets wrong by some ways, several operators in one where they share operands;
:func:`test_any_call` draws calls of the others."""


UNKNOWN = {("exp of integers", "fx")}
"""Functions that the importer of traced graphs refuses."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("names", grouped(FAULTS), ids=lambda names: f"{names[0]} to {names[-1]}")
def test_as_in_torch(names: list[str], door: str) -> None:
    def made(name: str) -> Imported:
        call = Call(*FAULTS[name][:2])
        return Imported(name, call, imported(call, door))

    compare([made(name) for name in names if (name, door) not in UNKNOWN])
    for name in names:
        if door in FAULTS[name][2]:
            assert_stock_is_wrong(lambda name=name: compare([made(name)]))


def test_divisor_of_the_area() -> None:
    """TVM's own ignores the divisor, which changes nothing here."""
    call = Call(partial(F.avg_pool2d, kernel_size=[2, 1], divisor_override=2), (image(),))
    compare([Imported("avg_pool2d", call, imported(call, door)) for door in BOTH])


def in_training(module: nn.Module) -> nn.Module:
    return module.train()


REFUSALS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[bool, ...], str]] = {
    "antialiased to a smaller size": (
        partial(F.interpolate, size=(3, 8), mode="bilinear", antialias=True),
        (image(),),
        EXPORT,
        r"upsample: antialias=True must come with a larger size: \(6, 6\) to \(3, 8\)",
    ),
    "antialiased between corners": (
        partial(F.interpolate, size=(9, 8), mode="bilinear", antialias=True, align_corners=True),
        (image(),),
        EXPORT,
        r"upsample: antialias=True must come with align_corners=False",
    ),
    "state of an LSTM": (
        lambda *tensors: torch.lstm(*tensors[:1], tensors[1:3], tensors[3:], *_LSTM)[1],
        (image(3, 1, 2), *(image(1, 1, 4),) * 2, image(16, 2), image(16, 4)),
        RAW,
        r"lstm: result 1 must not be used: .*",
    ),
    "dropout": (
        partial(F.dropout, p=0.5, training=True),
        (image(),),
        BOTH,
        r"(native_)?dropout: train=True must be False: call eval\(\) .*|bernoulli: random .*",
    ),
    "bernoulli": (
        partial(torch.bernoulli, p=0.5),
        (image(),),
        BOTH,
        r"bernoulli: random numbers are not imported: call eval\(\) .*",
    ),
    "randn": (
        lambda x: x + torch.randn(6),
        (image(),),
        BOTH,
        r"randn: random numbers are not imported: .*",
    ),
    "randn_like": (
        lambda x: x + torch.randn_like(x),
        (image(),),
        BOTH,
        r"randn(_like)?: random numbers are not imported: .*",
    ),
    "batch normalization that trains": (
        in_training(nn.BatchNorm2d(4)),
        (image(),),
        BOTH,
        r"batch_norm: training=True would update running statistics, .* call eval\(\) .*",
    ),
    "reflection by a negative number": (
        lambda x: F.pad(x, (-1, 2, 1, 1), "reflect"),
        (image(),),
        RAW,
        r"pad: pad=\[-1, 2, 1, 1\] must not be negative where mode='reflect'",
    ),
}
_LSTM = False, 1, 0.0, False, False, False


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_one_line(name: str) -> None:
    function, tensors, ways, said = REFUSALS[name]
    call = Call(function, tensors)
    for door in ways:
        with pytest.raises(ValueError, match=rf"^({said})$"):
            imported(call, door)
        with uncorrected():
            imported(call, door)  # silently


def test_masks_as_indices() -> None:
    with pytest.raises(ValueError, match=r"^index: indices must be integers: the size .*known$"):
        imported(Call(lambda x: x[x > 0], (image(),)), door="export")


def test_products_of_halves_are_summed_in_float32() -> None:
    """Sums of 4096 products in float16 would be 1 % off."""
    x, w = image(2, 4096, dtype=HALF), image(4096, 3, dtype=HALF)
    module = imported(Call(torch.mm, (x, w)), door="export")
    vm = build.compiled(module, TARGET)
    got = torch.from_dlpack(vm["main"](*map(tvm.runtime.from_dlpack, (x, w)))[0])
    want = x.double() @ w.double()
    assert (got.double() - want).abs().max() <= 2**-10 * want.abs().max()  # half a unit, one sum


def test_free_sizes() -> None:
    """Converters state sizes by the variables that TVM's importer makes for the inputs."""

    def function(x: Any) -> Any:
        return x.amax(3).unfold(1, 3, 2)[:, :, :3] * 2 + x.min(3)[1][:, :1, :3].unsqueeze(-1)

    batch, rows = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("rows", min=9, max=64)
    exported = torch.export.export(
        Function(function), (image(2, 5, 9, 6),), dynamic_shapes=(({0: batch, 2: rows},),)
    )
    vm = build.compiled(from_exported_program(exported), TARGET)
    for shape in ((2, 5, 9, 6), (3, 5, 20, 6)):
        x = image(*shape)
        got = torch.from_dlpack(vm["main"](tvm.runtime.from_dlpack(x))[0])
        assert torch.equal(got, function(x))


@pytest.mark.parametrize(
    "module",
    [nn.Dropout(), Function(F.dropout), nn.BatchNorm2d(4)],
    ids=["Dropout", "dropout", "BatchNorm2d"],
)
def test_traced_in_training_is_refused(module: nn.Module) -> None:
    graph = torch.fx.symbolic_trace(nn.Sequential(module.train()))
    with pytest.raises(ValueError, match=r"^\w+: training=True [^\n]* call eval\(\) [^\n]*$"):
        from_fx(graph, [((2, 4, 6, 6), "float32")])
    with uncorrected():
        from_fx(graph, [((2, 4, 6, 6), "float32")])  # silently
