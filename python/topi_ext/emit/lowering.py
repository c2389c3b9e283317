# SPDX-License-Identifier: Apache-2.0
"""Lower kernels without the passes of TVM that take most of its time and change nothing for them.

Kernels are written as they are to run.  TVM's default pipeline lowers them with these passes
disabled, and every other function as before.
"""

from __future__ import annotations

from typing import Any

from ..compat import has_own_pipeline, tvm, with_replaced
from .builder import is_kernel

NEEDLESS = (
    # Kernels allocate what they use: this pass evaluates every access over all loops.
    "s_tir.CompactBufferAllocation",
    # LLVM moves branches out of loops, and removes empty ones.
    "s_tir.HoistIfThenElse",
    "tirx.RemoveNoOp",
    # These are about threads of GPUs.
    "s_tir.InjectVirtualThread",
    "s_tir.InjectPermutedLayout",
)
"""Passes that are disabled for kernels on processors."""

PIPELINE = f"default, of kernels without {', '.join(NEEDLESS)}"
"""Name of the pipeline among those of TVM, and in the names of cached functions."""

_OF_LOWERING = ("tirx.", "tir.", "s_tir.")
"""Options of TVM that influence its pipeline begin so."""


def pipeline_of_kernels(stated: Any = "default") -> Any:
    """Return the name of the pipeline that ``tvm.tirx.build`` takes in place of the `stated` one.

    It is the stated one unless that is TVM's own default, used as it is: instruments, disabled
    passes and options of passes are about TVM's pipeline as a whole.
    """
    context = tvm.transform.PassContext.current()
    is_changed = context.instruments or context.disabled_pass or context.required_pass
    options = any(str(name).startswith(_OF_LOWERING) for name in context.config)
    if stated != "default" or is_changed or options or not has_own_pipeline():
        return stated
    tvm.tirx.register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[Any, Any, Any]:
    """Return the pipeline as TVM takes it: passes, and those that finish host and device code."""
    default, *finishing = tvm.tirx.get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0, name=PIPELINE)
    def lowered(module: Any, _: Any) -> Any:
        functions = dict(module.functions.items())
        lean = {name: func for name, func in functions.items() if _is_lean(func)}
        others = {name: func for name, func in functions.items() if name not in lean}
        if not lean or any(map(_calls_function, others.values())):
            return default(module)
        context = tvm.transform.PassContext.current()
        with tvm.transform.PassContext(
            context.opt_level, disabled_pass=list(NEEDLESS), config=dict(context.config)
        ):
            kernels = default(tvm.IRModule(lean, attrs=module.attrs))
        if others:
            kernels.update(default(tvm.IRModule(others, attrs=module.attrs)))
        return kernels

    return lowered, *finishing


def _is_lean(func: Any) -> bool:
    """Return whether a function with a target is a kernel for a processor."""
    return is_kernel(func) and func.attrs["target"].kind.name == "llvm"


def _calls_function(func: Any) -> bool:
    """Return whether a function calls one of its module, which TVM then lowers with it."""
    found = []

    def visit(call: Any) -> None:
        if isinstance(call.op, tvm.ir.GlobalVar):
            found.append(call)

    with_replaced(func.body, {"Call": visit})
    return bool(found)
