# SPDX-License-Identifier: Apache-2.0
"""``torch.compile``: inductor, which packs the weights of a frozen module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from topi_ext.spec.conv import OPERANDS

from . import by_torch
from .baselines import Call
from .cases import Case
from .engines import UnavailableError
from .timing import interleaved, timed

_TRIAL = 0.1
"""Seconds of calls of each setting, of which the faster is the baseline."""


class _Module(torch.nn.Module):
    """One convolution with a weight of its own."""

    def __init__(self, case: Case, kind: str, weight: Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self._call = by_torch.forward(case, kind)

    def forward(self, data: Tensor) -> Tensor:
        return self._call(data, self.weight)


def call(case: Case, kind: str, tensors: Mapping[str, Tensor], threads: int) -> Call:
    """With or without ``max_autotune``, whichever is faster.  It uses torch's threads."""
    if kind == "conv_weight_grad":
        raise UnavailableError("a weight gradient has no weight to freeze")
    if not by_torch.states(case, kind):
        raise UnavailableError("torch cannot state this padding")
    if torch.get_num_threads() != threads:
        raise ValueError(f"torch has {torch.get_num_threads()} threads, must have {threads}")
    data = tensors[OPERANDS[kind][0]]
    settings = [_compiled(case, kind, tensors["w"], data, tuned) for tuned in (False, True)]
    runs = {str(number): run for number, run in enumerate(settings)}
    first = {name: timed(run)[1] for name, run in runs.items()}
    times = interleaved(runs, first, _TRIAL)
    best = min(runs, key=lambda name: times[name].ms)
    return Call(run=runs[best], read=Tensor.clone)


def _compiled(
    case: Case, kind: str, weight: Tensor, data: Tensor, tuned: bool
) -> Callable[[], Any]:
    torch._dynamo.reset()  # else one module recompiles for every case, and gives up at the eighth
    options = {"freezing": True, "max_autotune": tuned, "compile_threads": 1}
    # Freezing asks for no_grad; a tensor of inference_mode would be another kind of input.
    with torch.inference_mode(False), torch.no_grad():
        compiled = torch.compile(
            _Module(case, kind, weight.clone()).eval(), dynamic=False, options=options
        )
        data = data.clone()
        compiled(data)

    def run() -> Tensor:
        with torch.no_grad():
            return compiled(data)

    return run
