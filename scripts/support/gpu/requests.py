# SPDX-License-Identifier: Apache-2.0
"""Requests of a run on a GPU: operators of cases, in dtypes and layouts, most informative first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from support.cases import KINDS, Case
from topi_ext.cuda.machine import GpuMachine
from topi_ext.cuda.plan.tiles import Plan
from topi_ext.cuda.registry import KERNELS
from topi_ext.cuda.select.choose import choose
from topi_ext.spec.conv import OPERANDS, RESULT, Convolution
from topi_ext.spec.dtypes import byte_width
from topi_ext.spec.geometry import Geometry
from topi_ext.spec.layout import Layouts

from .layouts import layouts_of, stored_shape

PLACES = (1, 2, 3, 5, 8, 13, 21, 34)
"""Ranks, by estimate, of the plans that are timed in addition to the chosen one: the first ones
show the loss by inexact estimates, later ones show incorrect estimates."""

FORMATS = (
    ("float32", "first"),
    ("float16", "last"),
    ("bfloat16", "last"),
    ("float16", "first"),
    ("float32", "last"),
    ("bfloat16", "first"),
)
"""Dtypes and places of the channels, in the order in which a run of limited time measures them."""


def machine_of(arch: str) -> GpuMachine:
    """Return the machine that plans are chosen for.

    Raises
    ------
    ValueError
        For an unknown architecture.
    """
    found = GpuMachine.of_arch(arch)
    if found is None:
        raise ValueError(f"--arch {arch} must be one such as sm_90")
    return found


@dataclass(frozen=True)
class Request:
    """An operator of a case in a dtype and a layout.

    Attributes
    ----------
    case : Case
    kind, dtype : str
    channels : str
        ``"first"`` or ``"last"``.
    kernel : str
        Name of the kernel; if empty, the kernel that the backend chooses.
    maker : str
        ``"ours"``, ``"prepacked"`` (ours with packed weights), ``"symbolic"`` (ours with symbolic
        sizes), ``"tf32x3"`` (ours with products by TF32) or ``"stock"``.
    place : int
        Rank of the plan by estimate; the backend chooses rank 0.
    offsets : tuple of int
        Bytes behind an aligned address at which the operands and the result begin.
    one_sign : bool
        Operands are magnitudes, so that errors of truncated sums accumulate.
    """

    case: Case
    kind: str
    dtype: str = "float32"
    channels: str = "first"
    kernel: str = ""
    maker: str = "ours"
    place: int = 0
    offsets: tuple[int, int, int] = (0, 0, 0)
    one_sign: bool = False

    @property
    def key(self) -> str:
        """Unique name of the request."""
        begins = [f"begins at {self.offsets}"] if any(self.offsets) else []
        return "/".join([self.code, *begins, *(["one sign"] if self.one_sign else [])])

    @property
    def code(self) -> str:
        """Unique name of its kernels, which do not depend on the values or begins of operands."""
        maker = f"{self.maker} {self.place}" if self.place else self.maker
        parts = (self.case.name, self.kind, self.dtype, self.channels, self.kernel, maker)
        return "/".join(part or "-" for part in parts)

    @property
    def geometry(self) -> Geometry:
        """Geometry of the operator."""
        return self.case.geometry_of(self.kind)

    @property
    def layouts(self) -> Layouts:
        """Layouts in which x, w and y are stored."""
        return layouts_of(self.geometry.rank, channels_last=self.channels == "last")

    @property
    def roles(self) -> str:
        """Roles of the operands, and of the result."""
        return OPERANDS[self.kind] + RESULT[self.kind]

    @property
    def problem(self) -> Convolution:
        """Problem that is built, with known sizes."""
        return Convolution(
            self.kind,
            self.geometry.as_rank3(),
            self.layouts,
            self.case.n,
            (self.dtype,) * 3,
            prepacked=self.maker == "prepacked",
        )

    def plan(self, machine: GpuMachine) -> Plan:
        """Return the plan of the backend, or the plan of rank `place` of the named kernel.

        Raises
        ------
        ValueError
            If that kernel does not support the problem, or there are fewer plans.
        """
        if not self.kernel and not self.place and self.maker != "tf32x3":
            return choose(self.problem, machine)
        return self.rated(machine)[1]

    def rated(self, machine: GpuMachine) -> tuple[float, Plan]:
        """Return the plan with its estimated nanoseconds.

        Raises
        ------
        ValueError
            As :meth:`plan`.
        """
        machine = replace(machine, multiplies_tf32=self.maker == "tf32x3")
        found = sorted(
            (
                one
                for one in KERNELS.candidates(self.problem, machine)
                if self.kernel in ("", KERNELS.of_plan(one[1]).name)
            ),
            key=lambda one: one[0],
        )
        if self.place >= len(found):
            raise ValueError(f"there are {len(found)} plans")
        return found[self.place]

    def stored(self, role: str) -> tuple[int, ...]:
        """Return the shape of x, w or y as it is stored."""
        return stored_shape(self.geometry, self.case.n, self.layouts, role)

    @property
    def moved(self) -> int:
        """Number of elements of the operands and of the result."""
        return sum(prod(self.case.shape(role)) for role in "xwy")


def makers(request: Request, plans: int = 0) -> list[Request]:
    """Return the requests that are compiled for a timed one, including `plans` other plans."""
    made = [replace(request, maker=maker) for maker in ("ours", "prepacked", "stock")]
    return made + [replace(request, place=place) for place in PLACES[:plans]]


TELLING = (
    "dcgan0_n1", "dcgan3_n1", "dcgan1_n16", "dcgan3_n16", "unet_up1", "unet_up4", "pose1",
    "fsrcnn_x2", "cyclegan_up1", "hifigan_up1", "depthwise_up", "unet3d_up", "b8_3x3_28",
    "stem_7x7",
)  # fmt: skip
"""Cases that together use every kernel, few and many channels, one image and many."""


def timed(cases: Sequence[Case], dtypes: Sequence[str], kinds: Sequence[str]) -> Iterator[Request]:
    """Yield all requests that are timed, first the cases of `TELLING` in all dtypes."""
    first = [case for case in cases if case.name in TELLING]
    for some in (first, [case for case in cases if case.name not in TELLING]):
        for dtype, channels in FORMATS:
            for case in some:
                if dtype in dtypes and (channels == "first" or case.geometry.rank > 1):
                    yield from (Request(case, kind, dtype, channels) for kind in kinds)


def smoke(requests: Sequence[Request]) -> list[Request]:
    """Return the first request of each kernel and dtype, with known and symbolic sizes; then those
    whose operands are of one sign; then, for each layout, those that begin at any address.
    """
    first: dict[tuple[str, ...], Request] = {}
    signs: dict[tuple[str, ...], Request] = {}
    layouts: dict[tuple[str, ...], Request] = {}
    for request in requests:
        key = (request.kernel, request.maker, request.dtype)
        if request.one_sign:
            signs.setdefault((*key, request.kind), request)
        else:
            first.setdefault(key, request)
            layouts.setdefault((*key, request.channels), request)
    begins = [one for request in layouts.values() for one in misaligned(request)]
    return [*first.values(), *signs.values(), *begins]


def misaligned(request: Request) -> Iterator[Request]:
    """Yield the request with one operand, or the result, at an address that no vector can use."""
    for offset in (2, 4, 8):
        if offset % byte_width(request.dtype) == 0:
            for role in range(3):
                x, w, y = (offset if role == one else 0 for one in range(3))
                yield replace(request, offsets=(x, w, y))


def checked(machine: GpuMachine, dtypes: Iterable[str]) -> Iterator[Request]:
    """Yield small requests that together use every kernel, operator, rank and dtype."""
    for case in _grid():
        for kind in KINDS:
            for dtype in dtypes:
                for channels in ("first", "last"):
                    if dtype == "bfloat16" and not machine.has_bfloat16:
                        continue
                    # Variants that differ from float32 or float16 in few lines are tested less
                    # often.
                    if dtype in ("bfloat16", "float64") and case.geometry.rank != 2:
                        continue
                    if channels == "last" and case.geometry.rank == 1:
                        continue
                    yield from _of_all_kernels(Request(case, kind, dtype, channels), machine)
    for kind, case in _long_sums():
        for dtype in dtypes:
            if dtype != "bfloat16" or machine.has_bfloat16:
                for channels in ("first", "last"):
                    request = Request(case, kind, dtype, channels, one_sign=True)
                    yield from _of_all_kernels(request, machine)


def spread(requests: Iterable[Request]) -> list[Request]:
    """Return requests interleaved by group, so that the first of them use all kernels."""
    turns: dict[tuple[str, ...], int] = {}
    placed = []
    for request in requests:
        group = (request.kernel, request.maker, request.kind, request.dtype, request.channels)
        turns[group] = turns.get(group, 0) + 1
        placed.append((turns[group], request))
    return [request for _, request in sorted(placed, key=lambda one: one[0])]


def _of_all_kernels(request: Request, machine: GpuMachine) -> Iterator[Request]:
    served = _served(request, machine)
    yield from (replace(request, kernel=name) for name in served)
    if request.dtype == "float32" and machine.has_mma:
        for name in _served(request, replace(machine, multiplies_tf32=True)):
            if name not in served:
                yield replace(request, kernel=name, maker="tf32x3")
    if (
        served
        and not request.one_sign
        and request.channels == "first"
        and request.dtype in ("float32", "float16")
    ):
        yield replace(request, maker="symbolic")


def _served(request: Request, machine: GpuMachine) -> list[str]:
    """Return the kernels that support a request."""
    names = {KERNELS.of_plan(plan).name for _, plan in KERNELS.candidates(request.problem, machine)}
    return [kernel.name for kernel in KERNELS if kernel.name in names]


def _long_sums() -> Iterator[tuple[str, Case]]:
    """Yield an operator for each kind whose sums have 9,216 terms."""
    for kind, n, c, k, size in (
        ("conv", 1, 1024, 32, 8),
        ("conv_transpose", 1, 32, 1024, 8),
        ("conv_weight_grad", 16, 16, 32, 24),
    ):
        geometry = Geometry.of_conv(kind, (n, c, size, size), (k, c, 3, 3), padding=1)
        yield kind, Case(f"long sums of {kind}", "conv", n, geometry)


def _grid() -> Iterator[Case]:
    """Yield geometries of all ranks: strides, dilation, groups, uneven padding, no taps."""
    sizes = {1: (37,), 2: (13, 18), 3: (5, 6, 9)}
    for rank, size in sizes.items():
        for name, c, k, options in (
            ("plain", 24, 40, {"kernel": 3, "padding": 1}),
            ("stride 2", 16, 33, {"kernel": 4, "stride": 2, "padding": 1}),
            ("stride 3, kernel 2", 8, 16, {"kernel": 2, "stride": 3}),
            ("dilation", 16, 16, {"kernel": 3, "dilation": 2, "padding": 2}),
            ("groups", 32, 64, {"kernel": 3, "groups": 4, "stride": 2, "padding": 1}),
            ("depthwise", 20, 20, {"kernel": 3, "groups": 20, "padding": 1}),
            ("few channels", 3, 64, {"kernel": 4, "stride": 2, "padding": 1}),
        ):
            kernel = (options["kernel"],) * rank
            rest = {name: value for name, value in options.items() if name != "kernel"}
            w = (k, c // options.get("groups", 1), *kernel)
            geometry = Geometry.of_conv(name, (2, c, *size), w, **rest)
            yield Case(f"{name} {rank}-d", "conv", 2, geometry)
