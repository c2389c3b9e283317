# SPDX-License-Identifier: Apache-2.0
"""torch.export: each operator that TVM's importer converts, with random arguments.

Every call is either imported with PyTorch's values or refused in one line.  A call that fails is
replayed by ``DRAWS[name](Draw(seed))`` with the name and the seed of the failure's message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from helpers.imported import TARGET, is_right, uncorrected  # noqa: E402
from helpers.torch_draws import DRAWS, Call, Draw  # noqa: E402
from helpers.whole import Function  # noqa: E402

DRAWN = 3
"""Calls of each operator."""

GROUP = 12
"""Operators of one compiled module."""

REFUSED = frozenset(("bilinear, antialiased", "grid_sample", "max_pool2d, indices"))
"""Operators of which all calls may be refused, decomposed or not."""

# Relative to the largest value.  The functions of float32 and float64 that TVM calls are exact to
# a few units in the last place, its tanh to 1e-7; of float16 each operator rounds, PyTorch once.
RELATIVE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.float16: 1e-2}

GROUPS = [list(DRAWS)[i : i + GROUP] for i in range(0, len(DRAWS), GROUP)]


@dataclass(frozen=True)
class Imported:
    """A call and the function that was made of it."""

    what: str
    call: Call
    function: relax.Function


def imported(call: Call, decomposed: bool) -> relax.Function:
    """Return the function of a call; ValueError of one line where it is refused."""
    exported = torch.export.export(Function(call.function), call.tensors)
    return from_exported_program(exported, run_ep_decomposition=decomposed)["main"]


def accepted(what: str, call: Call, decomposed: bool) -> Imported | None:
    """Return an imported call, None where it is refused by us or not known to TVM."""
    try:
        return Imported(what, call, imported(call, decomposed))
    except ValueError as error:
        assert re.fullmatch(r"\w+: [^\n]+", str(error)), f"{what}: {error}"
    except AssertionError as error:
        assert str(error).startswith("Unsupported function types"), f"{what}: {error}"
    return None


def compare(cases: Sequence[Imported]) -> None:
    """Compile all functions as one module, and compare each with PyTorch."""
    names = [f"f{i}" for i in range(len(cases))]
    module = tvm.IRModule(
        {
            name: case.function.with_attr("global_symbol", name)
            for name, case in zip(names, cases)
        }
    )
    vm = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
    for name, case in zip(names, cases):
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
        seeds = rng.integers(2**32, size=DRAWN).tolist()
        found = [
            accepted(f"{name}, seed {seed}", DRAWS[name](Draw(seed)), decomposed) for seed in seeds
        ]
        assert name in REFUSED or any(found), f"{name}: all of {seeds} are refused"
        cases += [one for one in found if one is not None]
    compare(cases)
