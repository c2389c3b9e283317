# SPDX-License-Identifier: Apache-2.0
"""Plans of :mod:`topi_ext.cpu.kernels.gemm_dot`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...kernel.registry import Refused, require
from ...spec.conv import Convolution
from ...spec.matmul import MatMul
from ..machine import CpuMachine
from ..products import DOTS, Product
from .base import Plan
from .direct_dot import instructions
from .gemm import PRODUCT_RULE, GemmPlan, gemm_candidates, product_of, require_lanes


@dataclass(frozen=True)
class GemmDotPlan(Plan):
    """Plan of the kernel of matrix products by products within lanes.

    Attributes
    ----------
    nest : GemmPlan
        The loop nest: its depth counts lanes of terms.
    dot : str
        The instruction, of :data:`~topi_ext.cpu.products.DOTS`.
    """

    nest: GemmPlan
    dot: str


def gemm_dot_candidates(
    problem: Convolution | MatMul, machine: CpuMachine
) -> Iterator[tuple[float, GemmDotPlan]]:
    """Yield plans, with lanes over columns, and their cycles."""
    found = product_of(problem)
    if found is None:
        raise Refused(PRODUCT_RULE)
    require_lanes(found, machine)
    is_known = bool(found.inner) and isinstance(found.extent(found.inner), int)
    require(is_known, "terms must be known, and more than one")
    for name, as_floats in instructions(found, machine):
        dot = DOTS[name]
        rule = "weights must be packed ahead, or products need no correction for zero points"
        require(found.prepacked or not dot.zero_of(found), rule)
        for cycles, nest in gemm_candidates(_in_lanes(found, dot), as_floats):
            yield cycles, GemmDotPlan(nest, name)


def _in_lanes(found: MatMul, dot: Product) -> MatMul:
    """Return the product of as many numbers of float32 as there are lanes; data that are copied
    first are of a narrower dtype.
    """
    terms = -(-found.extent(found.inner) // dot.size)
    sizes = tuple((a, terms if a in found.inner else size) for a, size in found.sizes)
    data = "float32" if reads_in_place(found, dot) else "bfloat16"
    return replace(found, sizes=sizes, dtypes=(data, "float32", "float32"), zero_points=(0, 0))


def reads_in_place(found: MatMul, dot: Product) -> bool:
    """Return whether lanes of data are read as they are stored: whole ones of neighbours, of the
    dtype that the instruction takes.
    """
    is_whole = found.extent(found.inner) % dot.size == 0 and found.step("x", found.inner) == 1
    return dot.size == 4 and is_whole and not dot.shift_of(found.dtypes[0])
