# SPDX-License-Identifier: Apache-2.0
"""Convolutions as stages of TE that a schedule replaces, with what follows, by one kernel.

TE cannot inline anything into an opaque stage (``te.extern``).  So a convolution is a stage of
elements: each is a call that names the operands and cannot be compiled.  :mod:`.schedule` reads the
arithmetic behind the stage and puts a kernel in the place of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te

from topi_ext.compat import is_cpu, set_op_attr, tir
from topi_ext.fusion.anchors import ConvAnchor

TAG = "relay_ext.kernel"
_ELEMENT = "tir.relay_ext_kernel_without_its_schedule"
"""The name is what TVM's error says where another schedule than ours compiles the stage."""
_ANYWHERE = "relay_ext_anywhere"
_TUNERS = ("relay.backend.use_auto_scheduler", "relay.backend.use_meta_schedule")


@dataclass(frozen=True)
class Stage:
    """A convolution that is a stage of TE.

    Attributes
    ----------
    op : te.ComputeOp
    anchor : ConvAnchor
        The convolution, whose result has the axes of the stage.
    tensors : sequence of te.Tensor
        Its operands.
    build : callable
        Return the kernel of a problem: the convolution with post-ops.
    restate : callable or None
        Restate the body of a kernel for TVM 0.17; see :mod:`.extern_kernel`.
    """

    op: Any
    anchor: ConvAnchor
    tensors: Sequence[Any]
    build: Callable[[Any], Any]
    restate: Callable[[Any], Any] | None


def has_own_schedule(target: Any) -> bool:
    """Return whether the schedule of a strategy is ours: not on GPUs, nor where TVM's tuners make
    schedules of their own."""
    config = tvm.transform.PassContext.current().config
    return is_cpu(target) and not any(config.get(name, 0) for name in _TUNERS)


def placed(name: str, shape: Sequence[int], dtype: str, tensors: Sequence[Any]) -> Any:
    """Return the tensor of a stage that reads any element of these tensors."""
    _declare()

    def element(*_: Any) -> Any:
        loads = [tensor[tuple(_anywhere() for _ in tensor.shape)] for tensor in tensors]
        return tir.call_intrin(dtype, _ELEMENT, *loads)

    return te.compute(tuple(shape), element, name=name, tag=TAG)


def operations(outs: Sequence[Any]) -> list[Any]:
    """Return all operations that lead to tensors, producers first."""
    return list(_operations(outs, set()))


def _operations(outs: Sequence[Any], seen: set[int]) -> Iterator[Any]:
    for out in outs:
        if out.op.handle.value not in seen:
            seen.add(out.op.handle.value)
            yield from _operations(out.op.input_tensors, seen)
            yield out.op


def _anywhere() -> Any:
    """Return an index that TVM knows nothing of, so that it takes the whole axis."""
    return tir.call_pure_extern("int32", _ANYWHERE)


def _declare() -> None:
    """Add the operator that elements are calls of, once per process."""
    if _ELEMENT not in tvm.ir.Op.list_op_names():
        tvm.get_global_func("ir.RegisterOp")(_ELEMENT, "An element that a kernel computes.")
        set_op_attr(_ELEMENT, "TCallEffectKind", tir.expr.CallEffectKind.Pure)
