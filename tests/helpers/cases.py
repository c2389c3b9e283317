# SPDX-License-Identifier: Apache-2.0
"""One operator call as data, what it must give, and random ones by Hypothesis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from topi_ext.spec.geometry import Geometry

from . import compare, oracle

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Case:
    """A call of ``conv{rank}d`` or ``conv{rank}d_transpose`` by its attributes.

    Layouts are the operator's own: I counts channels of the data, O channels of the result, and
    an empty string is the canonical one. `padding` is before every axis, then after.
    """

    op: str
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    n: int = 2
    ins: int = 2
    outs: int = 3
    groups: int = 1
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    dtype: str = "float32"
    out_dtype: str = ""

    def __post_init__(self) -> None:
        assert self.ins % self.groups == self.outs % self.groups == 0
        for name, default in (("stride", 1), ("dilation", 1), ("output_padding", 0)):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * self.rank)
        if not self.padding:
            object.__setattr__(self, "padding", (0,) * 2 * self.rank)

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def transposed(self) -> bool:
        return self.op == "conv_transpose"

    @property
    def name(self) -> str:
        """The operator's name in Relax, without ``relax.nn.``."""
        return f"conv{self.rank}d" + "_transpose" * self.transposed

    @property
    def data_canonical(self) -> str:
        return "NC" + SPATIAL[self.rank]

    @property
    def kernel_canonical(self) -> str:
        return ("IO" if self.transposed else "OI") + SPATIAL[self.rank]

    @property
    def layouts(self) -> tuple[str, str, str]:
        """Return the layouts of data, weight and result as stored; the result's defaults to the
        data's."""
        data = self.data_layout or self.data_canonical
        return data, self.kernel_layout or self.kernel_canonical, self.out_layout or data

    @property
    def dtypes(self) -> tuple[str, str, str]:
        return self.dtype, self.dtype, self.out_dtype or self.dtype

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Canonical: ``(n, in channels, *size)``."""
        return (self.n, self.ins, *self.size)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Canonical: ``(in, out // groups, *kernel)`` or ``(out, in // groups, *kernel)``."""
        if self.transposed:
            return (self.ins, self.outs // self.groups, *self.kernel)
        return (self.outs, self.ins // self.groups, *self.kernel)

    @property
    def out_size(self) -> tuple[int, ...]:
        """PyTorch's formulas."""
        before, after = self.padding[: self.rank], self.padding[self.rank :]
        axes = zip(self.size, self.kernel, self.stride, self.dilation, self.output_padding)
        if self.transposed:
            full = [(i - 1) * s + d * (k - 1) + 1 + o for i, k, s, d, o in axes]
            return tuple(f - b - a for f, b, a in zip(full, before, after))
        return tuple(
            (i + b + a - d * (k - 1) - 1) // s + 1
            for (i, k, s, d, _), b, a in zip(axes, before, after)
        )

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Canonical."""
        return (self.n, self.outs, *self.out_size)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the canonical shapes of data, weight and result."""
        return self.data_shape, self.weight_shape, self.out_shape

    @property
    def terms(self) -> int:
        """Products in one element of the result, at most."""
        return self.ins // self.groups * math.prod(self.kernel)

    @property
    def weight_terms(self) -> int:
        """Products in one element of the weight's gradient, at most."""
        return self.n * math.prod(self.size if self.transposed else self.out_size)

    @property
    def data_terms(self) -> int:
        """Products in one element of the data's gradient, at most."""
        return self.outs // self.groups * math.prod(self.kernel)

    def attributes(self) -> dict[str, Any]:
        """Keyword arguments of the Relax operator, as a user would state them."""
        stated = dict(
            strides=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups
        )
        if self.transposed:
            stated["output_padding"] = self.output_padding
        for name in ("data_layout", "kernel_layout", "out_layout", "out_dtype"):
            if getattr(self, name):
                stated[name] = getattr(self, name)
        return stated

    def forward(self, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The result in float64, all three canonical."""
        if self.transposed:
            return oracle.conv_transpose(
                data,
                weight,
                self.stride,
                self.padding,
                self.output_padding,
                self.dilation,
                self.groups,
            )
        return oracle.conv(data, weight, self.stride, self.padding, self.dilation, self.groups)

    def arrays(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Random operands of the case's dtype, canonical."""
        return numbers(rng, self.data_shape, self.dtype), numbers(
            rng, self.weight_shape, self.dtype
        )

    def stored(self, array: np.ndarray, which: int) -> np.ndarray:
        """Store a canonical array as the layout number `which` of :attr:`layouts` says."""
        canonical = (self.data_canonical, self.kernel_canonical, self.data_canonical)[which]
        return np.ascontiguousarray(oracle.permute(array, canonical, self.layouts[which]))

    def opened(self, array: np.ndarray, which: int) -> np.ndarray:
        """Undo :meth:`stored`."""
        canonical = (self.data_canonical, self.kernel_canonical, self.data_canonical)[which]
        return oracle.permute(array, self.layouts[which], canonical)

    def check(self, got: np.ndarray, data: np.ndarray, weight: np.ndarray) -> None:
        """Compare a canonical result with the oracle's."""
        want = self.forward(oracle.tensor(data), oracle.tensor(weight)).numpy()
        size = self.forward(oracle.tensor(data).abs(), oracle.tensor(weight).abs()).numpy()
        compare.assert_close(got, want, size, self.terms, dtypes=self.dtypes, what=self)

    def with_(self, **changes: Any) -> Case:
        return replace(self, **changes)


def permutations(op: str, rank: int) -> tuple[list[str], list[str]]:
    """Return the permutations of data and of kernel, in the operator's own letters."""
    kernel = ("IO" if op == "conv_transpose" else "OI") + SPATIAL[rank]
    data, weight = (
        ["".join(p) for p in itertools.permutations(letters)]
        for letters in ("NC" + SPATIAL[rank], kernel)
    )
    return data, weight


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Random numbers in which a wrong element shows: normal, or the whole range of an int8."""
    if "int" in dtype:
        low = 0 if dtype.startswith("u") else -128
        return rng.integers(low, low + 256, shape).astype(dtype)
    return rng.standard_normal(shape).astype(compare.numpy_dtype(dtype))


@st.composite
def cases(
    draw: st.DrawFn,
    op: str,
    rank: int,
    *,
    channels: Sequence[int] = (1, 2, 3),
    groups: Sequence[int] = (1, 2, 3),
    size: int = 6,
    batches: Sequence[int] = (1, 2),
    dtype: str = "float32",
) -> Case:
    """Any call with a positive output size: every combination that PyTorch takes, and beyond it.

    `channels` are those of one group on either side.
    """

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    group = draw(st.sampled_from(groups))
    kernel = axes(1, 4 if rank < 3 else 3)
    stride = axes(1, 4 if rank < 3 else 3)
    dilation = axes(1, 3)
    data = axes(1, size)
    extra = tuple(
        draw(st.integers(0, max(s, d) - 1)) if op == "conv_transpose" else 0
        for s, d in zip(stride, dilation)
    )
    before, after = [], []
    for i, k, s, d, o in zip(data, kernel, stride, dilation, extra):
        reach = d * (k - 1)
        if op == "conv_transpose":
            # The output has what is left of `room`; one element at least.
            room = (i - 1) * s + reach + 1 + o
            before.append(draw(st.integers(-2, min(reach + 2, room))))
            after.append(draw(st.integers(-2, min(reach + 2, room - 1 - before[-1]))))
        else:
            # The window must fit at least once.
            before.append(draw(st.integers(-min(2, i), reach + 2)))
            lack = reach + 1 - i - before[-1]
            after.append(draw(st.integers(max(lack, -2), max(lack, reach + 2))))
    return Case(
        op,
        data,
        kernel,
        n=draw(st.sampled_from(batches)),
        ins=group * draw(st.sampled_from(channels)),
        outs=group * draw(st.sampled_from(channels)),
        groups=group,
        stride=stride,
        padding=(*before, *after),
        output_padding=extra,
        dilation=dilation,
        dtype=dtype,
    )


any_case = st.one_of(*(cases(op, rank) for op in ("conv", "conv_transpose") for rank in (1, 2, 3)))


def geometry_of(case: Case) -> Geometry:
    """The geometry under test, through the constructor that belongs to the operator."""
    attributes: dict[str, Any] = dict(
        stride=case.stride, padding=case.padding, dilation=case.dilation, groups=case.groups
    )
    if case.transposed:
        return Geometry.of_conv_transpose(
            case.name,
            case.data_shape,
            case.weight_shape,
            output_padding=case.output_padding,
            **attributes,
        )
    return Geometry.of_conv(case.name, case.data_shape, case.weight_shape, **attributes)
