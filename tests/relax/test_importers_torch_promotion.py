# SPDX-License-Identifier: Apache-2.0
"""torch.export: arithmetic of integers and truth values, promoted as PyTorch promotes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm

torch = pytest.importorskip("torch")

from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from helpers.imported import is_right, runner, uncorrected  # noqa: E402

BYTES = torch.arange(0, 250, 5, dtype=torch.uint8)
INTS = torch.arange(-5, 6)
TRUTHS = torch.tensor([True, False, True])
FLOATS = torch.linspace(-3, 3, 11)

WRONG = {
    "bytes / 255.": (lambda x: x / 255.0, BYTES),
    "ints + 0.5": (lambda x: x + 0.5, INTS),
    "1.5 - ints": (lambda x: 1.5 - x, INTS),
    "ints * 0.5": (lambda x: x * 0.5, INTS),
    "ints / 2": (lambda x: x / 2, INTS),
    "ints ** 0.5": (lambda x: x.abs() ** 0.5, INTS),
    "truths * 2": (lambda x: x * 2, TRUTHS),
    "truths * 2.5": (lambda x: x * 2.5, TRUTHS),
    "ints < 0.5": (lambda x: x < 0.5, INTS),
    "ints != 0.5": (lambda x: x != 0.5, INTS),
    "cumsum of truths": (lambda x: torch.cumsum(x, 0), TRUTHS),
    "cumsum of small ints": (lambda x: torch.cumsum(x, 0), torch.full((40,), 9, dtype=torch.int8)),
    "ints / 2, truncated": (lambda x: torch.div(x, 2, rounding_mode="trunc"), INTS),
    "floats / 0.7, truncated": (
        lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
        FLOATS.double(),
    ),
    "one operand twice": (lambda x: x / 255.0 + x * 2, BYTES),
}
RIGHT = {
    "ints // 2": (lambda x: x // 2, INTS),
    "floats // 2": (lambda x: x // 2, FLOATS),
    "ints / ints, floor": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        INTS,
        INTS.abs() + 2,
    ),
    "ints + floats": (lambda x, y: x + y, INTS, FLOATS),
    "ints * halves": (lambda x, y: x * y, INTS, FLOATS.half()),
    "two widths": (lambda x, y: x - y, INTS.int(), INTS),
    "ints ** 2": (lambda x: x**2, INTS),
    "ints % 3": (lambda x: x % 3, INTS),
    "between": (lambda x: (x > 1) & (x < 4), INTS),
    "bytes as floats": (lambda x: x.float() / 255.0, BYTES),
}


class Applied(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def check(function: Callable, *tensors: Any, decomposed: bool) -> None:
    want = function(*tensors)
    exported = torch.export.export(Applied(function), tensors)
    run = runner(from_exported_program(exported, run_ep_decomposition=decomposed))
    got = torch.from_dlpack(run(*(tvm.runtime.from_dlpack(t.clone()) for t in tensors)))
    assert got.dtype is want.dtype
    # One operation of float32, or of a half on halves: rounded once.
    torch.testing.assert_close(
        got, want, rtol=1e-6 if want.dtype is torch.float32 else 1e-3, atol=0
    )


@pytest.mark.parametrize("decomposed", [True, False], ids=["export", "raw"])
@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_as_in_torch(name: str, decomposed: bool) -> None:
    function, *tensors = (WRONG | RIGHT)[name]
    check(function, *tensors, decomposed=decomposed)
    if name in WRONG:
        with uncorrected():
            assert not is_right(lambda: check(function, *tensors, decomposed=decomposed))
