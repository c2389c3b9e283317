# SPDX-License-Identifier: Apache-2.0
"""Corrections of Relay's importers: taken out exactly, refused where an importer is not the one
that we know, and made without a framework."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from tvm import relay

import relay_ext
from helpers.corrections import assert_left_alone
from relay_ext.importers import HOOKS
from topi_ext.adapters.import_hooks import find

ONNX = "tvm.relay.frontend.onnx"


@pytest.fixture(autouse=True)
def _registered_again() -> Iterator[None]:
    yield
    relay_ext.register()


@pytest.fixture
def conv() -> Iterator[type]:
    """ONNX's converter of convolutions, TVM's own, given back at the end."""
    converter = importlib.import_module(ONNX).Conv
    relay_ext.unregister()
    stock = vars(converter)["_impl_v1"]
    yield converter
    relay_ext.unregister()
    converter._impl_v1 = stock
    if "_impl_v22" in vars(converter):
        del converter._impl_v22


def functions(name: str) -> dict[str, Any]:
    """Return the current functions that the corrections may replace."""
    module = importlib.import_module(name)
    owners = {path: find(module, path) for path in HOOKS.importers[name].needs}
    return {
        path: (owner if isinstance(owner, dict) else vars(owner))[attribute]
        for path, (owner, attribute) in owners.items()
    }


@pytest.mark.smoke
@pytest.mark.parametrize("name", HOOKS.importers)
def test_this_release_is_known_and_gets_its_own_back(name: str) -> None:
    module = importlib.import_module(name)
    ours = functions(name)
    with relay_ext.stock():
        stock = functions(name)
        assert HOOKS.unknown(name, module) == ""
        replaced = set(HOOKS.importers[name].corrections(module)) & set(stock)
        with relay_ext.stock():
            assert functions(name) == stock
    assert replaced and {path for path in ours if ours[path] is not stock[path]} == replaced
    relay_ext.unregister()
    assert functions(name) == stock
    relay_ext.register()
    relay_ext.register()
    again = functions(name)
    assert {path for path in again if again[path] is not stock[path]} == replaced


@pytest.mark.smoke
def test_the_package_shows_the_importer_that_it_is_about() -> None:
    shown = relay.frontend.from_pytorch
    assert shown.__doc__ and "Torch" in shown.__doc__
    with relay_ext.stock():
        assert relay.frontend.from_pytorch is relay.frontend.pytorch.from_pytorch is not shown


@pytest.mark.smoke
def test_importing_imports_no_framework() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            textwrap.dedent(
                """
                import sys
                import relay_ext
                roots = ("torch", "onnx", "onnxruntime", "tflite", "tensorflow", "keras")
                print([name for name in sys.modules if name.split(".")[0] in roots])
                """
            ),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == ["[]"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda conv: setattr(conv, "_impl_v1", classmethod(lambda cls, node: None)),
            "has no Conv._impl_v1(cls, inputs, attr, params)",
        ),
        (lambda conv: delattr(conv, "_impl_v1"), "has no Conv._impl_v1(cls, inputs,"),
        (
            lambda conv: setattr(conv, "_impl_v22", classmethod(lambda cls: None)),
            "has a Conv._impl_v22",
        ),
    ],
    ids=["other parameters", "none", "a newer one"],
)
def test_an_unknown_importer_is_left_alone_with_one_warning(
    change: Any, said: str, conv: type
) -> None:
    change(conv)
    assert_left_alone(relay_ext, HOOKS, ONNX, conv, said)
