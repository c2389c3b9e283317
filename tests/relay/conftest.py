# SPDX-License-Identifier: Apache-2.0
"""Every test of Relay starts with our rules registered."""

from __future__ import annotations

import sys
import types

import pytest

import relay_ext


@pytest.fixture(autouse=True)
def _registered() -> None:
    relay_ext.register()


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that ONNX 1.19 dropped, without which stock TVM imports nothing."""
    helper = pytest.importorskip("onnx").helper
    module = types.ModuleType("onnx.mapping")
    names = {n: str(helper.tensor_dtype_to_np_dtype(n)) for n in range(1, 14)}
    module.TENSOR_TYPE_TO_NP_TYPE = names  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnx.mapping", module)
