# SPDX-License-Identifier: Apache-2.0
"""Modules run by ``torch.compile(..., backend="tvm_conv")`` and by PyTorch alone, compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from relax_ext.torch import Report, report

CLOSE = 1e-11
"""Maximum error, relative to a tensor's largest value or to 1: float64, with sums of at most a few
thousand terms in another order."""


class Function(nn.Module):
    """A function of children and of the arguments."""

    def __init__(self, function: Callable[..., Any], *children: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.m = nn.ModuleList(children)

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.m, *arguments)


def compiled(model: Any, options: dict[str, Any] | None = None, **others: Any) -> Any:
    """Return a compiled model; what cannot be compiled is an error unless `options` say more."""
    torch._dynamo.reset()
    report(clear=True)
    options = {"unknown": "raise"} if options is None else options
    return torch.compile(model, backend="tvm_conv", options=options, **others)


def assert_same(got: Any, want: Any, limit: float = CLOSE) -> None:
    """Compare results: structure, dtypes, shapes, strides, and values relative to the largest."""
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = list(got.values()), list(want.values())
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for one, other in zip(got, want):
            assert_same(one, other, limit)
    elif isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.stride() == want.stride()
        if want.numel():
            scale = max(1.0, float(want.detach().abs().max()))
            assert float((got.detach() - want.detach()).abs().max()) <= limit * scale
    else:
        assert got == want and type(got) is type(want)


def copies(arguments: Sequence[Any]) -> list[Any]:
    """Return arguments with tensors of their own, which lie in memory as before."""

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return copy.copy_(value.detach()).requires_grad_(value.requires_grad)

    return [one(value) for value in arguments]


def check_inference(
    model: nn.Module, *arguments: Any, limit: float = CLOSE, run: Any = None, **others: Any
) -> Report:
    """Compare results and changed arguments of a compiled model with PyTorch's.

    Parameters
    ----------
    run : callable, optional
        The compiled model; it is compiled if left out.
    """
    run = compiled(model, **others) if run is None else run
    given, other = copies(arguments), copies(arguments)
    with torch.no_grad():
        assert_same(run(*given), model(*other), limit)
    assert_same(given, other, limit)
    return report()


def check_training(
    model: nn.Module, *arguments: Any, limit: float = CLOSE, **others: Any
) -> Report:
    """Compare results, gradients and buffers of a compiled model with PyTorch's."""
    twin = copy.deepcopy(model)
    run = compiled(model, **others)
    given, other = copies(arguments), copies(arguments)
    results = []
    for module, values in ((run, given), (twin, other)):
        torch.manual_seed(0)
        result = module(*values)
        result.square().sum().backward()
        results.append(result.detach())
    first, second = results
    assert_same(first, second, limit)
    assert_same(gradients(given), gradients(other), limit)
    assert_same(gradients(model.parameters()), gradients(twin.parameters()), limit)
    assert_same(list(model.buffers()), list(twin.buffers()), limit)
    return report()


def gradients(values: Any) -> list[Any]:
    """Return the gradients of those values that are tensors."""
    return [value.grad for value in values if isinstance(value, torch.Tensor)]
