# SPDX-License-Identifier: Apache-2.0
"""Earlier names of modules."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from topi_ext.renamed import RENAMED, RenamedModules, install


@pytest.mark.parametrize("name", sorted(RENAMED))
def test_an_earlier_name_is_the_module_of_today_with_a_warning(name: str) -> None:
    if name.startswith("relax_ext"):
        pytest.importorskip("relax_ext")
    sys.modules.pop(name, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        earlier = importlib.import_module(name)
    today = importlib.import_module(RENAMED[name])
    assert earlier is today and today.__spec__.name == RENAMED[name]
    lines = [str(one.message) for one in caught if one.category is DeprecationWarning]
    assert f"{name} is {RENAMED[name]} now" in lines


def test_the_user_who_imports_it_is_warned() -> None:
    code = "from topi_ext.geometry import Geometry; print(Geometry.__module__)"
    run = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "topi_ext.spec.geometry"
    assert "DeprecationWarning: topi_ext.geometry is topi_ext.spec.geometry now" in done.stderr
    assert "<string>:1" in done.stderr


def test_it_is_installed_once_and_knows_no_other_names() -> None:
    install()
    assert sum(isinstance(finder, RenamedModules) for finder in sys.meta_path) == 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("topi_ext.geometries")
