# SPDX-License-Identifier: Apache-2.0
"""CUDA source of a request's kernels, of this package or of stock TVM.  It needs TVM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

import relax_ext
from cuda_emulator.host import Plan
from cuda_emulator.lowering import Lowered, lower, target_of
from support import by_relax
from topi_ext import compat
from topi_ext.cuda import kernels
from topi_ext.spec.conv import Convolution

from .requests import Request, machine_of


@dataclass(frozen=True)
class Built:
    """CUDA source, launches and plan of a request, and the number of elements of packed weights."""

    source: str
    call: Plan
    plan: str
    packed: int = 0


def build(request: Request, arch: str) -> Built:
    """Lower a request for an architecture.

    Raises
    ------
    ValueError
        If there is no kernel for it.
    """
    shapes: list[Any] = [request.stored(role) for role in request.roles]
    if request.maker == "stock":
        made = _stock(request, arch)
        return Built(made.source, made.plan(*shapes), "dlight")
    plan, problem = request.plan(machine_of(arch)), request.problem
    packed = kernels.packed_weights(problem, plan)
    if request.maker == "prepacked" and packed is None:
        raise ValueError("its plan packs no weights")
    if packed is not None:
        shapes[1] = (packed.elements,)
    made = lower(kernels.build(sized(request, problem), plan), arch)
    return Built(made.source, made.plan(*shapes), str(plan), packed.elements if packed else 0)


def sized(request: Request, problem: Convolution) -> Convolution:
    """Return the problem, for a symbolic request with variables for the batch and every size."""
    if request.maker != "symbolic":
        return problem
    g = request.geometry
    x, y = (tuple(compat.size_var(f"{side}{axis}") for axis in range(g.rank)) for side in "xy")
    g = replace(g, x_size=x, y_size=y).as_rank3()
    return replace(problem, n=compat.size_var("n"), geometry=g)


def _stock(request: Request, arch: str) -> Lowered:
    """Lower stock TVM's operator with the schedules of dlight.

    Its module has one kernel; operators that take several, as gradients do, are not compared.
    """
    if request.channels != "first":
        raise ValueError("stock is compared in its own layouts")
    target = target_of(arch)
    with relax_ext.stock(), target:
        if request.kind == "conv_weight_grad":
            raise ValueError("stock's weight gradient is several kernels")
        module = by_relax.forward(request.case, request.kind, request.dtype)
        module = relax.transform.LegalizeOps()(module)
        module = _scheduled(module)
    funcs = [func for func in module.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    if len(funcs) != 1:
        raise ValueError(f"stock takes {len(funcs)} kernels")
    return lower(funcs[0], arch)


def _scheduled(module: Any) -> Any:
    """Apply the rules of Relax's pipeline for CUDA."""
    from tvm.s_tir import dlight

    rules = (dlight.gpu.Matmul(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction())
    return dlight.ApplyDefaultSchedule(*rules, dlight.gpu.Fallback())(module)
