# SPDX-License-Identifier: Apache-2.0
"""Corrections of Relay's importers: taken out exactly, refused where an importer is not the one
that we know, and made without a framework."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from tvm import relay

import relay_ext
from helpers.corrections import (
    assert_given_back,
    assert_left_alone,
    stock_converter,
    unknown_converters,
)
from helpers.process import in_new_process
from relay_ext.importers import HOOKS

ONNX = "tvm.relay.frontend.onnx"


@pytest.fixture(autouse=True)
def _registered_again() -> Iterator[None]:
    yield
    relay_ext.register()


@pytest.fixture
def conv() -> Iterator[type]:
    """ONNX's converter of convolutions."""
    with stock_converter(relay_ext, importlib.import_module(ONNX).Conv, "_impl_v1") as converter:
        yield converter


@pytest.mark.smoke
@pytest.mark.parametrize("name", HOOKS.importers)
def test_this_release_is_known_and_gets_its_own_back(name: str) -> None:
    assert_given_back(relay_ext, HOOKS, name)


@pytest.mark.smoke
def test_the_package_shows_the_importer_that_it_is_about() -> None:
    shown = relay.frontend.from_pytorch
    assert shown.__doc__ and "Torch" in shown.__doc__
    with relay_ext.stock():
        assert relay.frontend.from_pytorch is relay.frontend.pytorch.from_pytorch is not shown


@pytest.mark.smoke
def test_importing_imports_no_framework() -> None:
    said = in_new_process(
        """
        import sys
        import relay_ext
        roots = ("torch", "onnx", "onnxruntime", "tflite", "tensorflow", "keras")
        print([name for name in sys.modules if name.split(".")[0] in roots])
        """
    )
    assert said.split() == ["[]"]


UNKNOWN = unknown_converters("_impl_v1", "cls, inputs, attr, params")


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_importer_is_left_alone_with_one_warning(name: str, conv: type) -> None:
    change, said = UNKNOWN[name]
    change(conv)
    assert_left_alone(relay_ext, HOOKS, ONNX, conv, said)
