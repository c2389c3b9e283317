# SPDX-License-Identifier: Apache-2.0
"""Compile and compare imported models; run importers without the corrections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tvm

from helpers import build
from relax_ext.importers import HOOKS

from .corrections import is_right, without
from .profile import FUZZ
from .whole import compiled, ours

__all__ = [
    "RELATIVE",
    "TARGET",
    "assert_close",
    "assert_stock_is_wrong",
    "is_right",
    "piped",
    "runner",
    "uncorrected",
]

# Vectors of this processor take longer to compile, and are tested elsewhere.
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})
RELATIVE = {"float32": 1e-4, "float64": 1e-10, "float16": 1e-2, "bfloat16": 4e-2}


def uncorrected() -> contextlib.AbstractContextManager[None]:
    """TVM's own importers before our operators: what a correction is seen to correct."""
    return without(HOOKS)


def assert_stock_is_wrong(check: Callable[[], None]) -> None:
    """Take the corrections out, and see a check fail: in a long run, since this depends on TVM's
    release alone."""
    if FUZZ:
        with uncorrected():
            assert not is_right(check)


def runner(mod: tvm.IRModule) -> Callable[..., tvm.runtime.Tensor]:
    """``run(*tensors)``: the one result of a module."""
    return runners({"main": mod})["main"]


def runners(modules: Mapping[str, tvm.IRModule]) -> dict[str, Callable[..., tvm.runtime.Tensor]]:
    """Runners by name; modules of one function are compiled as one."""
    single = {name: mod for name, mod in modules.items() if len(mod.functions) == 1}
    machine = build.compiled(build.joined(single), TARGET) if single else {}
    others = modules.keys() - single.keys()
    alone = {name: build.compiled(modules[name], TARGET)["main"] for name in others}
    return {
        name: partial(_first, alone[name] if name in others else machine[name]) for name in modules
    }


def _first(function: Callable[..., Any], *tensors: Any) -> tvm.runtime.Tensor:
    result = function(*tensors)
    return result if isinstance(result, tvm.runtime.Tensor) else result[0]


def piped(mod: tvm.IRModule) -> tuple[Callable[..., tvm.runtime.Tensor], list[str]]:
    """Compile by the pipeline for whole models; return the function, and the names of our
    kernels."""
    function, made = compiled(mod)
    return partial(_first, function), ours(made)


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str = "float32") -> None:
    """Assert equal shapes, and values that are close relative to the largest one."""
    assert got.shape == want.shape
    scale = np.abs(want).max(initial=1e-30)
    assert np.abs(got.astype("float64") - want).max(initial=0) <= RELATIVE[dtype] * scale
