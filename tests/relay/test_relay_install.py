# SPDX-License-Identifier: Apache-2.0
"""Finding a TVM with Relay: in either import order, changing nothing else, or refusing."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_RELAY = "import sys, types; t = types.ModuleType('tvm'); t.__version__ = '0.27.0'\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("order", ["tvm, relay_ext", "relay_ext, tvm"])
def test_either_import_order(order: str) -> None:
    done = run(f"import {order}; from tvm import relay; print(tvm.__version__)")
    assert done.returncode == 0 and done.stdout.startswith("0.17"), done.stderr


def test_import_sets_threads_and_nothing_else() -> None:
    done = run(
        "import os, tvm\n"
        "for name in ('TVM_NUM_THREADS', 'OMP_NUM_THREADS', 'TVM_BIND_THREADS'):\n"
        "    os.environ.pop(name, None)\n"
        "before = dict(os.environ)\n"
        "import relay_ext\nfrom topi_ext.processors import usable\n"
        "threads = {'TVM_NUM_THREADS': str(usable()), 'TVM_BIND_THREADS': '0'}\n"
        "assert dict(os.environ) == {**before, **threads}\n"
        "assert tvm.get_global_func('runtime.NumThreads')() == usable()\n"
    )
    assert done.returncode == 0, done.stderr


def test_another_tvm_is_loaded() -> None:
    done = run(WITHOUT_RELAY + "sys.modules['tvm'] = t\nimport relay_ext")
    assert done.returncode
    assert "relay_ext: tvm 0.27.0 without Relay is already loaded" in done.stderr.splitlines()[-1]


def test_no_tvm_with_relay() -> None:
    done = run(
        "import sys\nfrom importlib.machinery import PathFinder\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'Bundled' not in type(f).__name__]\n"
        "found = PathFinder.find_spec\n"
        "hidden = ('tvm', 'bitblas')\n"
        "def find(name, *a, **k): return None if name in hidden else found(name, *a, **k)\n"
        "PathFinder.find_spec = find\nimport relay_ext"
    )
    assert done.returncode
    assert done.stderr.splitlines()[-1].startswith("ImportError: relay_ext: no TVM with Relay")


def test_topi_ext_registers_nothing() -> None:
    done = run(
        "import tvm, topi_ext.backend\nop = tvm.ir.Op.get('nn.conv3d_transpose')\n"
        "assert op.get_attr('FPrimalGradient') is None\nimport relay_ext\n"
        "assert op.get_attr('FPrimalGradient') is not None\n"
    )
    assert done.returncode == 0, done.stderr


def test_kernels_in_c_need_another_tvm() -> None:
    done = run(
        "import sys\nfrom topi_ext.deploy.command import main\n"
        "sys.exit(main(['a', 'conv2d', '1x3x8x8', '4x3x3x3']))"
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("topi_ext.emit: kernels in C need TVM 0.25")
