# SPDX-License-Identifier: Apache-2.0
"""Finished functions, rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .versions import StringImm, tir, tvm

_NAMESPACE = tir.__name__.rpartition(".")[2] + "."


def intrinsic_name(call: Any) -> str:
    """Of a call of one of TVM's own functions of numbers, such as ``exp``; else empty."""
    name = str(getattr(call.op, "name", ""))
    return name.removeprefix(_NAMESPACE) if name.startswith(_NAMESPACE) else ""


def scalar_dtype(expr: Any) -> str:
    """Dtype of an expression of numbers."""
    return str(expr.dtype if hasattr(expr, "dtype") else expr.ty.dtype)


def with_calls_replaced(body: Any, replacement: Callable[[Any], Any]) -> Any:
    """Statements of Relax's TVM in which ``replacement(call)`` stands for each call that it does
    not return None for, the innermost first."""
    if hasattr(tir, "Call"):  # before TVM 0.26
        transform = tir.stmt_functor.ir_transform
        return transform(body, None, replacement, [f"{_NAMESPACE}Call"])
    from tvm_ffi import structural_map

    def replaced(call: Any) -> Any:
        made = replacement(call)
        return call if made is None else made

    return structural_map(body, (tvm.ir.Call, replaced))


def importing_llvm(body: Any, text: str) -> Any:
    """The body of a function with a root block, which may call the functions that `text`, in LLVM's
    language, defines."""
    root, zero = body.block, tir.IntImm("int32", 0)
    inside = tir.AttrStmt(zero, "pragma_import_llvm", StringImm(text), root.body)
    block = type(root)(
        [], [], [], root.name_hint, inside, alloc_buffers=root.alloc_buffers,
        annotations=root.annotations,
    )  # fmt: skip
    return type(body)([], tir.const(True, "bool"), block)
