# SPDX-License-Identifier: Apache-2.0
"""Targets of TVM, and LLVM's information about processors."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from .builder import reads_llvm
from .versions import LETS_ARE_FRAMES, tvm


def host_target(num_cores: int) -> Any:
    """Return the llvm target that uses all that this machine's processor can do."""
    llvm = tvm.target.codegen
    options: dict[str, Any] = {
        "kind": "llvm",
        "mcpu": llvm.llvm_get_system_cpu(),
        "num-cores": num_cores,
        # The third level takes a tenth to a third longer, and models run as fast within 1 %.
        "opt-level": 2,
    }
    # A virtual machine may hide vector units that the processor's name promises, or have more than
    # it promises: there, and where an LLVM is older than the processor, the name is another's. Of
    # Arm's, SVE is left out: plans count vectors of NEON.
    vector = ("avx", "amx", "fma", "f16c", "sse", "bmi", *_ARM)
    found = dict(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())
    has = {name: bool(there) for name, there in found.items() if name.startswith(vector)}
    promised = set(map(str, llvm.llvm_get_cpu_features(tvm.target.Target(options))))
    # AVX10 is a name for vectors that are named one by one too.
    more = {name for name in has if has[name] and not name.startswith("avx10")} - promised
    if options["mcpu"] != "generic":
        # No kernel computes in float16; and of it plans would conclude that second caches are of
        # 2 MB, by which float32 took up to 1.5 times as long where the name says less.
        more -= {"avx512fp16"}
    if not _linux_grants_amx():
        more = {name for name in more if not name.startswith("amx")}
    changes = sorted("+" + name for name in more)
    changes += sorted("-" + name for name in promised if not has.get(name, True))
    named = {**options, "mattr": changes} if changes else options
    if gathers_elements(tvm.target.Target(named)):
        named = {**options, "mattr": [*changes, *_NO_GATHERS]}
    return tvm.target.Target(named)


_ARM = ("neon", "fp-armv8", "fullfp16", "dotprod", "i8mm", "bf16")
_ARCH_PRCTL, _SUPPORTED, _TILE_DATA = 158, 0x1021, 18


def _linux_grants_amx() -> bool:
    """Return whether this Linux grants tile registers on request, as kernels request them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False  # the numbers are those of x86-64
    supported = ctypes.c_uint64()
    answer = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _SUPPORTED, ctypes.byref(supported))
    return answer == 0 and bool(supported.value >> _TILE_DATA & 1)


_NO_GATHERS = ("+prefer-no-gather", "+prefer-no-scatter")


def gathers_elements(target: Any) -> bool:
    """Return whether LLVM copies separate elements by AVX-512's gathers and scatters, and could be
    told not to. They take several cycles for each element, and plain loads and stores about one.
    """
    llvm = tvm.target.codegen
    if llvm.llvm_version_major() < 18:
        return False
    features = set(map(str, llvm.llvm_get_cpu_features(target)))
    return "avx512f" in features and not {name[1:] for name in _NO_GATHERS} <= features


def compiled(functions: dict[str, Any], target: Any, pipeline: str = "default") -> Any:
    """Return the module of PrimFuncs by name, whose object file a program in C can call.

    TVM lowers them by `pipeline`.

    Raises
    ------
    ValueError
        For a TVM whose functions are called otherwise.
    """
    if LETS_ARE_FRAMES:
        raise ValueError(f"kernels in C need TVM 0.25 or later; found {tvm.__version__}")
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.compile(tvm.IRModule(named), target, tir_pipeline=pipeline).mod


def processor(target: Any) -> str:
    """Return the processor that an llvm target names; empty where it names none."""
    return str(target.attrs.get("mcpu", "") or "")


def is_cpu(target: Any) -> bool:
    """Return whether a target's loops can be parallel."""
    return "cpu" in target.keys


def is_gpu(target: Any) -> bool:
    """Return whether a target wants its loops bound to threads."""
    return "gpu" in target.keys


def is_for_this_machine(target: Any) -> bool:
    """Return whether an llvm target compiles for the architecture that this process runs on."""
    triple = str(target.attrs.get("mtriple", ""))
    return not triple or triple.split("-")[0] == system_triple().split("-")[0]


def system_triple() -> str:
    """Return LLVM's name of this machine."""
    return str(tvm.target.codegen.llvm_get_system_triple())


def processors(triple: str = "") -> set[str]:
    """Return the processors that LLVM knows of this machine's architecture, or of a triple's."""
    named = {"mtriple": triple} if triple else {}
    plain = tvm.target.Target({"kind": "llvm", **named})
    return set(map(str, tvm.target.codegen.llvm_get_cpu_archlist(plain)))


def lacks_64_bits(target: Any) -> bool:
    """Return whether an llvm target is for x86-64, and its processor is older: LLVM ends the
    process.
    """
    triple = str(target.attrs.get("mtriple", "") or system_triple())
    if not triple.startswith("x86_64") or processor(target) not in processors(triple) - {"generic"}:
        return False
    return "64bit" not in set(map(str, tvm.target.codegen.llvm_get_cpu_features(target)))


def missing_vectors(target: Any, has: Callable[[str], bool] | None = None) -> list[str]:
    """Return the vector instructions that an llvm target uses and a processor has not: this
    machine's, or that of which ``has(feature)`` tells.
    """
    if has is None:
        here = dict(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())

        def has(name: str) -> bool:
            return bool(here.get(name, True))

    wanted = map(str, tvm.target.codegen.llvm_get_cpu_features(target))
    vector = ("avx", "amx", "fma", "f16c")
    return sorted(name for name in wanted if name.startswith(vector) and not has(name))


def llvm_features(target: Any) -> tuple[frozenset[str], int] | None:
    """CPU features and threads of an llvm target, or None for another target or no target.

    Without those of AMX where kernels could not ask for it: that takes Linux, and TVM 0.25; and
    without products of bfloat16 where LLVM's take other operands than ours give.  With
    "non-temporal-stores", our own name, where kernels can write vectors by non-temporal stores.
    """
    if target is None or str(getattr(target.kind, "name", target.kind)) != "llvm":
        return None
    llvm = tvm.target.codegen
    triple = str(target.attrs.get("mtriple", "") or llvm.llvm_get_system_triple())
    if not knows_triple(triple):
        return None
    cores = int(target.attrs.get("num-cores", 0))  # TVM takes 0 and less, and plans nothing by it
    threads = cores if cores > 0 else tvm.runtime.num_threads()
    name = str(target)
    if name not in _FEATURES:
        _FEATURES[name] = frozenset(map(str, llvm.llvm_get_cpu_features(target)))
    found = _FEATURES[name]
    if LETS_ARE_FRAMES or "linux" not in triple:
        found = frozenset(name for name in found if not name.startswith("amx"))
    if not reads_llvm():
        found -= {"avx512bf16"}
    elif "avx" in found:
        found |= {"non-temporal-stores"}
    return found, threads


_FEATURES: dict[str, frozenset[str]] = {}
"""By target: kernels ask a hundred times in the build of a model."""


@cache
def knows_triple(triple: str) -> bool:
    """Return whether LLVM compiles for a triple. Asked for the features of another it ends the
    process; left alone, TVM says so when it compiles.
    """
    ask = getattr(tvm.target.codegen, "llvm_get_vector_width", None)
    if not triple or ask is None:  # TVM 0.17 has no check, and its own build ends the process too
        return True
    try:
        ask(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    except RuntimeError:
        return False
    return True
