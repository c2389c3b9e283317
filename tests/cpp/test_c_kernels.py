# SPDX-License-Identifier: Apache-2.0
"""Kernels in C, without TVM: values, threads, sanitizers, wrong arguments."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm_ffi import libinfo

from helpers.c_kernels import HERE, WORDS, CKernel, check_all, compiled, driver, emitted
from topi_ext import backend, compat
from topi_ext.deploy.command import RUNTIME
from topi_ext.spec.conv import Convolution

if not shutil.which("cc"):
    pytest.skip("no C compiler", allow_module_level=True)


@cache
def kernels() -> list[CKernel]:
    return emitted(WORDS, compat.host_target(2))


SANITIZED = {
    "address and undefined": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}


@pytest.mark.parametrize("threads", ["OPENMP", "PTHREADS", "SERIAL"])
def test_values(threads: str, tmp_path: Path, rng: np.random.Generator) -> None:
    check_all(driver(tmp_path, kernels(), threads), kernels(), rng)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers(sanitizer: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Four callers at once, on the runtime's own threads: OpenMP's library is not instrumented."""
    made = driver(tmp_path, kernels(), "PTHREADS", SANITIZED[sanitizer])
    check_all(made, kernels(), rng, callers=4)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_threads_of_the_runtime(sanitizer: str, tmp_path: Path) -> None:
    """Every task runs exactly once, and a task that fails is told, whoever else calls meanwhile."""
    made = compiled(HERE / "c_pool.c", tmp_path, [], "PTHREADS", SANITIZED[sanitizer])
    done = subprocess.run([made], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


FAULTS = """\
1 up: data must not be a null pointer
1 up: result must not be a null pointer
2 up: data=0x... must be a multiple of 4 bytes
3 up: result must not overlap operand0
3 up: result must not overlap data
3 up_pack: packed must not overlap weight
3 grad: result must not overlap data
4 up: there is no scratch memory
no status of a kernel
no error
an argument is a null pointer
an argument is not a multiple of the size of its elements
the result overlaps an operand
there is no scratch memory
the kernel refused its arguments
no status of a kernel
"""


@pytest.mark.parametrize("threads", ["OPENMP", "PTHREADS", "SERIAL"])
def test_faults(threads: str, tmp_path: Path) -> None:
    """Each is a return code and a line; without threads, and in a forked child, results are right.

    The library of OpenMP does not survive a fork.
    """
    flags = (
        "-Wl,--wrap=aligned_alloc",
        f"-DEXPECT_THREADS={int(threads != 'SERIAL')}",
        f"-DCAN_FORK={int(threads != 'OPENMP')}",
        *(("-Wl,--wrap=pthread_create",) if threads == "PTHREADS" else ("-DSHARED_THREADS",)),
    )
    some = [one for one in kernels() if one.name in ("up", "grad")]
    made = compiled(HERE / "c_faults.c", tmp_path, some, threads, flags)
    done = subprocess.run([made], capture_output=True, text=True, check=False)
    assert re.sub("0x[0-9a-f]+", "0x...", done.stdout) == FAULTS
    assert done.returncode == 0 and not done.stderr


def test_nothing_is_shown_to_other_libraries(tmp_path: Path) -> None:
    """A shared library of kernels exports none of its symbols, and has none of TVM's names."""
    made = driver(tmp_path, kernels(), "SERIAL", ("-shared", "-fPIC"))

    def names(*options: str) -> str:
        command = ["nm", *options, str(made)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert names("-D", "--defined-only") == ""
    assert "conv_kernels_launch" in names() and "TVM" not in names()


def test_beside_the_runtime_of_tvm(tmp_path: Path) -> None:
    """One program with kernels in C, and with TVM's runtime, which runs the same kernel."""
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    (grad,) = (one for one in kernels() if one.name == "grad")
    case, target = grad.case, compat.host_target(2)
    func = backend.build(
        Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), target
    ).with_attr("global_symbol", "grad")
    library = tmp_path / "kernel.so"
    tvm.compile(tvm.IRModule({"grad": func}), target).export_library(str(library))
    grad.write(tmp_path)
    ffi, lib = libinfo.find_libtvm_ffi(), Path(tvm.__file__).parent / "lib"
    paths = [f"-L{place}" for place in (Path(ffi).parent, lib)]
    run_paths = [f"-Wl,-rpath,{place}" for place in (Path(ffi).parent, lib)]
    includes = [f"-I{place}" for place in libinfo.include_paths()]
    objects = []
    for source in (tmp_path / "grad.c", RUNTIME / "conv_kernels.c"):
        objects.append(tmp_path / f"{source.stem}_c.o")
        command = ["cc", "-std=c11", "-O1", "-fvisibility=hidden", "-DCONV_KERNELS_PTHREADS"]
        places = [f"-I{RUNTIME}", "-c", source, "-o", objects[-1]]
        subprocess.run(list(map(str, [*command, *places])), check=True)
    made = tmp_path / "beside"
    command = [
        "c++", "-std=c++17", "-O0", "-rdynamic", HERE / "beside_tvm.cc", *objects,
        tmp_path / "grad.o", f"-I{tmp_path}", f"-I{RUNTIME}", *includes, *paths, "-ltvm_ffi",
        "-Wl,--no-as-needed", "-ltvm_runtime", *run_paths, "-pthread", "-lm", "-o", made,
    ]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True)
    done = subprocess.run([made, library], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr
