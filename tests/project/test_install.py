# SPDX-License-Identifier: Apache-2.0
"""Dependencies of an installed package: numpy, and TVM for the adapter; everything else is imported
on first use."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import tomllib

import cuda_emulator
from helpers.process import in_new_process
from helpers.wheel import built

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OWN = ("python", "scripts", "tests", "examples")
OPTIONAL = ("torch", "onnx", "onnxruntime", "rich", "tqdm", "matplotlib", "sklearn", "scipy")


def test_numpy_is_the_only_hard_dependency() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["dependencies"] == ["numpy>=1.22"]


def test_one_version_is_stated() -> None:
    """An unreleased section may stand above the last release in the changelog."""
    root = PYPROJECT.parent
    version = tomllib.loads(PYPROJECT.read_text())["project"]["version"]
    cited = dict(
        re.findall(r"^(version|date-released): (.*)$", (root / "CITATION.cff").read_text(), re.M)
    )
    released = re.findall(r"^## \[(\d[^]]*)\] - (\S+)$", (root / "CHANGELOG.md").read_text(), re.M)
    assert (cited["version"], cited["date-released"]) == released[0]
    assert version == cited["version"]


@pytest.mark.parametrize("package", ["topi_ext", "relax_ext"])
def test_import_needs_no_extra_and_changes_no_environment(package: str) -> None:
    in_new_process(
        "import os, sys\n"
        f"for name in {OPTIONAL}: sys.modules[name] = None\n"
        f"before = dict(os.environ)\nimport {package}\n"
        f"assert {package}.__file__\nassert dict(os.environ) == before\n"
    )


def test_the_emulator_is_in_a_checkout_but_not_in_the_wheel(tmp_path: Path) -> None:
    """An editable install finds it: all of python/ is on the path then."""
    names = ZipFile(built(tmp_path)).namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"topi_ext", "conv_cli", "relax_ext", "relay_ext"}
    assert "topi_ext/deploy/runtime/conv_kernels.h" in names
    assert Path(cuda_emulator.__file__).parent == PYPROJECT.parent / "python" / "cuda_emulator"


def test_the_console_script(tmp_path: Path) -> None:
    """It begins where the wheel says, and imports no TVM for its help."""
    code = """
    import sys
    from importlib.metadata import entry_points

    sys.modules["tvm"] = None
    sys.argv[1:] = ["--help"]
    (script,) = entry_points(group="console_scripts", name="tvm-conv")
    script.load()()
    """
    path = {**os.environ, "PYTHONPATH": str(built(tmp_path))}
    assert in_new_process(code, env=path).startswith("usage: tvm-conv [-h]")


def test_import_leaves_the_threads_alone() -> None:
    count = "print(tvm.get_global_func('runtime.NumThreads')())"
    assert in_new_process(f"import tvm; {count}") == in_new_process(
        f"import tvm, relax_ext; {count}"
    )


def test_one_oldest_python_is_stated() -> None:
    """No TVM exists for an older one; the Python of a classifier is not older."""
    stated = tomllib.loads(PYPROJECT.read_text())
    classifiers = stated["project"]["classifiers"]
    named = [one.rpartition(" ")[2] for one in classifiers if "Python :: 3." in one]
    assert stated["project"]["requires-python"] == ">=3.10"
    assert named == ["3.10", "3.11", "3.12", "3.13"]
    assert stated["tool"]["ruff"]["target-version"] == "py310"
    assert stated["tool"]["mypy"]["python_version"] == "3.10"


def _needed(path: Path) -> set[str]:
    """Return what a module imports when it is imported, unless it can be skipped without."""
    tree = ast.parse(path.read_text())
    outside = [one for one in tree.body if isinstance(one, (ast.Import, ast.ImportFrom))]
    if any("importorskip" in ast.unparse(one) for one in tree.body if one not in outside):
        return set()
    names = [alias.name for one in outside if isinstance(one, ast.Import) for alias in one.names]
    names += [one.module or "" for one in outside if isinstance(one, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_the_extra_for_tests_has_what_tests_import() -> None:
    """Beside TVM and what TVM needs; what imported scripts import counts too."""
    root = PYPROJECT.parent
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    taken = next(one for one in extras["test"] if one.startswith("tvm-conv-ext["))
    taken = taken.partition("[")[2].rstrip("]").split(",")
    listed = " ".join(sum((extras[name] for name in taken), extras["test"]))
    paths = [path for path in (root / "tests").rglob("*.py") if "relay" not in str(path)]
    paths += (root / "scripts" / "support").glob("*.py")
    own = {path.stem for folder in OWN for path in (root / folder).rglob("*")}
    optional = {"onnx", "onnxruntime", "openvino"}  # imported by baselines that were asked for
    needed = set().union(*map(_needed, paths)) - own - set(sys.stdlib_module_names)
    with_torch = {"functorch"}
    for name in needed - {"tvm", "tvm_ffi", "numpy"} - optional - with_torch:
        assert name in listed, name
