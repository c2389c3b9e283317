# SPDX-License-Identifier: Apache-2.0
"""Bodies of kernels as TE stages, in the form that TVM 0.17 and its compilers accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te

from topi_ext.compat import is_cpu, opaque, tir
from topi_ext.spec.size_rules import Rule

from .shape import asserted


def extern(
    name: str,
    func: Any,
    operands: Sequence[Any],
    result: tuple[tuple[Any, ...], str],
    rules: Sequence[Rule],
    restate: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a scheduled PrimFunc ``(*operands, result)`` as one stage of TE.

    Its body is taken as it is, on the buffers of the stage; the variables in its parameters'
    shapes become the sizes of those buffers.  A call of the function would check these; here
    `rules` do.

    Parameters
    ----------
    result : tuple
        Its shape and its dtype.
    restate : callable, optional
        Says the body in another way.
    """
    parameters = [func.buffer_map[parameter] for parameter in func.params]

    def define(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        given = {}
        for parameter, buffer in zip(parameters, (*ins, *outs)):
            given[parameter.data] = buffer.data
            for variable, size in zip(parameter.shape, buffer.shape):
                if isinstance(variable, tir.Var):
                    given.setdefault(variable, tir.Cast(variable.dtype, size))
        body = tir.stmt_functor.substitute(func.body, given)
        return asserted(rules, restate(body) if restate else body)

    shape, dtype = result
    return te.extern([shape], list(operands), define, name=name, dtype=[dtype])


def restatement(dtypes: Sequence[str], target: Any) -> Callable[[Any], Any] | None:
    """Return the pass that rewrites a kernel's body for the compiler behind TVM 0.17."""
    if is_cpu(target):
        return _for_old_llvm
    return _for_new_cuda if {"float16", "bfloat16"} & set(dtypes) else None


def _for_old_llvm(body: Any) -> Any:
    """Rewrite `body` so that LLVM 10, which compiles for Relay, keeps sums in registers.

    Where TVM knows that 32 bits hold an index, it narrows it, and each load computes its address
    anew. And of the factors of a fused multiply-add it is the first whose register takes the sum
    once nothing else needs it: a broadcast weight is done with soon, so sums would wander between
    registers and spill.
    """

    def restated(node: Any) -> Any:
        if isinstance(node, tir.LetStmt):
            wide = node.var.dtype == "int64"
            return tir.LetStmt(node.var, opaque(node.value), node.body) if wide else None
        weight_first = isinstance(node.a, tir.Broadcast) and node.dtype.startswith("float")
        return tir.Mul(node.b, node.a) if weight_first else None

    return tir.stmt_functor.ir_transform(body, None, restated, ["tir.LetStmt", "tir.Mul"])


_HALVES = """\
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 530)
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define htanh topi_htanh
#endif
"""


def _for_new_cuda(body: Any) -> Any:
    """Rewrite `body` so that CUDA 13 accepts it if it has float16 or bfloat16.

    For these TVM 0.17 defines a function that its headers have by now: it gets another name.  The
    text comes before TVM's own, which below sm_53 has a float16 without those headers.
    """

    def restated(node: Any) -> Any:
        if node.attr_key != "thread_extent" or node.node.thread_tag != "threadIdx.x":
            return None
        text = tir.StringImm(_HALVES)
        inner = tir.AttrStmt(tir.IntImm("int32", 0), "pragma_import_c", text, node.body)
        return tir.AttrStmt(node.node, node.attr_key, node.value, inner)

    return tir.stmt_functor.ir_transform(body, None, restated, ["tir.AttrStmt"])
