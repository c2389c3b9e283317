# SPDX-License-Identifier: Apache-2.0
"""Corrections of importers: put in when an importer is imported, taken out exactly, and refused
where an importer is not the one that we know."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import relax_ext
from helpers.corrections import assert_left_alone
from relax_ext.importers import HOOKS
from topi_ext.adapters.import_hooks import find

ONNX = "tvm.relax.frontend.onnx.onnx_frontend"
TFLITE = "tvm.relax.frontend.tflite.tflite_frontend"


@pytest.fixture(autouse=True)
def _registered_again() -> Iterator[None]:
    yield
    relax_ext.register()


@pytest.fixture
def conv() -> Iterator[type]:
    """ONNX's converter of convolutions, TVM's own, given back at the end."""
    converter = module(ONNX).Conv
    relax_ext.unregister()
    stock = vars(converter)["_impl_v11"]
    yield converter
    relax_ext.unregister()
    converter._impl_v11 = stock
    if "_impl_v22" in vars(converter):
        del converter._impl_v22


def module(name: str) -> Any:
    framework = name.split(".")[3]
    if framework == "torch":
        pytest.importorskip("torch")
    return importlib.import_module(name)


def functions(name: str) -> dict[str, Any]:
    """Return the current functions that the corrections replace."""
    owners = {path: find(module(name), path) for path in HOOKS.importers[name].needs}
    return {path: vars(owner)[attribute] for path, (owner, attribute) in owners.items()}


def in_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.smoke
@pytest.mark.parametrize("name", HOOKS.importers)
def test_this_release_is_known_and_gets_its_own_back(name: str) -> None:
    module(name)
    ours = functions(name)
    with relax_ext.stock():
        stock = functions(name)
        assert HOOKS.unknown(name, module(name)) == ""
        with relax_ext.stock():
            assert functions(name) == stock
    replaced = set(HOOKS.importers[name].corrections(module(name)))
    assert {path for path in ours if ours[path] is not stock[path]} == replaced
    relax_ext.unregister()
    assert functions(name) == stock
    relax_ext.register()
    relax_ext.register()
    again = functions(name)
    assert {path for path in again if again[path] is not stock[path]} == replaced


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda conv: setattr(conv, "_impl_v11", classmethod(lambda cls, bb, node: None)),
            "has no Conv._impl_v11(cls, bb, inputs, attr, params)",
        ),
        (lambda conv: delattr(conv, "_impl_v11"), "has no Conv._impl_v11(cls, bb,"),
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
