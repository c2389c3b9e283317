# SPDX-License-Identifier: Apache-2.0
"""NaN in comparisons and conversions to truth values, and functions of half precision, in Relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relay

from helpers.relay import target

NAN = float("nan")
X, Y = [NAN, 0.0, 1.0, 2.0, NAN, -0.0, 3.0], [1.0, NAN, 1.0, 0.0, NAN, 0.0, NAN]
"""Seven elements: LLVM compares vectors and single numbers by different instructions."""

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def run(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    operands = [relay.var(f"x{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(arrays)]
    module = tvm.IRModule.from_expr(relay.Function(operands, function(*operands)))
    executor = relay.create_executor("graph", module, tvm.cpu(), target())
    return executor.evaluate()(*arrays).numpy()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_comparisons(dtype: str) -> None:
    """Compare two tensors, a tensor and a number, a tensor and itself; and the complements."""
    x, y = (np.array(values, dtype) for values in (X, Y))
    one = np.array(1, dtype)

    def function(x: Any, y: Any) -> Any:
        results = []
        for name in COMPARISONS:
            for a, b in ((x, y), (x, relay.const(one, dtype)), (x, x)):
                result = getattr(relay, name)(a, b)
                results += [result, relay.logical_not(result)]
        truths = relay.cast(x, "bool")
        return relay.stack([*results, truths, relay.isnan(x)], 0)

    want = []
    for name in COMPARISONS:
        for a, b in ((x, y), (x, one), (x, x)):
            result = getattr(np, name)(a, b)
            want += [result, ~result]
    want += [x.astype(bool), np.isnan(x)]
    np.testing.assert_array_equal(run(function, x, y), np.stack(want))


def test_integers_are_compared_as_before() -> None:
    x = np.array([1, 2, 3], "int32")
    got = run(lambda a: relay.not_equal(a, relay.const(2, "int32")), x)
    assert got.tolist() == [True, False, True]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nn.softmax": lambda x: x.softmax(-1),
    "nn.log_softmax": lambda x: x.log_softmax(-1),
    **{name: getattr(torch, name) for name in ("asin", "acos", "atan", "asinh", "atanh")},
    "acosh": torch.acosh,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_precision_is_rounded_once(name: str) -> None:
    """Two units of float16: float32 arithmetic, and one rounding."""
    values = torch.linspace(-0.99, 0.99, 200)[None].half()
    values = values + 2 if name == "acosh" else values * 6 if "softmax" in name else values
    path = name.split(".")

    def function(x: Any) -> Any:
        operator: Any = relay
        for part in path:
            operator = getattr(operator, part)
        return operator(x)

    want = FUNCTIONS[name](values.double()).numpy()
    got = run(function, values.numpy()).astype("float64")
    # 1e-4: near 0 TVM's float32 approximations of inverse functions err absolutely.
    np.testing.assert_allclose(got, want, rtol=2**-10, atol=1e-4 * np.abs(want).max())
