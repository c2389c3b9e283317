# SPDX-License-Identifier: Apache-2.0
"""Run and compare modules of Relay's importers; run importers without the corrections."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relay

from relay_ext.importers import HOOKS

from .corrections import is_right, without
from .relay import flattened

__all__ = [
    "TARGET",
    "TOLERANCE",
    "assert_close",
    "is_right",
    "results",
    "results_of_free_sizes",
    "uncorrected",
]

# Vectors of this processor take longer to compile, and are tested elsewhere.
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})

TOLERANCE = 1e-4
"""Maximum error of float32, relative to the largest value: both sides add up to some hundred
products in different orders, each rounded by 6e-8. The errors that these tests look for are about
1."""


def uncorrected() -> contextlib.AbstractContextManager[None]:
    """TVM's own importers before our operators: what a correction is seen to correct."""
    return without(HOOKS)


def results(
    mod: tvm.IRModule, params: Mapping[str, Any], data: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The results of a module of known sizes."""
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, TARGET, params=dict(params))
    runner = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu()))
    for name, array in data.items():
        runner.set_input(name, array)
    runner.run()
    return [runner.get_output(index).numpy() for index in range(runner.get_num_outputs())]


def results_of_free_sizes(
    mod: tvm.IRModule, params: Mapping[str, Any], data: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The results of a module with sizes that only run time knows."""
    arrays = {**data, **params}
    with tvm.transform.PassContext(opt_level=3):
        made = relay.create_executor("vm", mod=mod, device=tvm.cpu(), target=TARGET)
        ordered = [tvm.nd.array(arrays[var.name_hint]) for var in mod["main"].params]
        return flattened(made.evaluate()(*ordered))


def assert_close(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    assert [one.shape for one in got] == [one.shape for one in want]
    for one, other in zip(got, want):
        assert one.dtype == other.dtype
        limit = TOLERANCE * np.abs(other).max(initial=1e-30)
        assert np.abs(one - other).max(initial=0) <= limit
