# SPDX-License-Identifier: Apache-2.0
"""From a face, its geometry and a target to a scheduled kernel, or to none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, NamedTuple

from . import tvm_compat
from .cpu.emit import SCRATCH_BYTES
from .cpu.kernels import (
    direct,
    direct_amx,
    direct_dot_bf16,
    dot_product,
    gemm_col2im,
    phase_lanes,
    runtime_dispatch,
    valid_taps,
    wgrad_channels,
    wgrad_im2col,
    wgrad_positions,
    wgrad_winograd,
    winograd,
)
from .cpu.machine import Machine
from .cpu.plan.choose import choose
from .cpu.plan.direct import GatherPlan
from .cpu.plan.direct_amx import AmxPlan
from .cpu.plan.direct_dot_bf16 import DotPlan
from .cpu.plan.dot_product import InnerPlan
from .cpu.plan.gemm_col2im import ScatterPlan
from .cpu.plan.phase_lanes import PhasesPlan
from .cpu.plan.runtime_dispatch import EitherPlan
from .cpu.plan.valid_taps import ClippedPlan
from .cpu.plan.wgrad_channels import ChannelsPlan
from .cpu.plan.wgrad_im2col import ColumnsPlan
from .cpu.plan.wgrad_positions import WeightGradPlan
from .cpu.plan.wgrad_winograd import WeightTilesPlan
from .cpu.plan.window import Plan
from .cpu.plan.winograd import WinogradPlan
from .epilogue import Epilogue
from .geometry import Geometry, Size
from .layout import Layouts
from .problem import Problem
from .sizes import rules

KERNELS = {
    GatherPlan: direct,
    WinogradPlan: winograd,
    AmxPlan: direct_amx,
    DotPlan: direct_dot_bf16,
    InnerPlan: dot_product,
    ScatterPlan: gemm_col2im,
    PhasesPlan: phase_lanes,
    ClippedPlan: valid_taps,
    EitherPlan: runtime_dispatch,
    WeightGradPlan: wgrad_positions,
    ChannelsPlan: wgrad_channels,
    ColumnsPlan: wgrad_im2col,
    WeightTilesPlan: wgrad_winograd,
}
"""The room of each plan's kernel."""

_PACKERS = {
    GatherPlan: direct,
    WinogradPlan: winograd,
    AmxPlan: direct_amx,
    DotPlan: direct_dot_bf16,
    ClippedPlan: valid_taps,
}
"""Kernels that may find their weights packed."""


class Packing(NamedTuple):
    """How weights are packed ahead of a kernel.

    Attributes
    ----------
    func : PrimFunc
        ``(weight, packed)``.
    elements : int
        Size of `packed`, which has one axis.
    dtype : str
        Its dtype.
    """

    func: Any
    elements: int
    dtype: str


def prim_func(
    face: str,
    geometry: Geometry,
    layouts: Layouts,
    n: Size,
    dtypes: tuple[str, str, str],
    target: Any,
    epilogue: Epilogue = (),
) -> Any:
    """The scheduled PrimFunc of one operator, or None where `target` has no kernel of ours.

    Parameters
    ----------
    face : {"conv", "conv_transpose", "conv_weight_grad"}
    geometry : Geometry
    layouts : Layouts
        Permutations in which x, w and y are stored.
    n : int or symbolic
        Batch.
    dtypes : tuple of str
        Of the first operand, of the second, of the result.
    target : tvm.target.Target or None
    epilogue : tuple of Step
        What is done to the result; not for ``conv_weight_grad``.

    Returns
    -------
    PrimFunc or None
        ``(first operand, second operand, *operands of the epilogue, result)``.  Symbolic sizes
        become variables of the function.  Equal requests give the same object.
    """
    features = tvm_compat.llvm_features(target)
    if features is None:
        return None
    machine = Machine.of_features(*features)
    return _build(_Request.of(face, geometry, layouts, n, dtypes, machine, epilogue))


def prepacked(
    face: str,
    geometry: Geometry,
    layouts: Layouts,
    n: Size,
    dtypes: tuple[str, str, str],
    target: Any,
    epilogue: Epilogue = (),
) -> tuple[Packing | None, Any]:
    """The same in two, for weights that are known before the operator runs.

    Returns
    -------
    packing : Packing or None
        None where the kernel reads weights as they are.
    kernel : PrimFunc or None
        As :func:`prim_func` returns it, but with `packed` in place of the weight.
    """
    features = tvm_compat.llvm_features(target)
    if features is None:
        return None, None
    machine = Machine.of_features(*features)
    request = _Request.of(face, geometry, layouts, n, dtypes, machine, epilogue, prepacked=True)
    return _build_packing(request), _build(request)


def workspace_bytes(func: Any, threads: int) -> int | None:
    """Memory that a kernel of ours allocates while `threads` run it, at most.

    None where it depends on a symbolic size.
    """
    if SCRATCH_BYTES not in func.attrs:
        return None
    pairs = (map(int, pair) for pair in func.attrs[SCRATCH_BYTES])
    return max(common + threads * per_task for common, per_task in pairs)


@dataclass(frozen=True)
class _Request:
    """What is built, without what only names symbolic sizes: equal requests share a function."""

    face: str
    geometry: Geometry
    known: tuple[int | None, ...]
    layouts: Layouts
    dtypes: tuple[str, str, str]
    machine: Machine
    epilogue: Epilogue
    prepacked: bool

    @classmethod
    def of(
        cls,
        face: str,
        geometry: Geometry,
        layouts: Layouts,
        n: Size,
        dtypes: tuple[str, str, str],
        machine: Machine,
        epilogue: Epilogue,
        *,
        prepacked: bool = False,
    ) -> _Request:
        sizes = (n, *geometry.x_size, *geometry.y_size)
        known = tuple(size if isinstance(size, int) else None for size in sizes)
        sizeless = replace(geometry, x_size=(), y_size=())
        return cls(face, sizeless, known, layouts, dtypes, machine, epilogue, prepacked)

    def sized(self) -> tuple[Size, Geometry]:
        """Batch and geometry, with a fresh variable for each unknown size."""
        rank = self.geometry.rank
        names = ["n", *(f"{side}{axis}" for side in "xy" for axis in range(rank))]
        n, *sizes = (
            tvm_compat.size_var(name) if size is None else size
            for name, size in zip(names, self.known)
        )
        x_size, y_size = tuple(sizes[:rank]), tuple(sizes[rank:])
        return n, replace(self.geometry, x_size=x_size, y_size=y_size)

    def planned(self, n: Size, geometry: Geometry) -> tuple[Problem, Plan]:
        """The problem of these sizes and a plan for it."""
        problem = Problem(
            self.face,
            geometry.as_rank3(),
            self.layouts,
            n,
            self.dtypes,
            self.epilogue,
            self.prepacked,
        )
        return problem, choose(problem, self.machine)


def _one_at_a_time(cached: Callable[[_Request], Any]) -> Callable[[_Request], Any]:
    """`cached`, asked by one thread at a time: what one has built, the next finds."""

    @wraps(cached)
    def ask(request: _Request) -> Any:
        with tvm_compat.building:
            return cached(request)

    return ask


_REMEMBERED = 256
"""Kernels: one takes a quarter of a megabyte."""


@_one_at_a_time
@lru_cache(maxsize=_REMEMBERED)
def _build(request: _Request) -> Any:
    n, geometry = request.sized()
    problem, plan = request.planned(n, geometry)
    func = KERNELS[type(plan)].build(problem, plan)
    return tvm_compat.asserting(func, rules(request.face, geometry))


@_one_at_a_time
@lru_cache(maxsize=_REMEMBERED)
def _build_packing(request: _Request) -> Packing | None:
    problem, plan = request.planned(*request.sized())
    kernel = _PACKERS.get(type(plan))
    if kernel is None or not kernel.is_prepacked(problem, plan):
        return None
    func = kernel.build_packing(problem, plan)
    return Packing(func, *kernel.packed_weights(problem, plan))
