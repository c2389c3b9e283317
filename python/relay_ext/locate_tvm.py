# SPDX-License-Identifier: Apache-2.0
"""Finding a TVM that has Relay: the user's own, else the one inside the ``bitblas`` wheel.

It is linked against CUDA's libraries.  Where this machine has none, small stand-ins are
compiled once, whose functions all say "no device".  This file uses the standard library only and
must stay loadable alone: an environment's ``.pth`` file runs :func:`install` at every start.  Run
as a program, it prints that file.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_NO_DEVICE = 100
_DRIVER = (
    "cuDeviceGetName cuFuncSetAttribute cuLaunchKernel cuMemsetD32_v2 cuModuleGetFunction "
    "cuModuleGetGlobal_v2 cuModuleLoadData cuModuleUnload"
)
_RUNTIME = (
    "DeviceGetAttribute EventCreate EventDestroy EventElapsedTime EventRecord EventSynchronize "
    "Free FreeHost GetDevice GetDeviceCount GetDeviceProperties_v2 GraphDestroy GraphExecDestroy "
    "GraphInstantiate GraphLaunch Malloc MallocHost MemGetInfo MemcpyAsync MemcpyPeerAsync "
    "MemsetAsync SetDevice StreamBeginCapture StreamCreate StreamCreateWithFlags StreamDestroy "
    "StreamEndCapture StreamSynchronize StreamWaitEvent"
)
_COMPILER = (
    "CompileProgram CreateProgram DestroyProgram GetPTX GetPTXSize GetProgramLog GetProgramLogSize"
)


def _functions(names: str, prefix: str = "") -> str:
    """C of functions that fail whatever they are given."""
    return "".join(f"int {prefix}{name}(void){{return {_NO_DEVICE};}}\n" for name in names.split())


_SOURCES = {
    "libcuda.so.1": _functions(_DRIVER)
    + 'int cuGetErrorName(int e, const char** name) { *name = "no CUDA here"; return 0; }\n',
    "libcudart.so.12": _functions(_RUNTIME, "cuda")
    + 'const char* cudaGetErrorString(int e) { return "no CUDA here"; }\n',
    "libnvrtc.so.12": _functions(_COMPILER, "nvrtc")
    + 'const char* nvrtcGetErrorString(int e) { return "no CUDA here"; }\n',
}
"""The CUDA libraries that the bundled TVM names, and stand-ins for them."""


def find_tvm() -> None:
    """Make ``import tvm`` give a TVM that has Relay.

    Raises
    ------
    ImportError
        One line, where there is none, or another TVM is already loaded.
    """
    loaded = sys.modules.get("tvm")
    if loaded is not None:
        if not _has_relay(getattr(loaded, "__spec__", None)):
            version = getattr(loaded, "__version__", "of unknown version")
            raise ImportError(
                f"relay_ext: tvm {version} without Relay is already loaded; "
                "Relax and Relay need a process each"
            )
        return
    if _has_relay(PathFinder.find_spec("tvm")):
        return
    if _bundled() is None:
        raise ImportError(
            "relay_ext: no TVM with Relay found; bring your own build, or "
            "pip install --no-deps bitblas==0.1.0.post1"
        )
    install()


def install() -> None:
    """Make ``import tvm`` find the bundled TVM, unless one with Relay is on the path by then."""
    # By name: a .pth file loads this file under another name.
    if not any(type(finder).__name__ == _BundledTvmFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _BundledTvmFinder())


class _BundledTvmFinder(MetaPathFinder):
    """Finds the bundled TVM, and prepares it only when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of ``tvm``; None for all else."""
        if name != "tvm" or _has_relay(PathFinder.find_spec("tvm")):
            return None
        root = _bundled()
        if root is None:
            return None
        for soname in _SOURCES:
            _load(soname)
        # Loaded first, it is what TVM gets, whatever other build its search would meet.
        ctypes.CDLL(str(root / "build" / "libtvm.so"), ctypes.RTLD_GLOBAL)
        return PathFinder.find_spec("tvm", [str(root / "python")])


def _has_relay(spec: ModuleSpec | None) -> bool:
    places = spec.submodule_search_locations if spec else None
    return any((Path(place) / "relay").is_dir() for place in places or ())


def _bundled() -> Path | None:
    """Root of the TVM inside bitblas, which is found without being imported."""
    spec = PathFinder.find_spec("bitblas")
    for place in (spec.submodule_search_locations if spec else None) or ():
        root = Path(place) / "3rdparty" / "tvm"
        if (root / "build" / "libtvm.so").exists():
            return root
    return None


def _load(soname: str) -> None:
    """Load a CUDA library for all: the system's, a wheel's, or the stand-in."""
    nvidia = PathFinder.find_spec("nvidia")
    wheels = [
        found
        for place in (nvidia.submodule_search_locations if nvidia else None) or ()
        for found in Path(place).glob(f"*/lib/{soname}")
    ]
    for candidate in (soname, *map(str, wheels)):
        try:
            ctypes.CDLL(candidate, ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue
    ctypes.CDLL(str(_stand_in(soname)), ctypes.RTLD_GLOBAL)


def _stand_in(soname: str) -> Path:
    """Path of the stand-in of a CUDA library, compiled on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm-conv-ext"
    library = cache / soname
    if library.exists():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        source, versions, made = (Path(scratch) / name for name in ("s.c", "s.map", "s.so"))
        source.write_text(_SOURCES[soname])
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}"]
        if soname != "libcuda.so.1":
            # Its functions are looked up by a version that is the library's own name.
            versions.write_text(f"{soname} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={versions}")
        try:
            subprocess.run([*command, "-o", made, source], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ImportError(
                f"relay_ext: {soname} is not installed and no C compiler makes its stand-in: "
                f"{command[0]}: {error}"
            ) from None
        os.replace(made, library)
    return library


def _pth() -> str:
    """Return the line of a ``.pth`` file that runs :func:`install` whenever Python starts there."""
    return (
        "import importlib.util as u; "
        f"s = u.spec_from_file_location('locate_tvm', {str(Path(__file__).resolve())!r}); "
        "m = u.module_from_spec(s); s.loader.exec_module(m); m.install()"
    )


if __name__ == "__main__":
    print(_pth())
