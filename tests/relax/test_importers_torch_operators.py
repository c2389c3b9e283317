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

DRAWN = {False: 3, True: 1}
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


def imported(call: Call, decomposed: bool) -> tvm.IRModule:
    """Return the module of a call; ValueError of one line where it is refused."""
    exported = torch.export.export(Function(call.function), call.tensors)
    return from_exported_program(exported, run_ep_decomposition=decomposed)


def accepted(what: str, call: Call, decomposed: bool) -> Imported | None:
    """Return an imported call, None where it is refused by us or not known to TVM."""
    try:
        return Imported(what, call, imported(call, decomposed))
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


@pytest.mark.parametrize("decomposed", [True, False], ids=["export", "raw"])
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]} to {names[-1]}")
def test_any_call(names: list[str], decomposed: bool, rng: np.random.Generator) -> None:
    cases = []
    for name in names:
        seeds = rng.integers(2**32, size=MOST_DRAWN).tolist()
        found: list[Imported | None] = []
        for seed in seeds:
            if len(found) >= DRAWN[decomposed] and (decomposed or any(found)):
                break
            found.append(accepted(f"{name}, seed {seed}", DRAWS[name](Draw(seed)), decomposed))
        if not decomposed:
            assert name in REFUSED or any(found), f"{name}: all of {seeds} are refused"
        cases += [one for one in found if one is not None]
    compare(cases)


def image(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape or (2, 4, 6, 6), generator=generator) * 2).to(dtype)


DOUBLE, HALF = torch.float64, torch.float16
INTS = torch.arange(-6, 6).reshape(3, 4)
CLASSES = torch.arange(24).reshape(2, 3, 4) % 5
BOTH, EXPORT, RAW = (True, False), (True,), (False,)

FAULTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[bool, ...]]] = {
    "selu": (F.selu, (image(),), EXPORT),
    "celu": (partial(F.celu, alpha=0.5), (image(),), RAW),
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
    "clamp of integers, a minimum": (lambda x: torch.clamp(x, min=-1), (INTS,), BOTH),
    "clamp of integers, a maximum": (lambda x: torch.clamp(x, max=2), (INTS,), BOTH),
    "clamp of integers by a fraction": (lambda x: torch.clamp(x, -1.5, 2.5), (INTS,), BOTH),
    "clamp of integers by a tensor": (torch.clamp, (INTS, INTS.flip(0)), BOTH),
    "clamp_min of integers": (lambda x: torch.clamp_min(x, 1), (INTS,), BOTH),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.5), (image(),), RAW),
    "var_mean": (lambda x: torch.stack(torch.var_mean(x, (0, 2))), (image(),), BOTH),
    "std": (lambda x: torch.std(x, 1), (image(),), RAW),
    "the last one": (lambda x: x[:, -1] * 2, (image(),), BOTH),
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
    "narrow": (lambda x: x.narrow(1, 2, 2) * 2, (image(),), RAW),
    "chunks of two sizes": (lambda x: torch.chunk(x, 5, 2)[-1] * 2, (image(2, 3, 7),), RAW),
    "nearest to a smaller size": (lambda x: F.interpolate(x, size=(2, 3)), (image(),), BOTH),
    "grid_sample": (
        partial(F.grid_sample, align_corners=False),
        (image(1, 2, 5, 5), torch.tanh(image(1, 3, 4, 2))),
        EXPORT,
    ),
    "instance_norm, epsilon": (partial(F.instance_norm, eps=0.5), (image(),), RAW),
    "group_norm without weights": (lambda x: F.group_norm(x, 2), (image(),), BOTH),
    "group_norm, bfloat16": (
        lambda x: F.group_norm(x, 2).float(),
        (image(dtype=torch.bfloat16),),
        BOTH,
    ),
    "clamp between bounds that cross": (lambda x: x.clamp(1, 0.25), (image(),), RAW),
    "layer_norm without weights": (lambda x: F.layer_norm(x, (6,)), (image(),), RAW),
    "max_pool without strides": (partial(F.max_pool2d, kernel_size=2, padding=1), (image(),), BOTH),
    "avg_pool without a batch": (lambda x: F.avg_pool1d(x, 2) * 2, (image(3, 8),), EXPORT),
    "softmax in another dtype": (
        partial(F.softmax, dim=1, dtype=torch.float32),
        (image(dtype=HALF),),
        RAW,
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (image(),), RAW),
    "isin, inverted": (partial(torch.isin, invert=True), (INTS, torch.tensor([1, 2])), RAW),
    "any of floats": (lambda x: torch.any(x > 0, 1) | torch.any(x, 1), (-image().abs(),), BOTH),
    "sums and products of truth values": (
        lambda x: ((x > 0) * (x < 1)) + (x < -1),
        (image(),),
        BOTH,
    ),
    "prod of integers": (torch.prod, (INTS.int(),), BOTH),
    "exp of integers": (torch.exp, (INTS,), BOTH),
    "divisor": (partial(F.avg_pool2d, kernel_size=2, divisor_override=3), (image(),), BOTH),
    "factor that gives no whole size": (
        partial(F.interpolate, scale_factor=1.5, mode="bilinear"),
        (image(1, 2, 5, 5),),
        RAW,
    ),
    "nearest by a factor that gives no whole size": (
        partial(F.interpolate, scale_factor=1.3),
        (image(),),
        BOTH,
    ),
    "nearest by a factor that keeps the size": (
        partial(F.interpolate, scale_factor=1.3),
        (image(1, 2, 3),),
        RAW,
    ),
    "indices of max_pool": (
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        (image(),),
        BOTH,
    ),
    "mean of layer_norm": (
        lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5)[1],
        (image(),),
        BOTH,
    ),
    "mean of group_norm": (
        lambda x, w: torch.native_group_norm(x, w, w, 2, 4, 36, 2, 1e-5)[1],
        (image(), image(4)),
        BOTH,
    ),
    "amax": (lambda x: x.amax((1, 2)), (image(),), BOTH),
    "minimum along an axis": (lambda x: x.min(1)[0], (image(),), BOTH),
    "its place": (lambda x: x.min(1)[1], (image(),), BOTH),
    "prod along an axis": (lambda x: x.prod(1), (image(),), BOTH),
    "any": (lambda x: (x > 1).any(), (image(),), BOTH),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 3), (image(),), BOTH),
    "windows": (lambda x: x.unfold(2, 3, 2), (image(),), BOTH),
    "linear of one axis": (
        partial(F.interpolate, scale_factor=1.5, mode="linear"),
        (image(2, 3, 7),),
        BOTH,
    ),
    "divisor of windows beyond the padding": (
        partial(
            F.avg_pool2d, kernel_size=3, stride=2, padding=1, ceil_mode=True, divisor_override=5
        ),
        (image(1, 2, 8, 8),),
        BOTH,
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
        RAW,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_stock_gets_wrong(name: str) -> None:
    function, tensors, ways = FAULTS[name]
    call = Call(function, tensors)
    for decomposed in ways:

        def check(decomposed: bool = decomposed) -> None:
            compare([Imported(name, call, imported(call, decomposed))])

        check()
        with uncorrected():
            assert not is_right(check)


def test_divisor_of_the_area() -> None:
    """TVM's own ignores the divisor, which changes nothing here."""
    call = Call(partial(F.avg_pool2d, kernel_size=[2, 1], divisor_override=2), (image(),))
    compare([Imported("avg_pool2d", call, imported(call, decomposed)) for decomposed in BOTH])


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
    for decomposed in ways:
        with pytest.raises(ValueError, match=rf"^({said})$"):
            imported(call, decomposed)
        with uncorrected():
            imported(call, decomposed)  # silently


def test_masks_as_indices() -> None:
    with pytest.raises(ValueError, match=r"^index: indices must be integers: the size .*known$"):
        imported(Call(lambda x: x[x > 0], (image(),)), decomposed=True)


def test_products_of_halves_are_summed_in_float32() -> None:
    """Sums of 4096 products in float16 would be 1 % off."""
    x, w = image(2, 4096, dtype=HALF), image(4096, 3, dtype=HALF)
    module = imported(Call(torch.mm, (x, w)), decomposed=True)
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


class Product(nn.Module):
    """A product of parameters of the data's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(image(6, 6, dtype=DOUBLE))

    def forward(self, x: Any) -> Any:
        return x @ self.w


TRACED: dict[str, tuple[nn.Module, Any]] = {
    "ELU": (nn.ELU(0.5), image()),
    "CELU": (nn.CELU(0.5), image()),
    "Hardtanh": (nn.Hardtanh(-2, 0.5), image()),
    "GELU": (nn.GELU("tanh"), image()),
    "add, alpha": (Function(lambda x: torch.add(x, x * 2, alpha=3)), image()),
    "sub, alpha, a method": (Function(lambda x: x.sub(1.5, alpha=0.5)), image()),
    "matmul, float64": (Product(), image(dtype=DOUBLE)),
    "linear, float64": (nn.Linear(6, 3).double(), image(dtype=DOUBLE)),
    "clamp of integers": (Function(lambda x: torch.clamp(x, min=-1)), INTS),
    "std": (Function(lambda x: torch.std(x, 1)), image()),
    "std of all": (Function(lambda x: x.std()), image()),
    "var, kept": (Function(lambda x: x.var(1, keepdim=True)), image()),
    "norm, kept": (Function(lambda x: torch.norm(x, keepdim=True)), image()),
    "norm along axes": (Function(lambda x: x.norm(p=3, dim=(1, 2))), image()),
    "one row, some columns": (Function(lambda x: x[0, 1::2]), image()),
    "one row": (Function(lambda x: x[1]), image()),
    "the last column": (Function(lambda x: x[..., -1]), image()),
    "attention, scale": (
        Function(lambda x: F.scaled_dot_product_attention(x, x, x, scale=2.0)),
        image(2, 3, 5, 4),
    ),
    "attention without heads": (
        Function(lambda x: F.scaled_dot_product_attention(x, x, x)),
        image(5, 4),
    ),
    **{
        f"{mode}, factor": (
            Function(partial(F.interpolate, scale_factor=1.5, mode=mode)),
            image(1, 2, 5, 7),
        )
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "bilinear, factor of sizes": (
        Function(
            partial(F.interpolate, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True)
        ),
        image(1, 2, 5, 7),
    ),
}
"""Operators that TVM's importer of traced graphs gets wrong."""


@pytest.mark.parametrize("name", TRACED)
def test_traced(name: str) -> None:
    module, x = TRACED[name]

    def check() -> None:
        info = [(tuple(x.shape), str(x.dtype).removeprefix("torch."))]
        graph = torch.fx.symbolic_trace(nn.Sequential(module))
        compare([Imported(name, Call(module, (x,)), from_fx(graph, info))])

    check()
    with uncorrected():
        assert not is_right(check)


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
