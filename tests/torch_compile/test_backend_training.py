# SPDX-License-Identifier: Apache-2.0
"""Training by ``torch.compile(..., backend="tvm_conv")`` beside PyTorch.

Models are float64, so that PyTorch's gradients are the oracle; they differ by the order of sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.torch_backend import (
    CLOSE,
    Function,
    assert_same,
    check_training,
    compiled,
    gradients,
)
from relax_ext.torch import attention, part, report
from relax_ext.torch import graph as graphs_of


def conv(ins: int = 3, outs: int = 8) -> nn.Module:
    return nn.Conv2d(ins, outs, 3, padding=1).double()


def unet() -> nn.Module:
    """Return a network with norms by batch and group, pooling, resizing and a skip."""

    def forward(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        skip = F.silu(m[1](m[0](x)))
        h = m[3](F.max_pool2d(skip, 2)).relu()
        h = m[4](F.interpolate(m[2](h), scale_factor=2.0, mode="bilinear"))
        return m[5](torch.cat([h, skip], 1))

    norms = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
    convs = conv(8, 8), nn.ConvTranspose2d(8, 8, 3, padding=1), conv(16, 2)
    return Function(forward, conv(), *norms, *convs).double()


def image(*shape: int) -> torch.Tensor:
    x = torch.rand(*(shape or (2, 3, 8, 12)), dtype=torch.float64) - 0.5
    return x.requires_grad_()


def tied() -> nn.Module:
    shared = conv(8, 8)
    return nn.Sequential(conv(), shared, nn.Tanh(), shared)


def frozen() -> nn.Module:
    model = nn.Sequential(conv(), nn.ReLU(), conv(8, 4), nn.BatchNorm2d(4).double())
    model[0].requires_grad_(False)
    return model


def checkpointed(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return m[1](checkpoint(lambda y: m[0](y).tanh(), x, use_reentrant=False))


def dropped(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Draw numbers thrice; the last draw needs no convolution, and could come first."""
    y = F.dropout(m[1](F.dropout(m[0](x), 0.5)), 0.2)
    return y + F.dropout(x, 0.3)


def loss(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(2 * 96).view(2, 8, 12) % 5
    return F.cross_entropy(m[0](x), labels, reduction="none")


CASES: dict[str, Callable[[], Any]] = {
    "unet": unet,
    "channels last": lambda: unet().to(memory_format=torch.channels_last),
    "tied weights": tied,
    "frozen weights": frozen,
    "checkpointing": lambda: Function(checkpointed, conv(), conv(8, 8)),
    "dropout": lambda: Function(dropped, conv(), conv(8, 3)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.smoke] * (name == "tied weights")) for name in CASES],
)
def test_training(name: str) -> None:
    """Results, gradients and running statistics; random numbers are PyTorch's own."""
    torch.manual_seed(0)
    x = image()
    if name == "channels last":
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    found = check_training(CASES[name](), x)
    assert [graph.kind for graph in found.graphs] == ["forward", "backward"]
    assert all(graph.parts and not graph.unknown for graph in found.graphs)
    assert bool(found.graphs[0].random) == (name == "dropout")


def pooled(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return m[1](F.max_pool2d(m[0](x), 3, 2, 1)).tanh()


def indexed(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Read the indices too."""
    maxima, indices = F.max_pool2d(m[0](x), 3, 2, 1, return_indices=True)
    return m[1](maxima * (indices % 7)).tanh()


def dilated(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return m[1](F.max_pool2d(m[0](x), 2, 1, 0, 2)).tanh()


POOLED: dict[str, tuple[Callable[..., torch.Tensor], set[torch.dtype]]] = {
    "pooled": (pooled, set()),
    "two in a row": (lambda m, x: pooled(m, pooled(m, x)[:, :3]), set()),
    "read": (indexed, {torch.int64}),
    "by a kernel that reads indices": (dilated, {torch.int64}),
}


@pytest.mark.parametrize("name", POOLED)
def test_indices_of_maxima_are_not_saved(name: str) -> None:
    """Their kernel took up to 20 times as long as the pooling."""
    forward, integers = POOLED[name]
    model = Function(forward, conv(), conv(8, 8))
    saved: set[torch.dtype] = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.add(tensor.dtype)
        return tensor

    found = check_training(model, image())
    assert all(graph.parts and not graph.unknown for graph in found.graphs)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compiled(model)(image())
    assert saved - {torch.float64} == integers


def test_unknown_operators_in_between() -> None:
    """PyTorch computes them in both directions, and views what is kept channels last."""

    def forward(m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        y = m[0](x)
        rows = torch.special.i1(y.permute(0, 2, 3, 1).view(2, -1))
        return m[1](rows.view(2, 8, 12, 8).permute(0, 3, 1, 2) * y)

    model = Function(forward, conv(), conv(8, 8)).to(memory_format=torch.channels_last)
    x = image().detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    found = check_training(model, x, options={})
    assert all(graph.unknown for graph in found.graphs)
    assert len(found.graphs[0].parts) == 2


def attend(mask: Any, m: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Return an image whose positions attend to each other."""
    rows = m[0](x).flatten(2).mT.contiguous()
    q, k, v = rows.unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
    return m[1](y.permute(0, 1, 3, 2).reshape(len(x), -1, *x.shape[2:]))


SOME_HIDDEN = torch.arange(96 * 96).reshape(96, 96) % 7 > 2
SOME_HIDDEN[5] = False


@pytest.mark.parametrize("mask", [None, SOME_HIDDEN], ids=["causal", "mask"])
def test_attention_stores_no_scores(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the graphs there is no tensor of queries and keys."""
    saved: list[tuple[int, ...]] = []
    imported = part.import_part

    def record(importer: Any, piece: Any, *args: Any) -> Any:
        saved.extend(tuple(node.meta["val"].shape) for node in piece.outputs)
        return imported(importer, piece, *args)

    monkeypatch.setattr(graphs_of, "import_part", record)
    model = Function(partial(attend, mask), conv(3, 24), conv(8, 3))
    found = check_training(model, image())
    assert [len(each.parts) for each in found.graphs] == [1, 1]
    assert not any(each.in_pytorch for each in found.graphs)
    assert saved and (2, 2, 96, 96) not in saved


def test_large_attention_in_half_precision_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient stores no scores; inference has our kernel either way."""
    monkeypatch.setattr(attention, "_LARGE", 2 * 2 * 96 * 96)
    model = Function(partial(attend, None), conv(3, 24), conv(8, 3)).bfloat16()
    x = image().detach().bfloat16()
    report(clear=True)
    compiled(model)(x).sum().backward()
    graphs = report(clear=True).graphs
    assert not any(each.unknown for each in graphs)
    assert [bool(each.attention) for each in graphs] == [True] * 2
    with torch.no_grad():
        compiled(model)(x)
    *_, last = report().graphs
    assert last.kind == "inference" and len(last.parts) == 1 and not last.in_pytorch


def test_a_loss_of_classes_does_not_divide_the_graph() -> None:
    """Its gather is compiled, and a class that does not exist raises, as in PyTorch."""
    found = check_training(Function(loss, conv(3, 5)), image(), options={"unknown": "raise"})
    assert [(len(graph.parts), graph.unknown) for graph in found.graphs] == [(1, {})] * 2
    run = compiled(Function(loss, conv(3, 4)), {})
    with pytest.raises(RuntimeError, match="out of bounds for dimension 1 with size 4"):
        run(image())


def test_a_gather_of_several_elements_stays_in_pytorch() -> None:
    indices = torch.tensor([[[[0, 2, 1]]]]).expand(2, 5, 8, 3)
    model = Function(lambda m, x: m[0](x).gather(3, indices), conv(3, 5))
    found = check_training(model, image(), options={})
    assert "aten.gather.default" in found.graphs[0].unknown


def test_symbolic_sizes() -> None:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
    )
    model = nn.Sequential(*layers).double()
    twin = copy.deepcopy(model)
    run = compiled(model, dynamic=True)
    for batch, size in ((4, 16), (3, 12), (2, 18)):
        x = image(batch, 3, size, size)
        other = x.detach().clone().requires_grad_()
        model.zero_grad()
        twin.zero_grad()
        run(x).square().mean().backward()
        twin(other).square().mean().backward()
        assert_same(gradients([x, *model.parameters()]), gradients([other, *twin.parameters()]))
    assert len(report().graphs) == 2


def test_means_of_symbolic_images_are_compiled() -> None:
    """TVM cannot fuse the mean of an instance norm, which is divided by two sizes."""
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    found = check_training(model, image().requires_grad_(), dynamic=True)
    assert [graph.unknown for graph in found.graphs] == [{}, {}]


def test_twenty_steps_and_evaluation() -> None:
    """SGD with momentum, two batches for each update, an evaluation in between."""
    torch.manual_seed(0)
    model = unet()
    twin = copy.deepcopy(model)
    run = compiled(model)
    batches = [image().detach() for _ in range(4)]
    losses: list[list[float]] = []
    for module, state in ((run, model), (twin, twin)):
        optimizer = torch.optim.SGD(state.parameters(), 0.05, momentum=0.9)
        losses.append([])
        for step in range(20):
            for number in (step % 4, (step + 1) % 4):
                loss = module(batches[number]).square().mean()
                loss.backward()
                losses[-1].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 9:
                state.eval()
                with torch.no_grad():
                    losses[-1].append(module(batches[0]).square().mean().item())
                state.train()
    ours, theirs = losses
    assert theirs[-2] < 0.5 * theirs[0]
    # Steps multiply roundings: 1e-15 becomes at most 1e-10 here.
    assert ours == pytest.approx(theirs, rel=1e-9)
    # Zero, and rounding: the bias before a batch norm.
    skipped = "m.0.bias"
    for (name, value), other in zip(model.state_dict().items(), twin.state_dict().values()):
        assert name == skipped or torch.allclose(value, other, rtol=1e-8, atol=1e-9), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_against_its_own_error(dtype: torch.dtype) -> None:
    """Sums of 36,864 gradients, which lose all digits where they are added in half precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()).to(dtype)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    x, w = torch.randn(4, 3, 96, 96).to(dtype), (torch.rand(4, 8, 96, 96) / 100).to(dtype)
    for module in (compiled(model), eager):
        (module(x) * w).sum().backward()
    (exact(x.double()) * w.double()).sum().backward()

    def error(value: torch.Tensor, want: torch.Tensor) -> float:
        return float((value.double() - want).abs().max() / want.abs().max())

    rounding = 4e-2 if dtype is torch.bfloat16 else 6e-3
    for ours, theirs, want in zip(
        *(map(gradients, map(nn.Module.parameters, (model, eager, exact))))
    ):
        assert error(ours, want) < max(rounding, 3 * error(theirs, want))


def test_autocast() -> None:
    """The compiled backward pass is as far from float64 as PyTorch's, up to a factor of 3."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 3))
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    x = image().detach().float()
    for module in (compiled(model), eager):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        assert y.dtype is torch.bfloat16
        y.float().square().mean().backward()
    exact(x.double()).square().mean().backward()
    for ours, theirs, want in zip(
        *(map(gradients, map(nn.Module.parameters, (model, eager, exact))))
    ):
        scale = float(want.abs().max())
        allowed = max(1e-2 * scale, 3 * float((theirs - want).abs().max()))
        assert float((ours - want).abs().max()) < allowed


def test_second_order_is_refused() -> None:
    """By AOTAutograd, in one line."""
    run, x = compiled(conv()), image()
    (gradient,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


def test_close_is_close() -> None:
    """The comparison of these tests sees a difference of one rounding in float32."""
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(AssertionError):
        assert_same(x + 6e-8, x, CLOSE)


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_inside_of_a_checkpoint(affine: bool) -> None:
    """It is computed again in the backward graph; its statistics move once."""
    block = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, affine=affine), nn.ReLU()
    )
    model = Function(
        lambda m, x: m[1](checkpoint(m[0], x, use_reentrant=False)), block, nn.Conv2d(8, 3, 3)
    ).double()
    twin = copy.deepcopy(model)
    run = compiled(model)
    x = torch.rand(2, 3, 9, 9, dtype=torch.float64)
    for _ in range(2):
        got, want = run(x), twin.m[1](twin.m[0](x))  # eager PyTorch refuses this checkpoint
        got.square().sum().backward()
        want.square().sum().backward()
        assert_same(got.detach(), want.detach())
    assert_same(gradients(model.parameters()), gradients(twin.parameters()))
    assert_same(list(model.buffers()), list(twin.buffers()))
