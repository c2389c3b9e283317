# SPDX-License-Identifier: Apache-2.0
"""torch.export: each operator that TVM's importer converts, with random arguments.

Every call is either imported with PyTorch's values or refused in one line.  A call that fails is
replayed by ``DRAWS[name](Draw(seed))`` with the name and the seed of the failure's message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program, from_fx  # noqa: E402

from helpers.imported import TARGET, is_right, uncorrected  # noqa: E402
from helpers.torch_draws import DRAWS, Call, Draw  # noqa: E402
from helpers.whole import Function  # noqa: E402

DOORS = ("export", "raw", "fx")

DRAWN = {"raw": 3, "export": 1}
"""Calls of each operator; fewer of those that PyTorch decomposes first, which takes longest."""

MOST_DRAWN = 12
"""Calls of an operator until one is accepted."""

GROUP = 12
"""Operators of one compiled module."""

REFUSED = frozenset(
    (
        *(
            "bilinear, antialiased",
            "grid_sample",
            "meshgrid",
        ),
    )
)
"""Operators of which all calls may be refused, decomposed or not."""

# Relative to the largest value.  The functions of float32 and float64 that TVM calls are exact to
# a few units in the last place, its tanh to 1e-7; of float16 each operator rounds, PyTorch once.
RELATIVE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.float16: 1e-2}

GROUPS = [list(DRAWS)[i : i + GROUP] for i in range(0, len(DRAWS), GROUP)]


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
        is_unknown = str(error).startswith("Unsupported function types")
        if "\n" in str(error) or (isinstance(error, AssertionError) and not is_unknown):
            raise AssertionError(f"{what}: {error}") from error
    return None


def compare(cases: Sequence[Imported]) -> None:
    """Compare each module with PyTorch: those of one function compiled as one, others alone."""
    single = [case for case in cases if len(case.module.functions) == 1]
    named = {f"f{i}": case for i, case in enumerate(single)}
    functions = {
        name: case.module["main"].with_attr("global_symbol", name) for name, case in named.items()
    }
    if functions:
        compare_functions(tvm.IRModule(functions), named)
    for case in cases:
        if case not in single:
            compare_functions(case.module, {"main": case})


def compare_functions(module: tvm.IRModule, cases: Mapping[str, Imported]) -> None:
    vm = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
    for name, case in cases.items():
        inputs = [tvm.runtime.from_dlpack(t.contiguous()) for t in case.call.tensors]
        result = vm[name](*inputs)
        result = result if isinstance(result, tvm.runtime.Tensor) else result[0]
        assert_equal(torch.from_dlpack(result), case)


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
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]} to {names[-1]}")
def test_any_call(names: list[str], door: str, rng: np.random.Generator) -> None:
    cases = []
    for name in names:
        seeds = rng.integers(2**32, size=MOST_DRAWN).tolist()
        found: list[Imported | None] = []
        for seed in seeds:
            if len(found) >= DRAWN[door] and (door == "export" or any(found)):
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


class Product(nn.Module):
    """A product of parameters of the data's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(image(6, 6, dtype=DOUBLE))

    def forward(self, x: Any) -> Any:
        return x @ self.w


FAULTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = {
    "selu": (F.selu, (image(),), EXPORT),
    "celu": (partial(F.celu, alpha=0.5), (image(),), RAW_FX),
    "add, alpha": (partial(torch.add, alpha=3), (image(), image()), BOTH),
    "sub, alpha": (partial(torch.sub, alpha=0.5), (image(), image().abs()), BOTH),
    "rsub, alpha": (partial(torch.rsub, alpha=3), (image(), image().abs()), BOTH),
    "mm, float64": (
        torch.mm,
        (image(3, 4, dtype=DOUBLE), image(4, 5, dtype=DOUBLE)),
        BOTH,
    ),
    "bmm, float64": (
        torch.bmm,
        (image(2, 3, 4, dtype=DOUBLE), image(2, 4, 5, dtype=DOUBLE)),
        BOTH,
    ),
    "matmul, float64": (
        torch.matmul,
        (image(2, 3, 4, dtype=DOUBLE), image(4, 5, dtype=DOUBLE)),
        BOTH,
    ),
    "addmm, float64": (
        torch.addmm,
        (image(5, dtype=DOUBLE), image(3, 4, dtype=DOUBLE), image(4, 5, dtype=DOUBLE)),
        BOTH,
    ),
    "baddbmm, alpha 0": (
        partial(torch.baddbmm, alpha=0),
        (image(5), image(2, 3, 4), image(2, 4, 5)),
        RAW,
    ),
    "linear, float16": (
        F.linear,
        (image(3, 4, dtype=HALF), image(5, 4, dtype=HALF), image(5, dtype=HALF)),
        BOTH,
    ),
    "clamp of integers, a minimum": (lambda x: torch.clamp(x, min=-1), (INTS,), DOORS),
    "clamp of integers, a maximum": (lambda x: torch.clamp(x, max=2), (INTS,), DOORS),
    "clamp of integers by a fraction": (lambda x: torch.clamp(x, -1.5, 2.5), (INTS,), DOORS),
    "clamp of integers by a tensor": (torch.clamp, (INTS, INTS.flip(0)), BOTH),
    "clamp_min of integers": (lambda x: torch.clamp_min(x, 1), (INTS,), DOORS),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.5), (image(),), RAW_FX),
    "var_mean": (lambda x: torch.stack(torch.var_mean(x, (0, 2))), (image(),), DOORS),
    "std": (lambda x: torch.std(x, 1), (image(),), RAW_FX),
    "the last one": (lambda x: x[:, -1] * 2, (image(),), DOORS),
    "negative indices": (
        lambda x, i: x[:, i],
        (image(), torch.tensor([-1, 0, -4])),
        BOTH,
    ),
    "two indices behind an axis": (
        lambda x, i: x[:, i, i],
        (image(), torch.tensor([0, 2, 3])),
        BOTH,
    ),
    "index_put of some axes": (
        lambda x, i: torch.index_put(x, (i % 2, i), x[0, :3]),
        (image(), torch.tensor([0, 1, -2])),
        BOTH,
    ),
    "narrow": (lambda x: x.narrow(1, 2, 2) * 2, (image(),), RAW_FX),
    "chunks of two sizes": (lambda x: torch.chunk(x, 5, 2)[-1] * 2, (image(2, 3, 7),), RAW_FX),
    "nearest to a smaller size": (lambda x: F.interpolate(x, size=(2, 3)), (image(),), BOTH),
    "grid_sample": (
        partial(F.grid_sample, align_corners=False),
        (image(1, 2, 5, 5), torch.tanh(image(1, 3, 4, 2))),
        BOTH,
    ),
    "instance_norm, epsilon": (partial(F.instance_norm, eps=0.5), (image(),), RAW_FX),
    "group_norm without weights": (lambda x: F.group_norm(x, 2), (image(),), DOORS),
    "group_norm, bfloat16": (
        lambda x: F.group_norm(x, 2).float(),
        (image(dtype=torch.bfloat16),),
        DOORS,
    ),
    "clamp between bounds that cross": (lambda x: x.clamp(1, 0.25), (image(),), DOORS),
    "layer_norm without weights": (lambda x: F.layer_norm(x, (6,)), (image(),), RAW),
    "max_pool without strides": (
        partial(F.max_pool2d, kernel_size=2, padding=1),
        (image(),),
        DOORS,
    ),
    "avg_pool without a batch": (lambda x: F.avg_pool1d(x, 2) * 2, (image(3, 8),), DOORS),
    "softmax in another dtype": (
        partial(F.softmax, dim=1, dtype=torch.float32),
        (image(dtype=HALF),),
        RAW_FX,
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (image(),), RAW_FX),
    "isin, inverted": (partial(torch.isin, invert=True), (INTS, torch.tensor([1, 2])), RAW),
    "any of floats": (lambda x: torch.any(x > 0, 1) | torch.any(x, 1), (-image().abs(),), DOORS),
    "sums and products of truth values": (
        lambda x: ((x > 0) * (x < 1)) + (x < -1),
        (image(),),
        DOORS,
    ),
    "prod of integers": (torch.prod, (INTS.int(),), DOORS),
    "exp of integers": (torch.exp, (INTS,), DOORS),
    "divisor": (partial(F.avg_pool2d, kernel_size=2, divisor_override=3), (image(),), DOORS),
    "factor that gives no whole size": (
        partial(F.interpolate, scale_factor=1.5, mode="bilinear"),
        (image(1, 2, 5, 5),),
        DOORS,
    ),
    "nearest by a factor that gives no whole size": (
        partial(F.interpolate, scale_factor=1.3),
        (image(),),
        DOORS,
    ),
    "nearest by a factor that keeps the size": (
        partial(F.interpolate, scale_factor=1.3),
        (image(1, 2, 3),),
        RAW_FX,
    ),
    "indices of max_pool": (
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        (image(),),
        DOORS,
    ),
    "mean of layer_norm": (
        lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5)[1],
        (image(),),
        DOORS,
    ),
    "mean of group_norm": (
        lambda x, w: torch.native_group_norm(x, w, w, 2, 4, 36, 2, 1e-5)[1],
        (image(), image(4)),
        BOTH,
    ),
    "amax": (lambda x: x.amax((1, 2)), (image(),), DOORS),
    "minimum along an axis": (lambda x: x.min(1)[0], (image(),), DOORS),
    "its place": (lambda x: x.min(1)[1], (image(),), DOORS),
    "prod along an axis": (lambda x: x.prod(1), (image(),), BOTH),
    "any": (lambda x: (x > 1).any(), (image(),), DOORS),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 3), (image(),), DOORS),
    "windows": (lambda x: x.unfold(2, 3, 2), (image(),), DOORS),
    "linear of one axis": (
        partial(F.interpolate, scale_factor=1.5, mode="linear"),
        (image(2, 3, 7),),
        DOORS,
    ),
    "divisor of windows beyond the padding": (
        partial(
            F.avg_pool2d, kernel_size=3, stride=2, padding=1, ceil_mode=True, divisor_override=5
        ),
        (image(1, 2, 8, 8),),
        DOORS,
    ),
    "scale of attention": (
        partial(F.scaled_dot_product_attention, scale=2.0),
        (image(2, 3, 5, 4),) * 3,
        RAW,
    ),
    "attention without heads": (F.scaled_dot_product_attention, (image(5, 4),) * 3, RAW),
    "attention without images": (
        partial(F.scaled_dot_product_attention, is_causal=True),
        (image(3, 5, 4),) * 3,
        RAW,
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
        lambda x: torch.zeros_like(x, dtype=torch.int64),
        (image(),),
        RAW_FX,
    ),
    "bytes / 255.": (lambda x: x / 255.0, (BYTES,), DOORS),
    "ints + 0.5": (lambda x: x + 0.5, (SMALL,), DOORS),
    "1.5 - ints": (lambda x: 1.5 - x, (SMALL,), DOORS),
    "ints * 0.5": (lambda x: x * 0.5, (SMALL,), DOORS),
    "ints / 2": (lambda x: x / 2, (SMALL,), DOORS),
    "ints ** 0.5": (lambda x: x.abs() ** 0.5, (SMALL,), DOORS),
    "truths * 2": (lambda x: x * 2, (TRUTHS,), DOORS),
    "truths * 2.5": (lambda x: x * 2.5, (TRUTHS,), DOORS),
    "ints < 0.5": (lambda x: x < 0.5, (SMALL,), DOORS),
    "ints != 0.5": (lambda x: x != 0.5, (SMALL,), DOORS),
    "cumsum of truths": (lambda x: torch.cumsum(x, 0), (TRUTHS,), DOORS),
    "cumsum of small ints": (
        lambda x: torch.cumsum(x, 0),
        (torch.full((40,), 9, dtype=torch.int8),),
        DOORS,
    ),
    "ints / 2, truncated": (lambda x: torch.div(x, 2, rounding_mode="trunc"), (SMALL,), DOORS),
    "floats / 0.7, truncated": (
        lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
        (FLOATS.double(),),
        DOORS,
    ),
    "one operand twice": (lambda x: x / 255.0 + x * 2, (BYTES,), DOORS),
    "ints // 2": (lambda x: x // 2, (SMALL,), EXPORT),
    "floats // 2": (lambda x: x // 2, (FLOATS,), EXPORT),
    "ints / ints, floor": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        (
            SMALL,
            SMALL.abs() + 2,
        ),
        RIGHT,
    ),
    "ints + floats": (
        lambda x, y: x + y,
        (
            SMALL,
            FLOATS,
        ),
        RIGHT,
    ),
    "ints * halves": (
        lambda x, y: x * y,
        (
            SMALL,
            FLOATS.half(),
        ),
        RIGHT,
    ),
    "two widths": (
        lambda x, y: x - y,
        (
            SMALL.int(),
            SMALL,
        ),
        RIGHT,
    ),
    "ints ** 2": (lambda x: x**2, (SMALL,), RIGHT),
    "ints % 3": (lambda x: x % 3, (SMALL,), RIGHT),
    "between": (lambda x: (x > 1) & (x < 4), (SMALL,), RIGHT),
    "bytes as floats": (lambda x: x.float() / 255.0, (BYTES,), RIGHT),
    "ELU": (nn.ELU(0.5), (image(),), FX),
    "CELU as a module": (nn.CELU(0.5), (image(),), RAW_FX),
    "Hardtanh": (nn.Hardtanh(-2, 0.5), (image(),), FX),
    "GELU": (nn.GELU("tanh"), (image(),), FX),
    "linear, float64 as a module": (nn.Linear(6, 3).double(), (image(dtype=DOUBLE),), DOORS),
    "std of all": (lambda x: x.std(), (image(),), RAW_FX),
    "var, kept": (lambda x: x.var(1, keepdim=True), (image(),), RAW_FX),
    "norm, kept": (lambda x: torch.norm(x, keepdim=True), (image(),), FX),
    "norm along axes": (lambda x: x.norm(p=3, dim=(1, 2)), (image(),), FX),
    "one row, some columns": (lambda x: x[0, 1::2], (image(),), FX),
    "one row": (lambda x: x[1], (image(),), FX),
    "bilinear, factor of sizes": (
        partial(F.interpolate, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True),
        (image(1, 2, 5, 7),),
        FX,
    ),
    "bicubic by a factor": (
        partial(F.interpolate, scale_factor=1.5, mode="bicubic"),
        (image(1, 2, 5, 7),),
        RAW_FX,
    ),
}


UNKNOWN = {("exp of integers", "fx")}
"""Functions that the importer of traced graphs refuses."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", FAULTS)
def test_as_in_torch(name: str, door: str) -> None:
    function, tensors, wrong = FAULTS[name]
    call = Call(function, tensors)

    def check() -> None:
        compare([Imported(name, call, imported(call, door))])

    if (name, door) not in UNKNOWN:
        check()
    if door in wrong:
        with uncorrected():
            assert not is_right(check)


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
    vm = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
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
    vm = relax.VirtualMachine(tvm.compile(from_exported_program(exported), TARGET), tvm.cpu())
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
