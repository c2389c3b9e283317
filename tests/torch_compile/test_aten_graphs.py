# SPDX-License-Identifier: Apache-2.0
"""Aten graphs as a whole: symbolic sizes, outputs in memory of their own, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import tvm
from torch.fx.experimental.proxy_tensor import make_fx

import relax_ext
from helpers import whole
from helpers.profile import deep
from helpers.torch_backend import compiled
from relax_ext.aten import resizes
from relax_ext.torch import report
from relax_ext.torch.aten import AtenImporter, Unsupported
from relax_ext.torch.decompositions import whole_upsamples


class Operands(NamedTuple):
    """An image and the parameters of layers of 4 channels."""

    x: torch.Tensor
    k: torch.Tensor
    w: torch.Tensor
    b: torch.Tensor


def _padded_to_multiple(x: torch.Tensor, multiple: int) -> tuple[torch.Tensor, ...]:
    """Return an image whose rows are padded, as models of sound do it."""
    size = x.shape[-1]
    missing = math.ceil((size - 1) / multiple) * multiple + 1 - size
    return tuple(F.pad(x, (missing, 1), mode) for mode in ("reflect", "replicate"))


SYMBOLIC: dict[str, Callable[[Any], Any]] = {
    "batch norm": lambda t: F.batch_norm(t.x, None, None, t.w, t.b, True),
    "group norm": lambda t: F.group_norm(t.x, 2, t.w, t.b),
    "activations": lambda t: F.relu(t.x) * F.silu(t.x) + F.gelu(t.x) / t.x.shape[0],
    "pool": lambda t: F.max_pool2d(t.x, 3, 2, 1) + F.avg_pool2d(t.x, 3, 2, 1),
    "indices": lambda t: F.max_pool2d(t.x, 2, return_indices=True)[1] * 2,
    "global pool": lambda t: F.adaptive_avg_pool2d(t.x, 1).flatten(1) @ t.k[:, :, 0, 0],
    "sums": lambda t: (t.x.sum(0), t.x.var((0, 2)), t.x.mean()),
    "loss": lambda t: F.mse_loss(t.x * 2, t.x.detach()),
    "resize": lambda t: F.interpolate(t.x, scale_factor=2),
    "slices": lambda t: (t.x[..., 1:], t.x[:, :, -3:] * 1, t.x[:, :, ::2], t.x[0] + 1),
    "views": lambda t: (t.x.flatten(2).transpose(1, 2) * 1, t.x.view(t.x.shape[0], 2, 2, -1) * 2),
    "pads": lambda t: F.pad(t.x, (1, 2)) + F.pad(t.x, (1, 2, 1, -1, 0, 0))[:, :, :1],
    "joined": lambda t: torch.cat([t.x, t.x * 2], 2),
    "softmax": lambda t: t.x.softmax(-1) * t.x.softmax(1),
    "sizes": lambda t: t.x * t.x.shape[2] / t.x.shape[0] ** 0.5 + torch.arange(t.x.shape[3]),
    "rounded sizes": lambda t: _padded_to_multiple(t.x.detach()[0], 5),
    "repeated": lambda t: t.x.sum() * t.w.repeat(t.x.shape[0]),
}

LONGER: dict[str, Callable[[Any], Any]] = {
    "convolution": lambda t: F.conv2d(t.x, t.k, t.b, 2, 1),
    "transposed": lambda t: F.conv_transpose2d(t.x, t.k, t.b, 2, 1, 1),
    "batch norm": lambda t: F.batch_norm(F.conv2d(t.x, t.k, t.b, 1, 1), None, None, t.w, t.b, True),
}


def symbolic_results(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Return results and gradients of a function of an image, whose sizes are symbolic."""
    torch.manual_seed(0)
    others = [torch.randn(4, 4, 3, 3), torch.rand(4) + 0.5, torch.randn(4)]
    leaves = [x.clone(), *(tensor.double() for tensor in others)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    for axis in (0, 2, 3):
        torch._dynamo.mark_dynamic(leaves[0], axis)
    results = function(*leaves)
    total = sum(
        (result * torch.arange(result.numel()).view(result.shape)).sum()
        for result in results
        if result.requires_grad
    )
    total.backward()
    return [*(result.detach() for result in results), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize(
    "cases", [SYMBOLIC, pytest.param(LONGER, marks=deep)], ids=["short", "longer"]
)
def test_symbolic_sizes(cases: dict[str, Callable[[Any], Any]]) -> None:
    """Two graphs, forward and backward, serve all batches and sizes."""

    def everything(x: Any, k: Any, w: Any, b: Any) -> list[torch.Tensor]:
        results = [case(Operands(x, k, w, b)) for case in functions]
        return [r for found in results for r in (found if isinstance(found, tuple) else (found,))]

    functions = list(cases.values())
    function = compiled(everything, {"unknown": "raise", "static_sizes": 0}, fullgraph=True)
    for shape in ((3, 4, 8, 6), (5, 4, 10, 8)):
        x = torch.randn(shape, dtype=torch.float64)
        got, want = symbolic_results(function, x), symbolic_results(everything, x)
        for number, (a, b) in enumerate(zip(got, want)):
            assert a.shape == b.shape and a.dtype == b.dtype, number
            torch.testing.assert_close(
                a, b, rtol=1e-11, atol=1e-10, msg=lambda m, n=number: f"{n}: {m}"
            )
    assert [len(graph.parts) for graph in report().graphs] == [1, 1]


def imported(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    """Return a graph without decompositions, and import it."""
    graph = make_fx(function, tracing_mode="fake")(*args)
    nodes = list(graph.graph.nodes)
    calls = [node for node in nodes if node.op == "call_function"]
    places = [node for node in nodes if node.op == "placeholder"]
    importer = AtenImporter()
    for node in calls:
        why = importer.supports(node)
        if why is not None:
            raise Unsupported(node, why)
    results = nodes[-1].args[0]
    return importer.graph(calls, places, [], results if isinstance(results, list) else [results])


def test_outputs_share_no_memory() -> None:
    """Clones and reshapes are no operators of the module, but callers write into results."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [
            x.clone(),
            y,
            y.clone(),
            y.view(6),
            y.view(6, 1).permute(1, 0),
            (x > 0).clone(),
            x > 0,
        ]

    x = torch.randn(2, 3)
    run, _ = whole.compiled(imported(function, x))
    results = [torch.from_dlpack(result) for result in run(tvm.runtime.from_dlpack(x))]
    want = function(x)
    for index, result in enumerate(results):
        result.zero_()
        for other, expected in zip(results[index + 1 :], want[index + 1 :]):
            assert torch.equal(other, expected)
    assert float(x.abs().sum()) > 0


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "embedding": (lambda x, i: F.embedding(i, x), "no converter"),
    "gather": (lambda x, i: x.gather(0, i), "no converter"),
    "index": (lambda x, i: x[i], "no converter"),
    "sort": (lambda x, i: x.sort()[0], "no converter"),
    "dropout": (lambda x, i: F.dropout(x), "no converter"),
    "random": (lambda x, i: torch.rand_like(x), "no converter"),
    "complex": (lambda x, i: torch.complex(x, x) * 2, "no converter"),
    "quotient of integers": (lambda x, i: i // i, "no converter"),
    "remainder of floats": (lambda x, i: x % 2, "a remainder of floats"),
    "power of integers": (lambda x, i: i**5, "a power of integers"),
    "norm": (lambda x, i: torch.linalg.vector_norm(x, 3), "ord=3"),
    "scatter": (lambda x, i: x.scatter(0, i, x), "no converter|must write one element"),
    "strides": (lambda x, i: x.exp().as_strided((2, 2), (1, 1)), "strides that do not reach"),
    "no elements": (lambda x, i: x[:0].amax(1), "no elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_in_pytorch(name: str) -> None:
    function, rule = REFUSED[name]
    index = torch.tensor([[0, 1, 2], [2, 1, 0]])
    with pytest.raises(Unsupported, match=rule) as raised:
        imported(function, torch.randn(3, 3), index)
    assert "\n" not in str(raised.value)
    assert raised.value.node.op == "call_function" and raised.value.why
    assert imported(lambda x: x + 1, torch.randn(3)) is not None  # the builder is free again


def test_a_wrong_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape and dtype are compared with PyTorch's, whatever a converter gives."""
    from relax_ext.torch import aten

    for wrong, rule in (
        (lambda call: call.cast(call["self"], "float64"), "dtype float64 must be float32"),
        (lambda call: call.reshape(call["self"], [3, 2]), "must be .2, 3., as in PyTorch"),
        (lambda call: None, "gives NoneType"),
        (lambda call: 1 / 0, "ZeroDivisionError"),
    ):
        monkeypatch.setitem(aten.CONVERTERS, "relu.default", wrong)
        with pytest.raises(Unsupported, match=rule):
            imported(torch.relu, torch.randn(2, 3))


def test_corrections_do_not_depend_on_registration() -> None:
    """TVM's own converter of ELU drops the scale."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.elu(x, 1.5, 2.0)

    x = torch.randn(2, 3)
    with relax_ext.stock():
        module = imported(function, x)
    assert str(module) == str(imported(function, x))


def test_resizes_are_whole_inside_the_block_only() -> None:
    overloads = [torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.default]
    before = [dict(overload.py_kernels) for overload in overloads]
    with whole_upsamples():
        assert [dict(overload.py_kernels) for overload in overloads] != before
    assert [dict(overload.py_kernels) for overload in overloads] == before


def test_nearest_elements_are_those_of_pytorch() -> None:
    for size in range(1, 40):
        image = torch.arange(size, dtype=torch.float32).view(1, 1, -1)
        for target in range(1, 90, 7):
            axis = resizes.Axis("nearest_neighbor", size, target, False, None)
            want = F.interpolate(image, size=target).flatten()
            assert torch.equal(torch.from_numpy(axis.taps()[0][0]).float(), want), (size, target)


def test_dropout_in_attention_is_that_of_pytorch() -> None:
    def attended(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    x = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    run = compiled(attended, fullgraph=False)
    torch.testing.assert_close(run(x), attended(x), rtol=0, atol=1e-12)  # sums of four products
