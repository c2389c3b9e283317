# SPDX-License-Identifier: Apache-2.0
"""TVM's runtime without TVM: the files of its wheels that run a compiled Relax model.

These are the Python package ``tvm_ffi``, whose extension depends on the version of Python, and
``libtvm_runtime.so`` with its part for CUDA.  The Python package ``tvm`` and its compiler, 290 MB,
are not needed.
"""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

FFI = "apache-tvm-ffi"
LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_cuda.so")
UNUSED = ("3rdparty", "cython", "include", "share", "src", "stub", "testing", "__pycache__")
"""Folders of ``tvm_ffi`` for building extensions and tests; ``libtvm_ffi_testing.so`` is used."""
WHEELS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28))
CUDA, CPU, POOLED = 2, 1, 2
"""Numbers of devices in DLPack, and of an allocator of TVM's."""


def copy_into(folder: Path, python: str) -> None:
    """Write the files for a version of Python, such as 3.12.

    Raises
    ------
    ValueError
        If pip cannot download the wheel for that version.
    """
    is_installed = platform.python_version_tuple()[:2] == tuple(python.split("."))
    for name, data in _installed(FFI) if is_installed else _downloaded(python):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name, data in _installed("apache-tvm"):
        if Path(name).name in LIBRARIES:
            (folder / Path(name).name).write_bytes(data)


def _installed(package: str) -> Iterator[tuple[str, bytes]]:
    for file in importlib.metadata.files(package) or ():
        if _is_used(str(file)):
            yield str(file), Path(str(file.locate())).read_bytes()


def _downloaded(python: str) -> Iterator[tuple[str, bytes]]:
    wanted = f"{FFI}=={importlib.metadata.version(FFI)}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted]
        command += ["--only-binary=:all:", "--python-version", python, "--dest", folder]
        command += [word for name in WHEELS for word in ("--platform", name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise ValueError(f"--python {python}: pip download {wanted}: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in wheel.namelist():
                if _is_used(name):
                    yield name, wheel.read(name)


def _is_used(name: str) -> bool:
    first, *rest = Path(name).parts
    if first == "tvm":
        return Path(name).name in LIBRARIES
    is_ffi = first.startswith(("tvm_ffi", "apache_tvm_ffi")) and not name.endswith("/")
    return is_ffi and not {*UNUSED} & {*rest}


def machine_code(folder: Path, source: str) -> Path:
    """Return the file of the machine code of CUDA code, which several libraries may share."""
    return folder / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.cubin.gz"


def add_machine_code(folder: Path, source: str, arch: str) -> None:
    """Compile CUDA code, if an earlier library has not the same."""
    from . import toolchain

    path = machine_code(folder, source)
    if not path.exists():
        with tempfile.TemporaryDirectory() as workspace:
            binary, _ = toolchain.compile_source(source, arch, Path(workspace))
            path.write_bytes(gzip.compress(binary.read_bytes()))


def load(folder: Path, device: str) -> Any:
    """Load the runtime for a device of PyTorch, ``cpu`` or ``cuda``, and return ``tvm_ffi``.

    Parameters
    ----------
    folder : Path
        The runtime's folder, in the folder of the machine code.
    device : str

    Raises
    ------
    ValueError
        If a file is missing, or for another Python or machine.
    """
    import torch

    # It would compile an extension; tensors are converted once, so its speed does not matter.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    sys.path.insert(0, str(folder))
    try:
        import tvm_ffi

        name = "tvm_callback_cuda_compile"
        tvm_ffi.register_global_func(name, partial(_compiled, folder.parent), override=True)
        # PyTorch has loaded libcudart.so.13, and tvm_ffi has loaded libtvm_ffi.so.
        for name in LIBRARIES if device == "cuda" else LIBRARIES[:1]:
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    except (ImportError, OSError) as error:
        raise ValueError(f"{folder}: torch {torch.__version__}: {error}") from error
    return tvm_ffi


def _compiled(folder: Path, source: str) -> bytes:
    """Return machine code to TVM, which would compile CUDA code when it loads a library."""
    return gzip.decompress(machine_code(folder, str(source)).read_bytes())


class Library:
    """A compiled model, which is bound to its weights and inputs.

    Parameters
    ----------
    tvm_ffi : module
        The result of :func:`load`.
    path : Path
        Compressed library of a module by :func:`relax_ext.pipeline.with_packed_parameters`.
    weights, inputs : list of torch.Tensor
        On the device.
    """

    def __init__(self, tvm_ffi: Any, path: Path, weights: list[Any], inputs: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, path.stem)
            library.write_bytes(gzip.decompress(path.read_bytes()))
            machine = tvm_ffi.load_module(str(library))["vm_load_executable"]()
        kind = CUDA if inputs[0].is_cuda else CPU
        devices = [kind, CPU] if kind != CPU else [CPU]
        machine["vm_initialization"](*(n for one in devices for n in (one, 0, POOLED)))
        placed, given = (list(map(tvm_ffi.from_dlpack, some)) for some in (weights, inputs))
        packed = machine["main_transform_params"](placed)
        # The closure holds the arguments, so that a call passes none of them through Python.
        machine["save_function"]("main", "run", 1, *given, *packed)
        self._machine, self._run = machine, machine["run"]

    def __call__(self) -> Any:
        """Return the result, or the first of several."""
        result = self._run()
        return result if hasattr(result, "__dlpack__") else result[0]
