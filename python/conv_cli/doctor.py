# SPDX-License-Identifier: Apache-2.0
"""``python -m PACKAGE doctor``: settings that make code incorrect or slow on this machine."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from topi_ext import compat
from topi_ext.cpu.isa import amx
from topi_ext.processors import started, usable
from topi_ext.target import host_target

from .adapter import Adapter

WIDE = ("amx-bf16", "avx512bf16", "avx512f", "avx2", "fma", "f16c", "neon", "sve")
PACKAGES = (
    *("torch", "onnx", "onnxruntime", "tflite", "ai-edge-litert", "tensorflow", "tensorflow-cpu"),
    *("keras", "numpy"),
)


def findings(adapter: Adapter) -> list[tuple[str, str, str]]:
    """Return name, value and, if necessary, advice for each property of the installation."""
    target = host_target(usable())
    features, _ = compat.llvm_features(target) or (frozenset[str](), 0)
    threads, cores = started(), usable()
    other = f"set TVM_NUM_THREADS={cores} before the first run" if threads != cores else ""
    bound = os.environ.get("TVM_BIND_THREADS", "1") != "0"
    shared = "set TVM_BIND_THREADS=0 where other threads use the processors too" if bound else ""
    found = [
        ("python", f"{platform.python_version()}, {sys.executable}", ""),
        ("tvm", compat.release(), compat.ffi_fault() or ""),
        ("tested", compat.TESTED, compat.untested() or ""),
        (
            "packages",
            ", ".join(filter(None, map(_installed, (*adapter.tvm_packages, *PACKAGES)))),
            "",
        ),
        ("processor", str(target.attrs.get("mcpu", "")), ""),
        ("vectors", ", ".join(name for name in WIDE if name in features) or "baseline", ""),
        ("threads", f"TVM {threads} of {cores} cores", other),
        ("binding", "TVM pins its threads" if bound else "TVM leaves its threads free", shared),
    ]
    if "amx-bf16" in features:
        found.append(("matrix", *_matrix_unit()))
    registered = adapter.registered()
    found.append(("rules", *_rules(adapter.package, all(registered.values()))))
    for name, is_ours in registered.items():
        found.append(("operator", f"{name}: {'ours' if is_ours else 'stock TVM'}", ""))
    return found


def _rules(package: str, registered: bool) -> tuple[str, str]:
    if registered:
        return (
            f"{package} is registered: modules that are built now have to be compiled with it",
            "",
        )
    # Otherwise TVM fails on a layout that it cannot lower, without naming the reason.
    advice = f"{package}.register() before you compile modules that were built with its rules"
    return f"{package} is not registered, or not for all operators", advice


def _matrix_unit() -> tuple[str, str]:
    if amx.is_granted_now():
        return "Linux grants AMX to this process", ""
    return "Linux denies AMX to this process", "bfloat16 will be computed in float32"


def show(adapter: Adapter) -> int:
    """Print the findings; 0."""
    for name, value, advice in findings(adapter):
        print(f"{name:10} {value}" + (f"\n{'':10} -> {advice}" if advice else ""))
    return 0


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
