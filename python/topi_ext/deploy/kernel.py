# SPDX-License-Identifier: Apache-2.0
"""Compile a request to an object file with TVM's code generator."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import tvm

from .. import backend, compat
from ..backend import Unsupported, of_target
from ..emit.lowering import pipeline_of_kernels
from ..spec.conv import Convolution
from ..spec.post_ops import Fused
from ..target import host_target
from . import elf
from .request import Argument, Request

CONVERSIONS = {"__truncsfhf2": "conv_narrow", "__extendhfsf2": "conv_widen"}
"""Conversions of float16, which TVM puts into every module."""

RENAMED = {
    "__TVMBackendParallelLaunch": "conv_kernels_launch",
    "__TVMBackendAllocWorkspace": "conv_kernels_allocate",
    "__TVMBackendFreeWorkspace": "conv_kernels_release",
    "TVMFFIErrorSetRaisedFromCStrParts": "conv_kernels_set_error",
    "__tvm_ffi_main": "conv_kernels__",
    **CONVERSIONS,
}
"""Functions that TVM calls, and their names in `runtime/conv_kernels.c`."""


class Kernel(NamedTuple):
    """A kernel that is built.

    Attributes
    ----------
    object_file : bytes
    packed : Argument or None
        The packed weights, if weights come packed.
    copies : bool
        Whether these are the weights as they are.
    """

    object_file: bytes
    packed: Argument | None
    copies: bool


def target_of(text: str) -> Any:
    """Return the target that is stated: JSON, the name of a processor, or nothing for this
    machine's.

    Raises
    ------
    ValueError
        One line, for what makes no kernels.
    """
    if not text:
        return host_target()
    options: Any = {"kind": "llvm", "mcpu": text}
    if text.lstrip().startswith("{"):
        try:
            options = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"target {text}: {error}") from None
    elif text not in compat.processors():
        raise ValueError(
            f"target {text!r} must be JSON, or a processor that LLVM knows of this machine's kind"
        )
    try:
        target = tvm.target.Target(options)
    except Exception as error:  # TVM raises errors of many classes
        raise ValueError(f"target {text}: {str(error).strip().splitlines()[-1]}") from None
    if target.kind.name != "llvm":
        raise ValueError(f"target kind {target.kind.name}: kernels in C are for llvm")
    found = of_target(target)
    if isinstance(found, Unsupported):
        raise ValueError(f"target {text}: {found.reason}")
    if compat.lacks_64_bits(target):
        named = compat.processor(target)
        raise ValueError(f"target {text}: mcpu={named} has no 64-bit instructions")
    triple = str(target.attrs.get("mtriple", ""))
    if triple.startswith("riscv") and not str(target.attrs.get("mabi", "")).endswith("d"):
        raise ValueError(
            f"target {text}: Linux links code of mabi lp64d; add "
            '"mabi": "lp64d" and "mattr": ["+m", "+a", "+f", "+d", "+c"]'
        )
    return target


def build(request: Request, target: Any) -> Kernel:
    """Compile a kernel, and what packs its weights."""
    name = request.words.name
    problem = Convolution.of(
        request.kind, request.geometry, request.layouts, request.n, request.dtypes,
        Fused(request.epilogue),
    )  # fmt: skip
    if not request.words.packed:
        return Kernel(
            object_file({name: backend.build(problem, target)}, target), None, copies=False
        )
    packing, func = backend.prepack(problem, target)
    if packing is None:
        weight = request.arguments[1]
        packed = Argument("packed", weight.shape, weight.dtype, "the weights as they are")
        return Kernel(object_file({name: func}, target), packed, copies=True)
    packed = Argument("packed", (packing.elements,), packing.dtype, f"made by {name}_pack()")
    functions = {name: func, f"{name}_pack": packing.func}
    return Kernel(object_file(functions, target), packed, copies=False)


def object_file(functions: dict[str, Any], target: Any) -> bytes:
    """Return the code of PrimFuncs by name, whose other names are the runtime's, and hidden."""
    data = compat.object_code(compat.compiled(functions, target, pipeline_of_kernels()))
    if elf.is_riscv(data):
        # TVM's conversions take float16 in another register than what calls them has it in, and
        # the library of gcc 12 has none from float64.
        return elf.isolated(data, {**RENAMED, "__truncdfhf2": "conv_narrowd"}, CONVERSIONS)
    return elf.isolated(data, RENAMED)
