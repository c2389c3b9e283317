# SPDX-License-Identifier: Apache-2.0
"""Inference by ``torch.compile(..., backend="tvm_conv")`` beside PyTorch.

Models are float64, so that PyTorch's results are the oracle; where they are not, the limit is a few
roundings of the dtype.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.torch_backend import Function, assert_same, check_inference, compiled
from relax_ext.torch import allocation, report
from relax_ext.torch import run as runs


def conv(ins: int = 3, outs: int = 8) -> nn.Module:
    return nn.Conv2d(ins, outs, 3, padding=1).double().eval()


def net() -> nn.Module:
    """Return a small network of all that inference fuses."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.Tanh()).eval()


def image(*shape: int) -> torch.Tensor:
    return torch.rand(*(shape or (2, 3, 8, 10)), dtype=torch.float64) - 0.5


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor, channels last."""
    return x.contiguous(memory_format=torch.channels_last)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor where no vector may be loaded as if it were aligned."""
    return torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape)


def outputs(m: nn.ModuleList, x: torch.Tensor) -> Any:
    y = m[0](x)
    return {"a": (y, x.shape[0]), "b": [y.mean(), None], "c": (y, x, True, 1.5)}


def views(m: nn.ModuleList, x: torch.Tensor) -> Any:
    y = m[0](x)
    z = y.mean(1, keepdim=True)
    inner = y.permute(0, 2, 3, 1)[:, 1:], y[:, 1:, ::2], z.expand(2, 5, 8, 10), y.flatten(1)
    return *inner, x[0], x.view(2, -1), m[0](x).transpose(1, 2), z.expand(2, 5, 8, 10).tanh()


def constants(m: nn.ModuleList, x: torch.Tensor) -> Any:
    kernel = torch.tensor([[[[1.0, 2.0]]]], dtype=torch.float64)
    return F.conv2d(m[0](x)[:, :1], kernel), torch.ones(3), torch.arange(4)


def in_place(m: nn.ModuleList, x: torch.Tensor) -> Any:
    y = m[0](x.add_(1)).relu_()
    y[:, 0] = 0
    y[:, :, 1:3, 2] += 1
    x[:, 0].mul_(2)
    return y


def branches(m: nn.ModuleList, x: torch.Tensor) -> Any:
    y = m[0](x)
    torch._dynamo.graph_break()
    return m[1](y.relu()) if float(y.detach().sum()) > -1e9 else y


def attention(m: nn.ModuleList, x: torch.Tensor) -> Any:
    h = m[0](x)
    q = h.flatten(2).transpose(1, 2)[:, None]
    q = F.scaled_dot_product_attention(q, q, q)[:, 0]
    return m[1](q.transpose(1, 2).reshape(h.shape))


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "layers": lambda: (net().double(), image()),
    "one dimension": lambda: (nn.Conv1d(3, 8, 3).double().eval(), image(2, 3, 20)),
    "three dimensions": lambda: (nn.Conv3d(3, 4, 2).double().eval(), image(1, 3, 4, 5, 6)),
    "bytes and a number": lambda: (
        Function(lambda m, x, k: m[0](x.double() / 255) * k, conv()),
        torch.arange(480, dtype=torch.uint8).view(2, 3, 8, 10),
        3,
    ),
    "structures": lambda: (Function(outputs, conv()), image()),
    "views": lambda: (Function(views, conv()), image()),
    "constants": lambda: (Function(constants, conv()), image()),
    "in place": lambda: (Function(in_place, conv()), image()),
    "branches": lambda: (Function(branches, conv(), conv(8, 8)), image()),
    "attention": lambda: (Function(attention, conv(), conv(8, 3)), image()),
    "channels last": lambda: (
        nn.Sequential(conv(), nn.ReLU(), conv(8, 4)).to(memory_format=torch.channels_last),
        turned(image()),
    ),
    "any strides": lambda: (conv(), image(2, 10, 8, 5).permute(0, 3, 2, 1)[:, ::2, :, 1:]),
    "no batch": lambda: (conv(), image(3, 8, 10)),
    "empty batch": lambda: (conv(), image(0, 3, 8, 10)),
    "no terms": lambda: (
        Function(lambda m, x, y: m[0](x) + (y @ y.T)[:, :1].sum(), conv()),
        image(),
        image(7, 0),
    ),
    "lists": lambda: (
        Function(lambda m, xs, s: m[0](xs[0] + xs[1]) * s["k"], conv()),
        [image(), image()],
        {"k": image(1)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_inference(name: str) -> None:
    torch.manual_seed(0)
    model, *arguments = CASES[name]()
    found = check_inference(model, *arguments)
    assert sum(len(graph.parts) for graph in found.graphs) >= (name != "empty batch")


def test_arguments_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense ones in any order of axes; one that is not aligned is copied, and right."""
    copied: list[bool] = []
    ready = runs.ready

    def watched(value: Any, order: Any = None) -> torch.Tensor:
        tensor = ready(value, order)
        copied.append(tensor.data_ptr() != value.data_ptr())
        return tensor

    monkeypatch.setattr(runs, "ready", watched)
    for model in (conv(), conv().to(memory_format=torch.channels_last)):
        for place, expected in ((turned, False), (torch.clone, False), (shifted, True)):
            copied.clear()
            run, x = compiled(model), place(image())
            with torch.no_grad():
                assert_same(run(x), model(x))
            assert any(copied) == expected


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_dtypes(dtype: torch.dtype, limit: float) -> None:
    """Two roundings of values near 1, against float64."""
    model, x = net().to(dtype), image().to(dtype)
    with torch.no_grad():
        got = compiled(model)(x)
        want = model.double()(x.double())
    assert got.dtype is dtype
    assert float((got.double() - want).abs().max()) < limit


def test_autocast() -> None:
    model, x = net(), image().float()
    run = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got = run(x)
        assert got.dtype is model(x).dtype
    with torch.no_grad():
        want = model.double()(x.double())
    assert float((got.double() - want).abs().max()) < 2e-2


def test_other_shapes_become_symbolic() -> None:
    """The second batch size makes it symbolic, so that the third compiles nothing."""
    model = net().double()
    run = compiled(model)
    for batch, size in ((2, 8), (3, 8), (5, 8), (4, 12), (3, 6)):
        found = check_inference(model, image(batch, 3, size, size), run=run)
    assert len(found.graphs) <= 3


@contextmanager
def _more_memory(limit: int) -> Iterator[None]:
    """Let this process have so many more bytes inside the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_memory_that_is_not_there_is_named() -> None:
    """A result of 2^27 bytes where there are 2^25; the graph goes on afterwards."""
    model, x = nn.Conv2d(1, 4, 1).eval(), torch.rand(1, 1, 2048, 4096)
    run = compiled(model)
    with torch.no_grad():
        run(x)
        with _more_memory(2**25), pytest.raises(MemoryError, match=f"tvm_conv: {2**27} bytes "):
            run(x)
        torch.testing.assert_close(run(x), model(x))  # one product and one sum in float32


def test_memory_that_tvm_keeps_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call fails, as long as TVM keeps what earlier calls needed."""
    kept = [1]

    def allocated(*_: object) -> str:
        if kept:
            raise RuntimeError("std::bad_alloc")
        return "result"

    class Machine(dict[str, Any]):
        def set_instrument(self, _: object) -> None:
            """Take what tells of each call."""

    machine = Machine(main=allocated)
    monkeypatch.setattr(allocation, "release", kept.clear)
    monkeypatch.setattr(allocation.R, "VirtualMachine", lambda *_: machine)
    assert allocation.called(None, allocated, "main") == "result"


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scalar_beside_a_reduction(dynamic: bool) -> None:
    """TVM's rfactor fails in a function with a block that has no loops."""

    def function(m: nn.ModuleList, x: torch.Tensor) -> Any:
        y = m[0](x).flatten(1)
        return y.log_softmax(-1) + (y @ y.mT)[0, 0]

    check_inference(Function(function, conv()), image(3, 3, 9, 11), dynamic=dynamic)


def test_many_sizes_give_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbolic graph of one compile; TVM's memory is released after some sizes."""
    released: list[int] = []
    release = runs._release
    monkeypatch.setattr(runs, "_release", lambda: released.append(1) or release())
    model, x = conv(), image()
    run = compiled(model)
    for axis in (0, 2, 3):
        torch._dynamo.mark_dynamic(x, axis)
    with torch.no_grad():
        kept = run(x)
        before = kept.clone()
        for size in range(2, 4 + runs.SIZES_KEPT):
            y = image(2, 3, size, size + 1)
            assert_same(run(y), model(y))
    assert len(report().graphs) == 1
    assert len(released) == 1
    assert torch.equal(kept, before)


def test_results_have_memory_of_their_own() -> None:
    """Changing a result changes what it changes in PyTorch, and no later result."""

    def function(m: nn.ModuleList, x: torch.Tensor) -> Any:
        y = m[0](x).relu()
        fixed = torch.full((3,), 2.0), y.new_ones(4) * 3, torch.arange(5).view(5, 1)
        copies = y.clone(), y.view(2, -1), y + 0, y.to(torch.float64, copy=True), x * 1, x.clone()
        return y, *copies, *fixed

    model = Function(function, conv())
    run, x, twin = compiled(model), image(), image()
    twin.copy_(x)
    with torch.no_grad():
        got, want = run(x), model(twin)
        for one, other in zip(got, want):
            one.add_(1)
            other.add_(1)
            assert_same((*got, x), (*want, twin))
        assert_same(run(x), model(twin))
        kept = got[0].clone()
        run(image())
    assert torch.equal(got[0], kept)


UNKNOWN: dict[str, Callable[..., torch.Tensor]] = {
    "aten.special_": lambda x: torch.special.i0(x),
    "aten._fft": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[2:]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_operators_stay_in_pytorch(name: str) -> None:
    """Between two parts, with one warning that names them, or an error in one line."""
    between = UNKNOWN[name]
    model = Function(lambda m, x: m[1](between(m[0](x)).relu()), conv(), conv(8, 8))
    with pytest.warns(UserWarning, match="tvm_conv: inference: in PyTorch stay aten"):
        found = check_inference(model, image(), options={})
    (graph,) = found.graphs
    assert len(graph.parts) == 2 and graph.unknown and not graph.random
    assert "in PyTorch: aten" in str(found)
    with pytest.raises(Exception, match="tvm_conv: inference: in PyTorch stay aten"):
        check_inference(model, image())


def test_a_custom_operator() -> None:
    @torch.library.custom_op("relax_ext_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    model = Function(lambda m, x: m[1](twice(m[0](x))), conv(), conv(8, 8))
    found = check_inference(model, image(), options={})
    assert list(found.graphs[0].unknown) == ["relax_ext_tests.twice.default"]


def test_an_index_out_of_range_raises() -> None:
    """An index out of range raises, as in PyTorch; TVM would read other memory."""
    model = Function(
        lambda m, i: m[0](m[1](i).permute(0, 3, 1, 2)), conv(), nn.Embedding(10, 3).double()
    )
    indices = torch.arange(18).view(2, 3, 3) % 10
    check_inference(model, indices, options={})
    with torch.no_grad(), pytest.raises(IndexError):
        compiled(model, {})(indices + 5)


def test_nothing_to_compile() -> None:
    """Graphs without tensors, or without a product, stay as they are, and nobody is warned."""
    check_inference(Function(lambda m, n: n + 1, conv()), 3)
    found = check_inference(Function(lambda m, x: x.exp(), conv()), image())
    assert [graph.parts for graph in found.graphs] == [[]]


def test_threads_of_python() -> None:
    model, x = net().double(), image()
    run = compiled(model)
    with torch.no_grad():
        want = run(x)
    wrong = []

    def work() -> None:
        with torch.no_grad():
            wrong.extend(1 for _ in range(30) if not torch.equal(run(x), want))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("is_made_inside", [False, True])
def test_inference_mode(is_made_inside: bool) -> None:
    with torch.inference_mode(is_made_inside):
        model = net().double()
    run, x = compiled(model), image()
    with torch.inference_mode():
        assert_same(run(x), model(x))


def test_the_memory_of_frozen_weights_is_not_taken_for_another() -> None:
    """Two assignments of ``.data`` between two calls: the first address may come back."""
    model = nn.Conv2d(64, 64, 3, padding=1, bias=False).double().eval()
    run = compiled(model, {"freeze": True, "unknown": "raise"})
    x = image(1, 64, 8, 8)
    with torch.no_grad():
        for _ in range(8):
            run(x)
            for _ in range(2):
                model.weight.data = torch.rand_like(model.weight)
            assert_same(run(x), model(x))


def test_channels_are_known_where_weights_of_two_sizes_are_used() -> None:
    """PyTorch makes channels symbolic; forward and backward graphs are compiled for known ones."""
    function = Function(lambda m, x, w: F.conv2d(x, w, padding=1).relu())
    run = compiled(function)
    for ins, outs in ((3, 8), (5, 16)):
        x, w = image(2, ins, 7, 6).requires_grad_(), image(outs, ins, 3, 3).requires_grad_()
        got, want = run(x, w), function(x, w)
        assert_same(got, want)
        given = torch.rand_like(want)
        assert_same(
            torch.autograd.grad(got, (x, w), given), torch.autograd.grad(want, (x, w), given)
        )


def test_assertions_of_dtypes_keep_nothing() -> None:
    """A graph of torch.export has them: the probabilities of attention are not written for one."""

    def attention(m: nn.ModuleList, x: torch.Tensor) -> Any:
        weights = (x @ x.transpose(-1, -2)).softmax(-1)
        torch.ops.aten._assert_tensor_metadata(weights, dtype=x.dtype)
        return weights @ x

    model = Function(attention)
    check_inference(model, torch.rand(2, 40, 8, dtype=torch.float64))
    (graph,) = report().graphs
    assert not graph.in_pytorch


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["dense", "turned"])
def test_attention_has_the_strides_of_pytorch(
    order: tuple[int, ...], trains: bool, dtype: torch.dtype
) -> None:
    """Inside of a graph too, where a view may follow."""

    def attention(m: nn.ModuleList, x: torch.Tensor) -> Any:
        y = F.scaled_dot_product_attention(x, x, x)
        return y.permute(order).view(x.shape[0], -1), y

    x = image(2, 3, 5, 8).to(dtype).permute(order).contiguous().permute(order)
    x.requires_grad_(trains)
    model = Function(attention)
    limit = 4 * torch.finfo(dtype).eps
    assert_same(compiled(model)(x), model(x), limit)


def setting(*places: Any) -> Any:
    def function(y: torch.Tensor) -> torch.Tensor:
        y = y * 1
        for place in places:
            y[place] = 2.0
            y[place].mul_(-1.5)
        return y

    return function


SLICES: list[Callable[[torch.Tensor], Any]] = [
    lambda y: (y[1:3], y[:, 1:-1], y[-3:], y[::2], y[1::2], y[:-1], y[2], y[-1], y.narrow(0, 1, 2)),
    lambda y: torch.cat([y[:1], y[2:]]) + y[1:] - y[:-1],
    lambda y: torch.slice_scatter(y, y[:2] * 3, 0, 1, 5, 2),
    lambda y: torch.select_scatter(y, y[0] * 3, 0, -1),
    lambda y: y[1:3].sum(0) + y[: y.shape[0] // 2].sum(0),
    setting(slice(1, 3)),
    setting(slice(-2, None), (slice(None), slice(1, 3))),
    setting(slice(None, None, 2), -1, 1),
    setting((slice(1, -1), slice(1, -1))),
]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_slices_of_symbolic_axes(trains: bool) -> None:
    """Read, replaced and changed in place; some of them ended the process in a pass of TVM."""

    def function(m: nn.ModuleList, x: torch.Tensor, w: torch.Tensor) -> Any:
        results = []
        for one in SLICES:
            found = one(x @ w)
            results += found if isinstance(found, tuple) else (found,)
        return results

    model = Function(function)
    run = compiled(model)
    w = image(6, 6).requires_grad_(trains)
    for size in (6, 7, 9, 5):
        got, want = run(x := image(size, 6), w), model(x, w)
        assert_same(got, want)
        if trains:
            sums = [sum((one * one).sum() for one in results) for results in (got, want)]
            assert_same(*(torch.autograd.grad(one, w)[0] for one in sums), 1e-10)


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resizes_of_symbolic_sizes_are_whole(mode: str, trains: bool) -> None:
    """PyTorch decomposed linear ones into reads at indices, which stay in PyTorch.

    Gradients of linear resizes to known sizes are compiled, so only the batch is symbolic there.
    """
    model = Function(lambda m, x, w: F.interpolate(x @ w, scale_factor=2, mode=mode))
    run = compiled(model)
    w = torch.randn(6, 6, requires_grad=trains)
    for number, size in enumerate((4, 7, 5)):
        x = torch.randn(2 + number, 3, 4 if trains else size, 6)
        if number == 0:
            for axis in (0,) if trains else (0, 2):
                torch._dynamo.mark_dynamic(x, axis)
        results = run(x, w), model(x, w)
        assert_same(*results, limit=1e-5)
        if trains:
            assert_same(*(torch.autograd.grad((y * y).sum(), w)[0] for y in results), limit=1e-5)
