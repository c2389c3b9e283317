# SPDX-License-Identifier: Apache-2.0
"""Problems that together meet every kernel of GPUs, and the plans of each that are looked at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from support.gpu.layouts import layouts_of, stored_shape
from topi_ext import compat
from topi_ext.cuda.machine import GpuMachine
from topi_ext.cuda.plan.tiles import Plan
from topi_ext.cuda.registry import KERNELS
from topi_ext.cuda.select.choose import choose
from topi_ext.kernel.registry import Kernel, accepted
from topi_ext.spec.conv import OPERANDS, RESULT, Convolution
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts
from topi_ext.spec.post_ops import PostOp
from topi_ext.spec.rowwise import NORMALIZE, SOFTMAX, RowWise

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

KINDS = ("conv", "conv_transpose", "conv_weight_grad")


@dataclass(frozen=True)
class Shape:
    """A geometry with batch, dtype and layout.

    Attributes
    ----------
    name : str
    x, y : tuple of int
        Canonical shapes.
    kernel : tuple of int
    stride, padding, groups : int
    dtype : str
    channels_last : bool
    symbolic : bool
        Whether the batch and all sizes are known when it runs.
    """

    name: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    dtype: str = "float32"
    channels_last: bool = False
    symbolic: bool = False

    kinds: ClassVar[tuple[str, ...]] = KINDS

    @property
    def geometry(self) -> Geometry:
        """Return the geometry of the stated sizes."""
        return Geometry.of_sizes(
            self.name,
            self.x,
            self.y,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
        )

    @property
    def layouts(self) -> Layouts:
        """In which x, w and y are stored."""
        return layouts_of(len(self.kernel), channels_last=self.channels_last)

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Return the dtypes of both operands and of the result."""
        return (self.dtype, self.dtype, "int32" if "int" in self.dtype else self.dtype)

    def problem(self, kind: str) -> Convolution:
        """Return the problem of a kind of operator."""
        g, n = self.geometry, self.x[0]
        if self.symbolic:
            # Their names are those that the function's parameters get.
            n = compat.size_var("n")
            x, y = ([compat.size_var(f"{side}{i}") for i in range(g.rank)] for side in "xy")
            g = replace(g, x_size=tuple(x), y_size=tuple(y))
        return Convolution(kind, g.as_rank3(), self.layouts, n, self.dtypes)

    def stored(self, kind: str) -> list[tuple[int, ...]]:
        """Return the shapes of the operands and of the result, as stored."""
        return [
            stored_shape(self.geometry, self.x[0], self.layouts, role)
            for role in OPERANDS[kind] + RESULT[kind]
        ]


@dataclass(frozen=True)
class RowShape:
    """Rows of a group norm with scale, shift and silu, or of softmax.

    Attributes
    ----------
    name : str
    sizes : tuple of int
        Images, groups, channels of a group, places.
    dtype : str
    kinds : tuple of str
        Kinds of operators.
    """

    name: str
    sizes: tuple[int, int, int, int]
    dtype: str = "float32"
    kinds: tuple[str, ...] = (NORMALIZE,)

    channels_last: ClassVar[bool] = False
    symbolic: ClassVar[bool] = False

    def problem(self, kind: str) -> RowWise:
        """Return a kind of it."""
        affine = [PostOp(op, "gc", "gc") for op in ("multiply", "add")]
        steps = (*affine, PostOp("silu")) if kind == NORMALIZE else ()
        sizes = tuple(zip("ngcs", self.sizes))
        return RowWise(kind, sizes, "cs", (self.dtype, self.dtype), 1e-5, steps).merged()

    def stored(self, kind: str) -> list[tuple[int, ...]]:
        """Return the shapes of the operands and of the result of a kind, as stored."""
        return [one.shape for one in self.problem(kind).arguments()]


_RESNET = Shape("resnet 3x3", (8, 128, 28, 28), (8, 128, 28, 28), (3, 3), padding=1)
_DECODER = Shape("decoder 4x4 s2", (8, 64, 64, 64), (8, 128, 32, 32), (4, 4), 2, 1)
_DEPTHWISE = Shape("depthwise 3x3", (8, 96, 56, 56), (8, 96, 56, 56), (3, 3), 1, 1, 96)

AnyShape = Shape | RowShape

SHAPES: tuple[AnyShape, ...] = (
    _RESNET,
    replace(_RESNET, channels_last=True),
    replace(_RESNET, dtype="float16"),
    replace(_RESNET, dtype="float16", channels_last=True),
    replace(_RESNET, dtype="bfloat16", channels_last=True),
    _DECODER,
    replace(_DECODER, dtype="float16", channels_last=True),
    replace(_DECODER, symbolic=True),
    Shape("first decoder layer", (1, 256, 8, 8), (1, 512, 4, 4), (4, 4), 2, 1),
    Shape("last decoder layer", (8, 3, 128, 128), (8, 64, 64, 64), (4, 4), 2, 1),
    _DEPTHWISE,
    replace(_DEPTHWISE, dtype="float16", channels_last=True),
    Shape("grouped 3x3", (8, 128, 28, 28), (8, 128, 28, 28), (3, 3), 1, 1, 32),
    Shape("vocoder 16 s8", (1, 128, 2048), (1, 256, 256), (16,), 8, 4),
    Shape("volume 3x3x3", (1, 32, 16, 32, 32), (1, 64, 16, 32, 32), (3, 3, 3), padding=1),
    Shape("double", (2, 32, 28, 28), (2, 32, 28, 28), (3, 3), padding=1, dtype="float64"),
    RowShape("U-Net 640 at 32x32", (2, 32, 20, 1024), "float16"),
    RowShape("U-Net 1280 at 8x8", (2, 32, 40, 64)),
    RowShape("decoder 128 at 512x512", (1, 32, 4, 512 * 512), "float16"),
    RowShape("tokens", (16, 64, 1, 4096), kinds=(SOFTMAX,)),
)
"""Every kernel is chosen for some of them on some architecture; a test sees to it."""


def spots() -> Iterator[tuple[AnyShape, str]]:
    """Yield all shapes, with all kinds."""
    for shape in SHAPES:
        for kind in shape.kinds:
            yield shape, kind


def chosen(shape: AnyShape, kind: str, machine: GpuMachine) -> Plan | None:
    """Return the plan that the backend takes; None where no kernel serves the problem."""
    try:
        return choose(shape.problem(kind), machine)
    except ValueError:
        return None


def tiles(kernel: Kernel[GpuMachine], machine: GpuMachine) -> Iterator[tuple[AnyShape, str, Plan]]:
    """Yield each tile of a kernel's table, with the depth and the number of shares that are
    estimated to be the fastest for the kernel's largest shape.
    """
    shape, kind = _representative(kernel, machine)
    best: dict[str, tuple[float, Plan]] = {}
    for time, plan in candidates_of(kernel, shape.problem(kind), machine):
        tile = _tile(plan)
        best[tile] = min(best.get(tile, (time, plan)), (time, plan), key=lambda one: one[0])
    for _, plan in sorted(best.values(), key=lambda one: one[0]):
        yield shape, kind, plan


def candidates_of(
    kernel: Kernel[GpuMachine], problem: Any, machine: GpuMachine
) -> Iterable[tuple[float, Any]]:
    """Return the plans of a kernel with their estimates; none of one that only runs others."""
    return accepted(kernel.candidates(problem, machine)) if kernel.candidates else ()


def _tile(plan: Plan) -> str:
    """Return a plan without what does not belong to its tile."""
    return re.sub(r"(depth|splits|parts|turns)=\d+", "", str(plan))


def _representative(kernel: Kernel[GpuMachine], machine: GpuMachine) -> tuple[AnyShape, str]:
    """Return a shape and a kind for which a kernel has plans; one for which it is chosen if there
    is.
    """
    serves = [
        (shape, kind)
        for shape, kind in spots()
        if kind in kernel.kinds
        and any(True for _ in candidates_of(kernel, shape.problem(kind), machine))
    ]
    plans = [(one, chosen(*one, machine)) for one in serves]
    taken = [one for one, plan in plans if plan and KERNELS.of_plan(plan) is kernel]
    return (taken or serves)[0]
