# SPDX-License-Identifier: Apache-2.0
"""The CMake projects: both examples, what the functions refuse, and the package when installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

from helpers.cmake import CMAKE, CTEST, build, configure, run, run_project
from helpers.documents import ROOT
from helpers.wheel import built

if not CMAKE or not CTEST:
    pytest.skip("no cmake: pip install cmake", allow_module_level=True)
if not shutil.which("c++"):
    pytest.skip("no C++ compiler", allow_module_level=True)


def test_the_examples(tmp_path: Path) -> None:
    """DCGAN from C++ equals PyTorch, also where there is no Python; kernels in C equal loops."""
    tested = run_project(ROOT, tmp_path)
    assert re.search(r"100% tests passed.* out of 3$", tested, re.MULTILINE)
    assert tested.count("of the largest value") == 3
    assert "the root cannot be changed here" in tested or "its root: the program" in tested


PROJECT = """\
cmake_minimum_required(VERSION 3.21)
project(refused LANGUAGES NONE)
find_package(conv_kernels CONFIG REQUIRED)
{text}
"""

REFUSED = {
    "add_conv_kernels(a FROB 1)": "add_conv_kernels: FROB;1: no such option",
    "add_conv_kernels(a)": "add_conv_kernels: the project must enable the language C",
    "set(CMAKE_CROSSCOMPILING ON)\nset(CMAKE_SYSTEM_PROCESSOR riscv64)\nadd_conv_kernels(a)":
        "add_conv_kernels: TARGET must name the processor of riscv64",
    "add_library(a INTERFACE)\nadd_conv_kernel(a b conv2d 1 1 FROB)": "add_conv_kernel: b: FROB",
    "add_library(a INTERFACE)\nadd_conv_kernel(a b conv2d 1 1 DTYPE)": "add_conv_kernel: b: DTYPE",
    "add_library(a INTERFACE)\nadd_conv_kernel(a a conv2d 1 1)":
        "add_conv_kernel: a is the name of the library and of its header",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(text=text))
    module = ROOT / "python" / "topi_ext" / "deploy" / "cmake"
    done = configure(tmp_path, tmp_path / "build", f"-Dconv_kernels_ROOT={module}")
    assert done.returncode != 0
    assert REFUSED[text] in " ".join(done.stderr.split()), done.stderr


def test_the_installed_package(tmp_path: Path) -> None:
    """A wheel holds what CMake needs; kernels of it are a part of a project in C++."""
    wheel = built(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")  # pure Python, for every processor
    site = tmp_path / "site"
    ZipFile(wheel).extractall(site)
    text = site / "topi_ext" / "deploy" / "c_source.py"
    text.write_text(text.read_text().replace("changes are lost", "of this wheel"))

    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "kernels", project)
    (project / "CMakeLists.txt").write_text(SMALL)
    (project / "main.cc").write_text(SMALL_MAIN)
    env = {"PYTHONPATH": str(site)}
    done = configure(project, tmp_path / "build", **env)
    assert done.returncode == 0, done.stderr
    assert str(site) in (tmp_path / "build" / "CMakeCache.txt").read_text()
    # Whoever builds need not say where the package is: the module knows.
    build(tmp_path / "build", PYTHONPATH="")
    assert "of this wheel" in (tmp_path / "build" / "layers" / "sums.h").read_text()
    assert run(tmp_path / "build" / "small").stdout == "12 12\n"


SMALL = """\
cmake_minimum_required(VERSION 3.21)
project(small LANGUAGES C CXX)
find_package(Python COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND ${Python_EXECUTABLE} -m topi_ext.emit --cmake-dir
  OUTPUT_VARIABLE conv_kernels_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(conv_kernels CONFIG REQUIRED)
add_conv_kernels(layers THREADS SERIAL)
add_conv_kernel(layers sums conv1d 1x2x4 1x2x3 EPILOGUE multiply:2 bias)
add_executable(small main.cc)
target_link_libraries(small PRIVATE layers)
"""

SMALL_MAIN = """\
#include <cstdio>

#include "layers.h"

int main() {
  const float data[SUMS_DATA_ELEMENTS] = {1, 1, 1, 1, 1, 1, 1, 1};
  const float weight[SUMS_WEIGHT_ELEMENTS] = {1, 1, 1, 1, 1, 1};
  const float bias[SUMS_OPERAND0_ELEMENTS] = {0};
  float result[SUMS_RESULT_ELEMENTS];
  if (sums(data, weight, bias, result) != CONV_OK) return 1;
  std::printf("%g %g\\n", result[0], result[1]);
}
"""
