# SPDX-License-Identifier: Apache-2.0
"""Small models of PyTorch through the pipeline, compared with PyTorch in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm
from torch import Tensor, nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import relax_ext
from helpers.targets import quickly_compiled
from topi_ext.compat import tir
from topi_ext.emit import is_kernel

TARGET = quickly_compiled(relax_ext.host_target(num_cores=2))
TOLERANCE = 2e-6
"""Maximum error, relative to the largest value: sums of at most 48 products of float32, and
softmax."""


class Function(nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def compiled(mod: Any) -> tuple[Any, Any]:
    """A virtual machine's function, and the module that it was made of."""
    passes, seen = relax_ext.pipeline(TARGET), []

    @tvm.transform.module_pass(opt_level=0)
    def keep(module: Any, _: Any) -> Any:
        seen.append(passes(module))
        return seen[-1]

    executable = tvm.compile(mod, TARGET, relax_pipeline=keep)
    return relax.VirtualMachine(executable, tvm.cpu())["main"], seen[-1]


def ours(mod: Any) -> list[str]:
    """Names of kernels of ours."""
    return sorted(
        name.name_hint
        for name, func in mod.functions_items()
        if isinstance(func, tir.PrimFunc) and is_kernel(func)
    )


def check(model: nn.Module, *inputs: Tensor, tolerance: float = TOLERANCE) -> list[str]:
    """Compare with PyTorch, and return the names of kernels of ours."""
    model = model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mod = from_exported_program(torch.export.export(model, inputs))
    run, module = compiled(mod)
    result = run(*(tvm.runtime.tensor(x.contiguous().numpy()) for x in inputs))
    result = result if isinstance(result, tvm.runtime.Tensor) else result[0]
    want = model.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    want = (want[0] if isinstance(want, tuple) else want).detach().numpy()
    limit = tolerance * np.abs(want[np.isfinite(want)]).max(initial=0)
    np.testing.assert_allclose(result.numpy(), want, rtol=0, atol=limit)
    return ours(module)
