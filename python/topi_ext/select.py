# SPDX-License-Identifier: Apache-2.0
"""From a face, its geometry and a target to a scheduled kernel, or to none."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from . import tvm_compat
from .geometry import Geometry, Size
from .kernels import gather, scatter, weight_channels, weight_columns, weight_grad
from .layout import Layouts
from .plan.cpu import (
    ChannelsPlan,
    ColumnsPlan,
    GatherPlan,
    Machine,
    Problem,
    ScatterPlan,
    WeightGradPlan,
    choose,
)

KERNELS = {
    GatherPlan: gather,
    ScatterPlan: scatter,
    WeightGradPlan: weight_grad,
    ChannelsPlan: weight_channels,
    ColumnsPlan: weight_columns,
}
"""The room of each plan's kernel."""


def prim_func(
    face: str,
    geometry: Geometry,
    layouts: Layouts,
    n: Size,
    dtypes: tuple[str, str, str],
    target: Any,
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

    Returns
    -------
    PrimFunc or None
        ``(first operand, second operand, result)``.  Symbolic sizes become variables of the
        function.  Equal requests give the same object.
    """
    features = tvm_compat.llvm_features(target)
    if features is None:
        return None
    machine = Machine.of_features(*features)
    sizes = (n, *geometry.x_size, *geometry.y_size)
    known = tuple(size if isinstance(size, int) else None for size in sizes)
    return _build(face, replace(geometry, x_size=(), y_size=()), known, layouts, dtypes, machine)


@lru_cache(maxsize=4096)
def _build(
    face: str,
    geometry: Geometry,
    known: tuple[int | None, ...],
    layouts: Layouts,
    dtypes: tuple[str, str, str],
    machine: Machine,
) -> Any:
    """Build with a fresh variable for each unknown size: each operand's shape binds its own."""
    rank = geometry.rank
    names = ["n", *(f"{side}{axis}" for side in "xy" for axis in range(rank))]
    n, *sizes = (
        tvm_compat.size_var(name) if size is None else size for name, size in zip(names, known)
    )
    sized = replace(geometry, x_size=tuple(sizes[:rank]), y_size=tuple(sizes[rank:]))
    problem = Problem(face, sized.as_rank3(), layouts, n, dtypes)
    plan = choose(problem, machine)
    return KERNELS[type(plan)].build(problem, plan)
