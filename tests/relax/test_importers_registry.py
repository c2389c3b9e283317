# SPDX-License-Identifier: Apache-2.0
"""Corrections of importers: put in when an importer is imported, taken out exactly, and refused
where an importer is not the one that we know."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

import relax_ext
from helpers.corrections import (
    assert_given_back,
    assert_left_alone,
    stock_converter,
    unknown_converters,
)
from helpers.process import in_new_process
from relax_ext.importers import HOOKS

ONNX = "tvm.relax.frontend.onnx.onnx_frontend"
TFLITE = "tvm.relax.frontend.tflite.tflite_frontend"


@pytest.fixture(autouse=True)
def _registered_again() -> Iterator[None]:
    yield
    relax_ext.register()


@pytest.fixture
def conv() -> Iterator[type]:
    """ONNX's converter of convolutions."""
    with stock_converter(relax_ext, importlib.import_module(ONNX).Conv, "_impl_v11") as converter:
        yield converter


@pytest.mark.smoke
@pytest.mark.parametrize("name", HOOKS.importers)
def test_this_release_is_known_and_gets_its_own_back(name: str) -> None:
    if name.split(".")[3] == "torch":
        pytest.importorskip("torch")
    assert_given_back(relax_ext, HOOKS, name)


@pytest.mark.smoke
def test_importing_imports_no_framework_and_no_importer() -> None:
    said = in_new_process(
        """
        import sys, tvm
        from tvm import relax
        before = set(sys.modules)
        import relax_ext
        roots = ("torch", "onnx", "onnxruntime", "tflite")
        new = set(sys.modules) - before
        print([m for m in new if m.split(".")[0] in roots or m.startswith("tvm.relax.frontend")])
        print(len([f for f in sys.meta_path if type(f).__name__ == "_Finder"]))
        relax_ext.unregister()
        print(len([f for f in sys.meta_path if type(f).__name__ == "_Finder"]))
        """
    )
    assert said.split() == ["[]", "1", "0"]


@pytest.mark.smoke
def test_an_importer_imported_later_is_corrected_then() -> None:
    """After the package, and in stock(), where it is corrected when the block ends; its loader is
    its own, and a second import of the package takes the first one's out."""
    said = in_new_process(
        f"""
        import sys, relax_ext
        def ours():
            converter = sys.modules[{TFLITE!r}].OperatorConverter
            return converter.convert_transpose_conv.__module__.startswith("relax_ext")
        with relax_ext.stock():
            import {TFLITE} as module
            print(ours())
        print(ours())
        del sys.modules[{TFLITE!r}]
        import importlib
        module = importlib.import_module({TFLITE!r})
        print(ours(), type(module.__spec__.loader).__name__, type(module.__loader__).__name__)
        for name in [n for n in sys.modules if n.split(".")[0] in ("relax_ext", "topi_ext")]:
            del sys.modules[name]
        import relax_ext
        print(ours())
        relax_ext.unregister()
        print(ours())
        """
    )
    loader = "SourceFileLoader"
    assert said.split() == ["False", "True", "True", loader, loader, "True", "False"]


def test_an_importer_that_is_loaded_again_is_corrected_again() -> None:
    """Its classes are new then, and its functions have other values in the same module."""
    said = in_new_process(
        f"""
        import importlib, warnings
        import {ONNX} as module
        stock = module._get_convert_map
        import relax_ext
        module = importlib.reload(module)
        print("ConvInteger" in module._get_convert_map())
        warnings.simplefilter("error")
        relax_ext.unregister()
        print("ConvInteger" in module._get_convert_map())
        print(module._get_convert_map.__module__)
        """
    )
    assert said.split() == ["True", "False", ONNX]


UNKNOWN = unknown_converters("_impl_v11", "cls, bb, inputs, attr, params")


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_importer_is_left_alone_with_one_warning(name: str, conv: type) -> None:
    change, said = UNKNOWN[name]
    change(conv)
    assert_left_alone(relax_ext, HOOKS, ONNX, conv, said)


def test_what_another_package_set_after_ours_stays(conv: type) -> None:
    relax_ext.register()
    theirs = classmethod(lambda cls, bb, inputs, attr, params: None)
    conv._impl_v11 = theirs
    with relax_ext.stock():
        assert vars(conv)["_impl_v11"] is theirs
    assert vars(conv)["_impl_v11"] is theirs
    with pytest.warns(UserWarning, match=r"leaves what was set after ours: Conv\._impl_v11$"):
        relax_ext.unregister()
    assert vars(conv)["_impl_v11"] is theirs
