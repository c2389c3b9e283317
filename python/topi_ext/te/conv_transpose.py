# SPDX-License-Identifier: Apache-2.0
"""Transposed convolution in TE: any rank, permuted layouts, and no product with an inserted zero.

Along one axis, position ``o`` of the output meets tap ``r`` and position ``p`` of the data where
``o + pad_before = dilation*r + stride*p``.  Divided by the common factor of both, with
``spread = dilation / common`` and ``step = stride / common`` ::

    v = (o + pad_before) / common = spread*r + step*p

The taps of one position are ``r = first + step*t``, and ``first`` is below `step`.  So with
``m = p + spread*t`` ::

    v = spread*first + step*m
    phases[m, first] = sum over t of data[m - spread*t] * weight[first + step*t]

This reduction has no condition and no division, and without groups it is a matrix product, of
``(batch, m)`` by ``(output channel, first)``, which rules for GPUs recognise.  A second, cheap step
interleaves the phases: it reads the place of every ``o``, and is zero where no tap meets it.

TE and the standard library only.  Batch, channels and sizes may be symbolic, kernels may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from tvm import te


def conv_transpose(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_layout: str = "",
    out_dtype: str | None = None,
) -> te.Tensor:
    """Transposed convolution of rank 1, 2 or 3 in any permuted layout.

    Sums of float16 and bfloat16 are made in float32.

    Parameters
    ----------
    data : te.Tensor
        ``[batch, in_channel, *in_size]`` in the order of `data_layout`.

    weight : te.Tensor
        ``[in_channel, out_channel // groups, *kernel_size]`` in the order of `kernel_layout`.

    strides, output_padding, dilation : Sequence[int]
        One value for each spatial axis.

    padding : Sequence[int]
        One value for each spatial axis, or those before all axes and then those after.

    groups : int
        Number of groups.

    data_layout, kernel_layout, out_layout : str
        Permutations of N, C and of I, O with the spatial letters. `out_layout` is `data_layout` if
        left out.

    out_dtype : str, optional
        The dtype of `data` if left out.

    Returns
    -------
    output : te.Tensor
        ``[batch, out_channel, *out_size]`` in the order of `out_layout`.
    """
    window = strides, padding, output_padding, dilation, groups
    layouts = data_layout, kernel_layout, out_layout
    plan = ConvTranspose.of(data.shape, weight.shape, *window, *layouts)
    out_dtype = str(out_dtype or data.dtype)
    acc_dtype = "float32" if out_dtype in ("float16", "bfloat16") else out_dtype
    return plan.interleave(plan.phases(data, weight, acc_dtype), out_dtype)


@dataclass(frozen=True)
class PhaseAxis:
    """One spatial axis: which tap and position of the data an output position meets.

    Parameters
    ----------
    size : int or symbolic
        Size of the output.
    """

    kernel: int
    stride: int
    dilation: int
    pad_before: int
    size: Any

    @property
    def common(self) -> int:
        """Greatest common factor of stride and dilation: other positions meet no tap."""
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """Distance of neighbouring taps of a phase."""
        return self.stride // self.common

    @property
    def spread(self) -> int:
        """Distance of the positions of the data that neighbouring taps of a phase read."""
        return self.dilation // self.common

    @property
    def phases(self) -> int:
        """Phases that have taps."""
        return min(self.step, self.kernel)

    @property
    def terms(self) -> int:
        """Taps of a phase, of some the last one missing."""
        return -(-self.kernel // self.step)

    @property
    def is_uneven(self) -> bool:
        """Return whether some phases miss the last term."""
        return self.kernel % self.step != 0 and self.terms > 1

    def misses(self, phase: Any, term: Any) -> Any:
        """Return 1 on an uneven axis where `phase` has no such `term`, otherwise 0."""
        last = self.terms - 1
        is_last = term if last == 1 else te.floordiv(term, last)
        whole = self.kernel - self.step * last
        return te.floordiv(phase + self.step - whole, self.step) * is_last

    @property
    def reach(self) -> int:
        """Return how far apart the first and the last term of a phase read."""
        return self.spread * (self.terms - 1)

    @property
    def low(self) -> int:
        """The smallest ``m`` that is computed."""
        first = -(-self.pad_before // self.common) - self.spread * (self.phases - 1)
        return min(-(-first // self.step), self.pad_before // self.common // self.step)

    @property
    def count(self) -> Any:
        """Return how many values of ``m`` are computed, at least one."""
        return (self.pad_before + self.size - 1) // self.common // self.step - self.low + 1

    def place(self, o: Any) -> tuple[Any, Any, list[Any]]:
        """Return the number of ``m``, phase, and the conditions under which ``o`` meets a tap at
        all.
        """
        position = o + self.pad_before
        v = te.floordiv(position, self.common) if self.common > 1 else position
        conditions = []
        if self.common > 1:
            conditions.append(te.floormod(position, self.common) == 0)
        if self.step == 1:
            return v - self.low, 0, conditions
        inverse = pow(self.spread, -1, self.step)
        first = te.floormod(v * inverse, self.step)
        if self.phases < self.step:
            conditions.append(first < self.phases)
        # The division takes the remainder off by itself.
        whole = v if self.spread == 1 else v - first * self.spread
        m = te.floordiv(whole, self.step)
        return m - self.low, first, conditions


@dataclass(frozen=True)
class ConvTranspose:
    """A transposed convolution in two steps, as one compute or as two functions.

    Rules that schedule a reduction with what follows it may be unable to take the interleaving in:
    they are served by a function for each step.

    Parameters
    ----------
    axes : tuple of PhaseAxis
        In the order of D, H, W.
    data_layout, kernel_layout, out_layout : str
        Permutations of N, C and of I, O with the spatial letters.
    """

    axes: tuple[PhaseAxis, ...]
    groups: int
    data_layout: str
    kernel_layout: str
    out_layout: str

    @classmethod
    def of(
        cls,
        data_shape: Sequence[Any],
        weight_shape: Sequence[Any],
        strides: Sequence[int],
        padding: Sequence[int],
        output_padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        data_layout: str,
        kernel_layout: str,
        out_layout: str = "",
    ) -> ConvTranspose:
        """Read attributes; see :func:`conv_transpose`."""
        spatial = _spatial(data_layout)
        before, after = padding[: len(spatial)], padding[-len(spatial) :]
        axes = []
        for i, letter in enumerate(spatial):
            in_size = _size(data_shape[data_layout.index(letter)])
            kernel, stride = int(weight_shape[kernel_layout.index(letter)]), int(strides[i])
            window = int(dilation[i]) * (kernel - 1) + 1 - int(before[i]) - int(after[i])
            size = (in_size - 1) * stride + window + int(output_padding[i])
            axes.append(PhaseAxis(kernel, stride, int(dilation[i]), int(before[i]), size))
        return cls(tuple(axes), int(groups), data_layout, kernel_layout, out_layout or data_layout)

    def phases(
        self,
        data: te.Tensor,
        weight: te.Tensor,
        acc_dtype: str,
        extents: Sequence[Any] | None = None,
    ) -> te.Tensor:
        """Return the first step: all products and sums.

        Parameters
        ----------
        extents : sequence, optional
            :meth:`extents` in another form: variables in place of sums.

        Returns
        -------
        te.Tensor
            Sums of dtype `acc_dtype`, with the axes of `out_layout`.  A spatial axis is followed by
            that of its phases, or holds them side by side: see `_are_apart`.
        """
        axes = self._axis_of
        in_channels = self._sized(weight, self.kernel_layout, "I") // self.groups
        out_channels = self._sized(weight, self.kernel_layout, "O")
        apart = self._are_apart(out_channels)
        extents = extents or self.extents(out_channels)
        shape = {
            "N": [self._sized(data, self.data_layout, "N")],
            "C": [out_channels * self.groups],
            **{
                letter: [extent, axis.phases] if apart and axis.phases > 1 else [extent]
                for extent, (letter, axis) in zip(extents, axes.items())
            },
        }
        window, taps = self._window(data), self._whole_phases(weight)
        k = te.reduce_axis((0, in_channels), "k")
        t = {x: te.reduce_axis((0, axis.terms), f"t{x.lower()}") for x, axis in axes.items()}

        def element(*indices: Any) -> Any:
            stored = iter(indices)
            at = {letter: [next(stored) for _ in shape[letter]] for letter in self.out_layout}
            ((n,), (c,)) = at["N"], at["C"]
            first = c // out_channels * in_channels if self.groups > 1 else 0
            read = {"N": n, "C": first + k}
            tap = {"I": first + k, "O": c % out_channels if self.groups > 1 else c}
            missing: list[Any] = []
            for letter, axis in axes.items():
                m, phase = _apart(at[letter], axis.phases)
                read[letter] = m + axis.reach - t[letter] * axis.spread
                tap[letter] = phase + t[letter] * axis.step
                if axis.is_uneven:
                    missing.append(axis.misses(phase, t[letter]))
            plane = [sum(missing)] if missing else []
            return te.sum(
                window(*plane, *(read[x] for x in self.data_layout)).astype(acc_dtype)
                * taps(*(tap[x] for x in self.kernel_layout)).astype(acc_dtype),
                axis=[k, *t.values()],
            )

        sizes = [size for letter in self.out_layout for size in shape[letter]]
        return te.compute(sizes, element, name=f"conv{len(self.axes)}d_transpose")

    def extents(self, out_channels: Any) -> list[Any]:
        """Extents of the spatial axes of :meth:`phases`, those of phases left out.

        Parameters
        ----------
        out_channels : int or symbolic
            Output channels of a group.
        """
        apart = self._are_apart(out_channels)
        return [axis.count if apart else axis.count * axis.phases for axis in self.axes]

    def interleave(self, phases: te.Tensor, out_dtype: str) -> te.Tensor:
        """Return the second step: each phase at its positions, zeros where no tap meets, the dtype.

        Parameters
        ----------
        phases : te.Tensor
            Result of :meth:`phases`; returned unchanged if the stride is 1 and the dtype is
            correct.
        """
        if all(axis.stride == 1 for axis in self.axes):
            if phases.dtype == out_dtype:
                return phases
            return te.compute(
                phases.shape, lambda *i: phases(*i).astype(out_dtype), "cast", tag="elemwise"
            )
        apart = len(phases.shape) > len(self.out_layout)
        axes = self._axis_of
        sizes = iter(phases.shape)
        shape = []
        for letter in self.out_layout:
            stored = next(sizes)
            shape.append(axes[letter].size if letter in axes else stored)
            if apart and letter in axes and axes[letter].phases > 1:
                next(sizes)

        def element(*indices: Any) -> Any:
            places, conditions = [], []
            for letter, index in zip(self.out_layout, indices):
                if letter not in axes:
                    places.append(index)
                    continue
                axis = axes[letter]
                m, phase, tests = axis.place(index)
                several = axis.phases > 1
                places += [m, phase] if several and apart else [m * axis.phases + phase]
                conditions += tests
            value = phases(*places).astype(out_dtype)
            if not conditions:
                return value
            return te.if_then_else(te.all(*conditions), value, te.const(0, out_dtype))

        return te.compute(shape, element, name="interleave", tag="injective")

    @property
    def _axis_of(self) -> dict[str, PhaseAxis]:
        return dict(zip(_spatial(self.data_layout), self.axes))

    def _are_apart(self, out_channels: Any) -> bool:
        """Return whether phases have axes of their own, so that rules for GPUs see a matrix
        product.

        Its columns are output channels and phases.  Of one channel of a group they are so few that
        most of a tile would be empty: side by side with the positions they make no product.
        """
        return self.groups == 1 and not (isinstance(out_channels, int) and out_channels == 1)

    def _window(self, data: te.Tensor) -> te.Tensor:
        """Return the data as far as it is read, with zeros around it.

        Where some phases miss a term, also planes of zeros for it to read: times the zero in place
        of the weight, an infinite element of the data would give NaN.
        """
        axes = self._axis_of
        uneven = sum(axis.is_uneven for axis in self.axes)
        planes = [uneven + 1] if uneven else []
        shape = [
            axes[x].count + axes[x].reach if x in axes else _size(size)
            for x, size in zip(self.data_layout, data.shape)
        ]

        def element(*indices: Any) -> Any:
            where, inside = [], [plane < 1 for plane in indices[: len(planes)]]
            for letter, index, size in zip(self.data_layout, indices[len(planes) :], data.shape):
                if letter in axes:
                    index = index + axes[letter].low - axes[letter].reach
                    inside += [index >= 0, index < size]
                where.append(index)
            return te.if_then_else(te.all(*inside), data(*where), te.const(0, data.dtype))

        return te.compute(planes + shape, element, name="data_window", tag="injective,pad")

    def _whole_phases(self, weight: te.Tensor) -> te.Tensor:
        """Return the weight with as many taps in each phase, those that are missing zero."""
        axes = self._axis_of
        if not any(axis.is_uneven for axis in self.axes):
            return weight
        taps = {
            x: axis.terms * axis.step if axis.is_uneven else axis.kernel for x, axis in axes.items()
        }
        shape = [taps.get(x, _size(size)) for x, size in zip(self.kernel_layout, weight.shape)]

        def element(*indices: Any) -> Any:
            given = [
                index < axes[x].kernel
                for x, index in zip(self.kernel_layout, indices)
                if x in axes and axes[x].is_uneven
            ]
            return te.if_then_else(te.all(*given), weight(*indices), te.const(0, weight.dtype))

        return te.compute(shape, element, name="kernel_phases", tag="injective,pad")

    def _sized(self, tensor: te.Tensor, layout: str, letter: str) -> Any:
        return _size(tensor.shape[layout.index(letter)])


def _spatial(layout: str) -> str:
    return "DHW"[5 - len(layout) :]


def _size(value: Any) -> Any:
    """Return a size as an integer where it is one."""
    return getattr(value, "value", value)


def _apart(stored: Sequence[Any], phases: int) -> tuple[Any, Any]:
    """Position and phase of the stored indices of one axis."""
    if len(stored) == 2:
        return stored[0], stored[1]
    if phases == 1:
        return stored[0], 0
    return te.floordiv(stored[0], phases), te.floormod(stored[0], phases)
