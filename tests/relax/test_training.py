# SPDX-License-Identifier: Apache-2.0
"""``relax_ext.training`` beside PyTorch: losses, weights, buffers and optimizers, step by step.

Everything is float64, so that PyTorch's own results are the oracle: they differ by the order of
sums, 1e-12 of the largest value after a few steps where each is made of a thousand terms at most.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relax_ext
import relax_ext.torch

CLOSE = 1e-11
"""Maximum error, relative to a tensor's largest value or to 1: ten times what the order of sums
explains."""


class Function(nn.Module):
    """A loss as a function of the module and of its batch."""

    def __init__(self, function: Callable[..., Any], *children: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.m = nn.ModuleList(children)
        self.w = nn.Parameter(torch.rand(3))

    def forward(self, *batch: torch.Tensor) -> Any:
        return self.function(self, *batch)


class Net(nn.Module):
    """Convolutions, batch norms in both modes, a shared layer and norm, a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6, momentum=0.2)
        self.again = self.norm
        self.shared = nn.Conv2d(6, 6, 1, bias=False)
        self.fixed = nn.BatchNorm2d(6)
        self.last = nn.ConvTranspose2d(6, 2, 2, stride=2)
        self.last_alias = self.last
        self.last.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.first(x)))
        h = torch.tanh(self.again(self.shared(self.shared(h))))
        return F.mse_loss(self.last(self.fixed(h)), y)


def net() -> Net:
    module = Net().double()
    module.fixed.eval()
    return module


def batches(seed: int, *sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [(some(n, 3, 6, 6), some(n, 2, 12, 12)) for n in sizes]


def same(ours: Any, theirs: Any, where: str) -> None:
    """Compare two tensors, or two dictionaries of them."""
    if isinstance(theirs, dict):
        assert list(map(str, sorted(ours))) == list(map(str, sorted(theirs))), where
        for key in theirs:
            same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, torch.Tensor):
        scale = max(1.0, float(theirs.abs().max()))
        error = float((ours.double() - theirs.double()).abs().max())
        assert ours.shape == theirs.shape and error <= CLOSE * scale, f"{where}: {error}"


def torch_step(module: nn.Module, optimizer: Any, *batch: Any, clip: float | None = None) -> Any:
    optimizer.zero_grad()
    loss = module(*batch)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(module.parameters(), clip)
    optimizer.step()
    return loss.detach()


def small(seed: int = 0) -> Function:
    """Return a module that compiles fast, with a layer, a norm and a parameter of its own."""
    torch.manual_seed(seed)

    def loss(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.m[1](torch.tanh(self.m[0](x * self.w))).sub(x).square().mean()

    return Function(loss, nn.Linear(3, 3), nn.BatchNorm1d(3)).double()


def rows(seed: int, count: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64)


def sgd(module: nn.Module) -> Any:
    return torch.optim.SGD(module.parameters(), 0.1, 0.9)


def adam(module: nn.Module) -> Any:
    return torch.optim.Adam(module.parameters(), 1e-2)


# ---------------------------------------------------------------- whole steps


def test_a_net_trains_as_in_pytorch() -> None:
    """Two groups, a schedule, clipping, a smaller last batch; then evaluation."""
    torch.manual_seed(3)
    ours = net()
    theirs = copy.deepcopy(ours)

    def optimizer(module: Net) -> Any:
        last = list(module.last.parameters())
        rest = [p for p in module.parameters() if all(p is not q for q in last)]
        groups = [{"params": rest, "weight_decay": 0.01}, {"params": last, "lr": 0.02}]
        return torch.optim.SGD(groups, 0.1, momentum=0.9, nesterov=True)

    mine, other = optimizer(ours), optimizer(theirs)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (mine, other)]
    data = batches(3, 4, 4, 4, 4, 3)
    step = relax_ext.training(ours, data[0], mine, clip_norm=0.5)
    for i, batch in enumerate(data):
        loss = step(*batch)
        same(loss, torch_step(theirs, other, *batch, clip=0.5), f"loss {i}")
        for schedule in schedules:
            schedule.step()
    same(step.evaluate(*data[0]), copy.deepcopy(theirs).eval()(*data[0]).detach(), "evaluated")
    state = step.state_dict()
    same(state["module"], theirs.state_dict(), "module")
    same(state["optimizer"]["state"], other.state_dict()["state"], "optimizer")
    assert torch.equal(ours.first.weight.detach(), ours.state_dict()["first.weight"])
    same(step.to_torch().state_dict(), theirs.state_dict(), "to_torch")
    assert ours.fixed.training is False and ours.norm.training is True


def test_steps_have_the_same_bits_and_resume() -> None:
    """Float32 and a state that went through a file: from there on every bit is the same."""
    torch.manual_seed(5)
    module = net().float()
    data = [tuple(t.float() for t in batch) for batch in batches(5, 4, 4, 4, 4)]
    step = relax_ext.training(module, data[0], adam(module))
    step(*data[0])
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    runs = []
    for _ in range(2):
        file.seek(0)
        step.load_state_dict(torch.load(file))
        losses = torch.stack([step(*batch) for batch in data[1:]])
        runs.append((losses, step.state_dict()["module"]))
    assert torch.equal(runs[0][0], runs[1][0])
    for key, tensor in runs[0][1].items():
        assert torch.equal(tensor, runs[1][1][key]), key


@pytest.mark.parametrize("make", [sgd, adam])
def test_pytorch_and_a_step_take_turns(make: Callable[[nn.Module], Any]) -> None:
    """Steps of PyTorch, then ours from its optimizer's state, then PyTorch's from ours."""
    ours, theirs = small(), small()
    mine, other = make(ours), make(theirs)
    for seed in range(2):
        torch_step(ours, mine, rows(seed))
        torch_step(theirs, other, rows(seed))
    step = relax_ext.training(ours, (rows(0),), mine)
    for seed in range(2, 4):
        same(step(rows(seed)), torch_step(theirs, other, rows(seed)), f"loss {seed}")
    step.to_torch()
    same(mine.state_dict()["state"], other.state_dict()["state"], "optimizer")
    same(torch_step(ours, mine, rows(4)), torch_step(theirs, other, rows(4)), "loss 4")
    same(ours.state_dict(), theirs.state_dict(), "module")
    step.load_state_dict({"module": theirs.state_dict(), "optimizer": other.state_dict()})
    same(step(rows(5)), torch_step(theirs, other, rows(5)), "loss 5")
    same(step.state_dict()["module"], theirs.state_dict(), "loaded")


def test_gradients_of_several_batches_are_accumulated() -> None:
    ours, theirs = small(), small()
    other = sgd(theirs)
    step = relax_ext.training(ours, (rows(0),), sgd(ours), clip_norm=0.1)
    for seed in (0, 3):
        loss, gradients = step.gradients(rows(seed))
        for extra in (1, 2):
            loss, gradients = step.gradients(rows(seed + extra), add_to=gradients)
        step.update(gradients, scale=1 / 3)
        other.zero_grad()
        for extra in range(3):
            expected = theirs(rows(seed + extra)) / 3
            expected.backward()
        same(loss / 3, expected.detach(), "loss")
        named = {name: p.grad for name, p in theirs.named_parameters()}
        same({name: tensor / 3 for name, tensor in gradients.items()}, named, "gradients")
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        other.step()
    same(step.state_dict()["module"], theirs.state_dict(), "module")


# ---------------------------------------------------------------- optimizers


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGD, {}),
        (SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
        (SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
        (ADAM, {"betas": (0.8, 0.95), "weight_decay": 0.1, "amsgrad": True}),
        (ADAM, {"maximize": True, "eps": 1e-3}),
        (ADAMW, {"amsgrad": True}),
    ],
)
def test_optimizers(kind: Any, options: dict[str, Any]) -> None:
    """Gradients of our own choice, whose sizes go up and down; rates change by a schedule."""
    parameters = [nn.Parameter(rows(i)) for i in range(2)]

    def loss(self: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (self.a * a).sum() + (self.b * b).sum()

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(p.detach().clone()) for p in parameters)

        forward = loss

    ours, theirs = Chosen(), Chosen()
    mine, other = (kind(module.parameters(), lr=0.05, **options) for module in (ours, theirs))
    step = relax_ext.training(ours, (rows(0), rows(1)), mine)
    for i in range(6):
        batch = rows(10 + i) * 10.0 ** (i % 3 - 1), rows(20 + i)
        for optimizer in (mine, other):
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + i)
            if options.get("momentum"):
                optimizer.param_groups[0]["momentum"] = 0.9 - 0.01 * i
        same(step(*batch), torch_step(theirs, other, *batch), f"loss {i}")
    state = step.state_dict()
    same(state["module"], theirs.state_dict(), "module")
    same(state["optimizer"]["state"], other.state_dict()["state"], "state")


# ---------------------------------------------------------------- forms of modules


def stopped(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * self.w
    with torch.no_grad():
        z = y * self.w
    return (y * y.detach() * z).mean()


def tracked(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Running statistics that blocks of no_grad change are read behind each of them."""
    norm, loss = self.m[0], x.mean()
    for factor in (1, 2):
        with torch.no_grad():
            norm(x * self.w * factor)
        # Cloned: eager PyTorch would differentiate the first one by the statistics of the second.
        y = F.batch_norm(x * self.w, norm.running_mean.clone(), norm.running_var.clone())
        loss = loss + y.square().mean()
    return loss


def assigned(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = self.m[0](x * self.w)
    self.m[0].running_mean = self.m[0].running_mean * 0.5
    return y.square().mean()


def normed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.m[0](x * self.w.reshape(-1, *[1] * (x.ndim - 2))) * x).mean()


def twice(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.m[0](torch.tanh(self.m[0](x * self.w))).square().mean()


def concatenated(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.cat([x * self.w]), x]).square().mean()


def embedded(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.m[0]((x > 0).long()) * self.w).square().mean()


def written(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * self.w
    y.detach().mul_(2)
    return y.mean()


FORMS = {
    "embedding at indices of rank 2": lambda: Function(embedded, nn.Embedding(2, 3)),
    "stop gradient": lambda: Function(stopped),
    "statistics tracked within no_grad": lambda: Function(tracked, nn.BatchNorm1d(3, affine=False)),
    "assigned buffer": lambda: Function(assigned, nn.BatchNorm1d(3)),
    "norm without statistics": lambda: Function(
        normed, nn.BatchNorm1d(3, track_running_stats=False)
    ),
    "norm without weights": lambda: Function(normed, nn.BatchNorm1d(3, affine=False)),
    "spectral norm": lambda: Function(
        twice, nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    ),
    "weight norm": lambda: Function(twice, nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
    "written after detach": lambda: Function(written),
    "concatenation of one": lambda: Function(concatenated),
    "dropout of nothing": lambda: Function(twice, nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_modules(form: str) -> None:
    torch.manual_seed(7)
    ours = FORMS[form]().double()
    theirs = copy.deepcopy(ours)
    step, other = relax_ext.training(ours, (rows(0),), sgd(ours)), sgd(theirs)
    for seed in range(3):
        same(step(rows(seed)), torch_step(theirs, other, rows(seed)), f"loss {seed}")
    same(step.state_dict()["module"], theirs.state_dict(), "module")


def drawn(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Every way in which layers of training draw numbers."""
    h = self.m[0](x * self.w)
    with torch.no_grad():
        noise = torch.randn_like(h)
    h = F.dropout(self.m[1](h + 0.1 * noise), 0.0) * h.new_empty(len(h), 1).bernoulli_(0.8).div_(
        0.8
    )
    h = h * torch.rand(3, dtype=h.dtype) + torch.empty_like(h).uniform_(-1, 1) * self.w
    h = F.alpha_dropout(h, 0.2, self.training)[torch.randperm(len(h))]
    h = self.m[2](h[:, :, None])[:, :, 0] + 1e-3 * F.dropout(h, 1.0)
    return F.gumbel_softmax(h).square().mean()


def test_random_numbers_are_those_of_pytorch() -> None:
    """A seed gives the numbers that it gives in PyTorch, in training and in evaluation."""
    torch.manual_seed(8)
    ours = Function(drawn, nn.Linear(3, 3), nn.Dropout(0.3), nn.Dropout1d(0.4)).double()
    theirs = copy.deepcopy(ours)
    step, other = relax_ext.training(ours, (rows(0, 6),), sgd(ours)), sgd(theirs)
    torch.manual_seed(11)
    losses = [step(rows(seed, 6)) for seed in range(3)] + [step.evaluate(rows(3, 6))]
    torch.manual_seed(11)
    expected = [torch_step(theirs, other, rows(seed, 6)) for seed in range(3)]
    expected.append(theirs.eval()(rows(3, 6)).detach())
    for number, (loss, value) in enumerate(zip(losses, expected)):
        same(loss, value, f"loss {number}")
    same(step.state_dict()["module"], theirs.state_dict(), "module")
    torch.manual_seed(12)
    assert not torch.equal(step(rows(0, 6)), losses[0]), "each step draws anew"


def test_a_classifier() -> None:
    """Integer targets, cross entropy, a max pool; every relu has inputs of exactly 0."""
    torch.manual_seed(9)

    def loss(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.m[0](x) * self.w[:, None, None]), 2)
        return F.cross_entropy(self.m[1](h.flatten(1)), y)

    ours = Function(loss, nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Linear(12, 4)).double()
    theirs = copy.deepcopy(ours)
    x = torch.randn(5, 2, 4, 4, dtype=torch.float64)
    x[0] = 0
    y = torch.tensor([0, 3, 1, 1, 2])
    step, other = relax_ext.training(ours, (x, y), adam(ours)), adam(theirs)
    for i in range(3):
        same(step(x, y), torch_step(theirs, other, x, y), f"loss {i}")
    same(step.state_dict()["module"], theirs.state_dict(), "module")


def test_a_loss_that_asserts_its_classes() -> None:
    """``one_hot`` asserts the range of its classes: PyTorch does so before each step."""

    def loss(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(self.m[0](x * self.w), 1) - F.one_hot(y, 4)).square().mean()

    ours = Function(loss, nn.Linear(3, 4)).double()
    theirs = copy.deepcopy(ours)
    x, y = rows(0), torch.tensor([0, 3, 1, 1, 2])
    step, other = relax_ext.training(ours, (x, y), adam(ours)), adam(theirs)
    for i in range(3):
        same(step(x, y), torch_step(theirs, other, x, y), f"loss {i}")
    same(step.state_dict()["module"], theirs.state_dict(), "module")
    with pytest.raises(ValueError, match=r"^training: .*smaller than num_classes\.$"):
        step(x, y + 1)


def test_a_loss_that_reads_its_data_is_refused_in_one_line(capfd: Any) -> None:
    def loss(self: Any, x: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(x * self.w, x, torch.ones_like(x))

    module = Function(loss).double()
    with pytest.raises(ValueError, match=r"^training: PyTorch cannot trace Function: [^\n]*$"):
        relax_ext.training(module, (rows(0),), sgd(module))
    assert capfd.readouterr().err == ""


class InBfloat16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(*batch).float()


def test_autocast() -> None:
    """Products in bfloat16, batch norms and weights in float32: as near to float64 as PyTorch.

    Twice its distance, as both round each product; measured, 0.9 to 1.1 times.
    """
    torch.manual_seed(3)
    exact = net()
    ours, theirs = (InBfloat16(copy.deepcopy(exact).float()) for _ in range(2))
    wide = batches(4, 8)[0]
    narrow = tuple(tensor.float() for tensor in wide)
    loss, gradients = relax_ext.training(ours, narrow, sgd(ours)).gradients(*narrow)
    losses = {"exact": exact(*wide), "theirs": theirs(*narrow)}
    for value in losses.values():
        value.backward()
    distances = {
        "loss": (loss - losses["exact"], losses["theirs"] - losses["exact"]),
        **{
            name: (gradients[f"module.{name}"] - p.grad, q.grad - p.grad)
            for (name, p), q in zip(exact.named_parameters(), theirs.parameters())
            if p.requires_grad
        },
    }
    for name, (our, their) in distances.items():
        assert our.abs().max() <= 2 * their.abs().max() + 1e-4, name
        assert our.abs().max() > 0, f"{name}: not in bfloat16"


def test_norm_of_volumes() -> None:
    """Sums over several axes, the last one among them."""
    torch.manual_seed(8)
    ours = Function(normed, nn.BatchNorm3d(3)).double()
    theirs = copy.deepcopy(ours)
    x = torch.rand(2, 3, 2, 3, 4, dtype=torch.float64)
    step, other = relax_ext.training(ours, (x,), sgd(ours)), sgd(theirs)
    for i in range(2):
        same(step(x), torch_step(theirs, other, x), f"loss {i}")
    same(step.state_dict()["module"], theirs.state_dict(), "module")


@pytest.mark.parametrize("train", [True, False])
def test_two_compilations_serve_all_sizes(train: bool) -> None:
    """The first shape and the second are known, one function serves all others, as PyTorch."""
    relax_ext.torch.report(clear=True)
    ours = small()
    theirs = copy.deepcopy(ours)
    step, other = relax_ext.training(ours, (rows(0),), sgd(ours)), sgd(theirs)
    for seed, count in enumerate((5, 4, 3, 6, 5, 7, 4)):
        x = rows(seed, count)
        if train:
            same(step(x), torch_step(theirs, other, x), f"loss {seed}")
        else:
            same(step.evaluate(x), copy.deepcopy(theirs).eval()(x).detach(), f"loss {seed}")
    same(step.state_dict()["module"], theirs.state_dict(), "module")
    kind = "training" if train else "inference"
    graphs = [graph for graph in relax_ext.torch.report().graphs if graph.kind == kind]
    assert [len(graph.parts) for graph in graphs] == [1, 1]
    assert [list(graph.parts[0].compiled) for graph in graphs] == [[None], [(4,), None]]


def test_sizes_with_dropout_and_two_changing_axes() -> None:
    """The numbers of symbolic sizes are those of PyTorch too, drawn before the only part."""

    def loss(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.m[1](self.m[0](x)).mean(0) * y.mean() * self.w.mean()).square().mean()

    torch.manual_seed(4)
    ours = Function(loss, nn.Conv2d(2, 3, 3, padding=1), nn.Dropout(0.3)).double()
    theirs = copy.deepcopy(ours)
    generator = torch.Generator().manual_seed(5)
    shapes = [(2, 8, 8), (3, 8, 9), (4, 8, 7), (2, 8, 9), (5, 9, 9), (6, 10, 7)]
    data = [
        (
            torch.randn(n, 2, h, w, generator=generator, dtype=torch.float64),
            torch.randn(n + 1, generator=generator, dtype=torch.float64),
        )
        for n, h, w in shapes
    ]
    relax_ext.torch.report(clear=True)
    step, other = relax_ext.training(ours, data[0], sgd(ours)), sgd(theirs)
    for number, batch in enumerate(data):
        torch.manual_seed(number)
        loss_of_ours = step(*batch)
        torch.manual_seed(number)
        same(loss_of_ours, torch_step(theirs, other, *batch), f"loss {number}")
    graphs = relax_ext.torch.report().graphs
    assert [len(graph.parts) for graph in graphs] == [1, 1, 1], "one more for the height"


def test_a_shape_that_the_model_depends_on_is_compiled_for_itself() -> None:
    """A branch on a size: PyTorch states what a graph of symbolic sizes holds for."""

    def loss(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.m[0](x * self.w)
        return h.square().mean() if len(x) > 4 else h.abs().mean() * len(x)

    ours = Function(loss, nn.Linear(3, 3)).double()
    theirs = copy.deepcopy(ours)
    step, other = relax_ext.training(ours, (rows(0, 3),), sgd(ours)), sgd(theirs)
    for seed, count in enumerate((3, 4, 5, 2, 6, 7, 1)):
        x = rows(seed, count)
        same(step(x), torch_step(theirs, other, x), f"loss {seed}")


def test_the_batch_is_left_as_it_is() -> None:
    """A gradient that is a view of the batch, clipped and applied."""
    ours = Function(lambda self, x: (self.w * x[0]).sum())
    x = torch.rand(5, 3)
    before = x.clone()
    step = relax_ext.training(ours, (x,), sgd(ours), clip_norm=1e-3)
    step(x)
    step(x.T[:, :3].T)
    assert torch.equal(x, before)


OTHERS = (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adamax)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_optimizers_of_pytorch(kind: Any) -> None:
    ours, theirs = small(), small()
    mine, other = kind(ours.parameters(), lr=1e-2), kind(theirs.parameters(), lr=1e-2)
    step = relax_ext.training(ours, (rows(0),), mine)
    for seed in range(3):
        same(step(rows(seed)), torch_step(theirs, other, rows(seed)), f"loss {seed}")
    step.to_torch()
    same(ours.state_dict(), theirs.state_dict(), "module")
    same(mine.state_dict()["state"], other.state_dict()["state"], "state")


# ---------------------------------------------------------------- refusals


def plain(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (x * self.w).square().mean()


def kept(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.last = x * self.w
    return self.last.mean()


REFUSED = {
    r"module=int must be a torch.nn.Module": lambda: 3,
    r"BatchNorm1d 'm.0' has momentum=None": lambda: Function(
        normed, nn.BatchNorm1d(3, momentum=None)
    ),
    r"Function.forward returns shape \(5, 3\)": lambda: Function(lambda self, x: x * self.w),
    r"Function.forward returns 2 values": lambda: Function(lambda self, x: (plain(self, x), x)),
    r"Function.forward returns torch.int64": lambda: Function(
        lambda self, x: plain(self, x).long()
    ),
    r"no shape and no branch may depend on data": lambda: Function(
        lambda self, x: (x * self.w)[x > 0].mean()
    ),
    r"PyTorch cannot trace Function: DataDependentOutputException": lambda: Function(
        lambda self, x: plain(self, x) if x.sum() > 0 else x.mean()
    ),
    r"does not depend on parameter 'm.0.weight'": lambda: Function(plain, nn.Linear(3, 3)),
    r"in PyTorch stay aten.cummax.default": lambda: Function(
        lambda self, x: torch.cummax(self.m[0](x * self.w), 1)[0].mean(), nn.Linear(3, 3)
    ),
    r"in PyTorch stay aten.max.dim": lambda: Function(
        lambda self, x: torch.cumprod(self.m[0](x * self.w), 1).mean(), nn.Linear(3, 3)
    ),
    r"changes its argument 0 in place": lambda: Function(
        lambda self, x: (x.mul_(2) * self.w).mean()
    ),
    r"assigns a tensor to last": lambda: Function(kept),
}


@pytest.mark.parametrize("line", REFUSED)
def test_modules_that_are_refused(line: str) -> None:
    module = REFUSED[line]()
    is_module = isinstance(module, nn.Module)
    optimizer = sgd(module.double() if is_module else nn.Linear(1, 1))
    with pytest.raises(ValueError, match=line) as error:
        relax_ext.training(module, (rows(0),), optimizer)
    assert str(error.value).startswith("training: ") and "\n" not in str(error.value)


def test_other_arguments_that_are_refused() -> None:
    module = Function(plain).double()
    good = sgd(module)
    frozen = Function(plain).double().requires_grad_(False)
    mixed = Function(plain, nn.Linear(3, 3).half()).float()
    mixed.m[0].double()
    calls = {
        "optimizer LBFGS is not known": (module, (rows(0),), torch.optim.LBFGS([module.w])),
        "must be made of the module's parameters": (module, (rows(0),), sgd(nn.Linear(3, 3))),
        "no parameter of the optimizer has requires_grad": (frozen, (rows(0),), sgd(frozen)),
        "parameters of torch.float32, torch.float64": (mixed, (rows(0),), sgd(mixed)),
        "parameters of torch.float16": (module.half(), (rows(0),), good),
        "example is a Tensor": (module.double(), rows(0), good),
        "argument 0 is a int": (module, (3,), good),
        "target cuda": (module, (rows(0),), good, "cuda"),
    }
    for line, arguments in calls.items():
        kind = arguments[0]
        if line.startswith("parameters of torch.float16"):
            kind.half()
        with pytest.raises(ValueError, match=line):
            relax_ext.training(*arguments)
        module.double()


def test_what_changes_is_refused() -> None:
    module = small()
    optimizer = sgd(module)
    step = relax_ext.training(module, (rows(0),), optimizer)
    before = step.state_dict()
    _, gradients = step.gradients(rows(0))
    step.load_state_dict(before)
    first = next(iter(gradients))
    lacking = {name: tensor for name, tensor in gradients.items() if name != first}
    with pytest.raises(ValueError, match=f"the mapping lacks '{first}'"):
        step.update(lacking)
    with pytest.raises(ValueError, match="must be"):
        step.update({**gradients, first: gradients[first].float()})
    with pytest.raises(ValueError, match="a batch has 2 tensors, the example 1"):
        step(rows(0), rows(1))
    with pytest.raises(ValueError, match=r"argument 0 is torch\.float32"):
        step(rows(0).float())
    for call in (step, step.gradients, step.evaluate):
        with pytest.raises(ValueError, match=r"argument 0 has shape \(0, .*: it must not be empty"):
            call(rows(0)[:0])
    with pytest.raises(ValueError, match="the state has 'module'"):
        step.load_state_dict({"module": before["module"]})
    other = {key: value for key, value in before["module"].items() if key != "w"}
    with pytest.raises(ValueError, match="the state lacks 'w'"):
        step.load_state_dict({**before, "module": other})
    module.w.requires_grad_(False)
    with pytest.raises(ValueError, match="the optimizer has changed"):
        step(rows(0))
    module.w.requires_grad_(True)
    same(step.state_dict()["module"], before["module"], "a refused step changes nothing")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("exp_avg", None, "training: the optimizer's state of a parameter .* lacks 'exp_avg'"),
        (
            "exp_avg_sq",
            None,
            "training: the optimizer's state of a parameter .* lacks 'exp_avg_sq'",
        ),
        ("exp_avg", torch.zeros(1, 1), r"has 'exp_avg' of shape \(1, 1\): it must be \("),
        ("step", None, "load_state_dict: the optimizer's state lacks 'step'"),
        ("step", torch.zeros(2), r"has 'step' of shape \(2,\): it must be \(\)"),
    ],
)
def test_optimizer_states_that_are_refused(key: str, value: Any, line: str) -> None:
    """None: the state lacks the key.  The step goes on as before."""
    module = small()
    step = relax_ext.training(module, (rows(0),), torch.optim.Adam(module.parameters()))
    step(rows(0))
    before = step.state_dict()
    damaged = copy.deepcopy(before)
    for state in damaged["optimizer"]["state"].values():
        del state[key]
        if value is not None:
            state[key] = value
    with pytest.raises(ValueError, match=line):
        step.load_state_dict(damaged)
    same(step.state_dict()["module"], before["module"], "a refused state changes nothing")
    step(rows(0))
