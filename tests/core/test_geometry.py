# SPDX-License-Identifier: Apache-2.0
"""Sizes, phases and refusals of the geometry: plain integers, no TVM."""

from __future__ import annotations

import dataclasses
import itertools
import math
from math import gcd

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.cases import Case, any_case, geometry_of
from topi_ext.spec.axis_access import AxisAccess, Tap
from topi_ext.spec.geometry import Geometry

# ------------------------------------------------------------------------------ sizes


@given(any_case)
def test_sizes_are_pytorchs(case: Case) -> None:
    g = geometry_of(case)
    want = case.forward(torch.zeros(case.data_shape), torch.zeros(case.weight_shape)).shape
    if case.transposed:
        assert (g.y_shape(case.n), g.w_shape) == (case.data_shape, case.weight_shape)
        assert g.x_shape(case.n) == tuple(want)
        assert g.output_padding == case.output_padding
    else:
        assert (g.x_shape(case.n), g.w_shape) == (case.data_shape, case.weight_shape)
        assert g.y_shape(case.n) == tuple(want)
    assert g.padding == case.padding
    assert all(0 <= o < max(s, d) for o, s, d in zip(g.output_padding, g.stride, g.dilation))
    assert (g.rank, g.taps) == (case.rank, math.prod(case.kernel))


@given(any_case)
def test_one_geometry_from_either_side(case: Case) -> None:
    """The geometry of conv(x, w) is that of conv_transpose(y, w) with output_padding."""
    g = geometry_of(case)
    attributes = dict(stride=g.stride, padding=g.padding, dilation=g.dilation, groups=g.groups)
    n = case.n
    assert g == Geometry.of_sizes("op", g.x_shape(n), g.y_shape(n), g.kernel, **attributes)
    back = Geometry.of_conv_transpose(
        "op", g.y_shape(n), g.w_shape, output_padding=g.output_padding, **attributes
    )
    assert g == back and hash(g) == hash(back)
    if all(o < s for o, s in zip(g.output_padding, g.stride)):
        assert g == Geometry.of_conv("op", g.x_shape(n), g.w_shape, **attributes)


@given(any_case)
def test_fitted_needs_no_output_padding(case: Case) -> None:
    g = geometry_of(case)
    f = g.fitted()
    assert f.output_padding == (0,) * g.rank
    assert dataclasses.replace(f, pad_after=g.pad_after) == g
    attributes = dict(stride=f.stride, padding=f.padding, dilation=f.dilation, groups=f.groups)
    assert f == Geometry.of_conv("op", g.x_shape(1), g.w_shape, **attributes)
    assert f == Geometry.of_conv_transpose("op", g.y_shape(1), g.w_shape, **attributes)


@given(any_case)
def test_as_rank3_is_the_same_operator(case: Case) -> None:
    g = geometry_of(case)
    g3 = g.as_rank3()
    extra = (1,) * (3 - g.rank)
    assert g3.rank == 3
    assert g3.x_shape(2) == (2, g.c, *extra, *g.x_size)
    assert g3.y_shape(2) == (2, g.k, *extra, *g.y_size)
    assert g3.output_padding == (0,) * len(extra) + g.output_padding
    assert g3.kernel == extra + g.kernel
    for axis, taps in enumerate(g.kernel):
        does_nothing = {"dilation": taps == 1, "stride": g.y_size[axis] == 1}
        for name, nothing in does_nothing.items():
            step, least_step = getattr(g, name)[axis], getattr(g3, name)[len(extra) + axis]
            assert least_step <= step if nothing else least_step == step
    for unit in g3.accesses(transposed=True)[: len(extra)]:
        assert unit == AxisAccess(True, 1, 1, 1, 0)
    assert g3.as_rank3() == g3


def test_one_int_stands_for_every_axis() -> None:
    short = Geometry.of_conv_transpose(
        "op", (1, 2, 5, 5), (2, 1, 3, 3), stride=2, padding=1, output_padding=1, dilation=3
    )
    long = Geometry.of_conv_transpose(
        "op",
        (1, 2, 5, 5),
        (2, 1, 3, 3),
        stride=(2, 2),
        padding=(1, 1, 1, 1),
        output_padding=(1, 1),
        dilation=(3, 3),
    )
    two = Geometry.of_conv_transpose(
        "op", (1, 2, 5, 5), (2, 1, 3, 3), stride=[2], padding=(1, 1), output_padding=1, dilation=3
    )
    assert short == long == two


def test_a_geometry_cannot_change() -> None:
    g = Geometry.of_conv("op", (1, 2, 5), (2, 2, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        g.stride = (2,)  # type: ignore[misc]


class Symbol:
    """An opaque size: remembers what is done to it, and can be worked out later."""

    def __init__(self, of):
        self.of = of

    def __add__(self, other):
        return Symbol(lambda v: self.of(v) + at(other, v))

    def __sub__(self, other):
        return Symbol(lambda v: self.of(v) - at(other, v))

    def __mul__(self, other):
        return Symbol(lambda v: self.of(v) * at(other, v))

    def __floordiv__(self, other):
        return Symbol(lambda v: self.of(v) // at(other, v))

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self):
        raise AssertionError("a symbolic size was taken for a condition")

    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: self.__bool__()
    __hash__ = None


def at(size, value):
    """Work out a size, symbolic or not."""
    return size.of(value) if isinstance(size, Symbol) else size


@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
def test_symbolic_sizes_follow_the_same_formulas(op: str) -> None:
    case = Case(
        op, (7, 5), (3, 2), stride=(2, 3), padding=(1, 0, 2, 1), dilation=(2, 1),
        output_padding=(1, 2) if op == "conv_transpose" else (),
    )  # fmt: skip
    n, h = Symbol(lambda v: 2), Symbol(lambda v: v)
    attributes = dict(stride=case.stride, padding=case.padding, dilation=case.dilation)
    if op == "conv":
        g = Geometry.of_conv(op, (n, 2, h, 5), case.weight_shape, **attributes)
    else:
        g = Geometry.of_conv_transpose(
            op, (n, 2, h, 5), case.weight_shape, output_padding=case.output_padding, **attributes
        )
    for value in (7, 8, 11, 30):
        other = geometry_of(case.with_(size=(value, 5)))
        assert tuple(at(s, value) for s in g.x_size) == other.x_size
        assert tuple(at(s, value) for s in g.y_size) == other.y_size
        assert tuple(at(s, value) for s in g.output_padding) == other.output_padding


# ------------------------------------------------------------------------------ phases

axis = st.tuples(st.integers(1, 7), st.integers(1, 6), st.integers(1, 5), st.integers(-3, 9))


def meetings(kernel: int, stride: int, dilation: int, pad: int, bound: int = 40) -> set:
    """All (i of x, r of w, p of y) with ``i == stride*p - pad + dilation*r``, by definition."""
    return {
        (stride * p - pad + dilation * r, r, p) for p in range(-bound, bound) for r in range(kernel)
    }


@given(axis)
def test_phases_of_conv_transpose_list_every_meeting_once(parameters) -> None:
    gather = AxisAccess(True, *parameters)
    stride = parameters[1]
    assert [phase.offset for phase in gather.phases] == list(range(stride))
    assert (gather.out_step, gather.in_step) == (stride, 1)
    found = [
        (stride * j + phase.offset, tap.index, j + tap.shift)
        for phase in gather.phases
        for tap in phase.taps
        for j in range(-10, 10)
    ]
    assert len(found) == len(set(found))
    want = {m for m in meetings(*parameters) if -10 <= m[0] // stride < 10}
    assert set(found) == want


@pytest.mark.parametrize("spread", [False, True])
@given(axis)
def test_phase_of_conv_lists_every_meeting_once(spread: bool, parameters) -> None:
    gather = AxisAccess(False, *parameters, spread)
    stride = parameters[1]
    (phase,) = gather.phases
    assert (gather.out_step, gather.in_step, phase.offset) == (1, stride, 0)
    found = [
        (stride * (j + tap.shift) + tap.residue, tap.index, j)
        for tap in phase.taps
        for j in range(-10, 10)
    ]
    assert len(found) == len(set(found))
    assert set(found) == {m for m in meetings(*parameters) if -10 <= m[2] < 10}
    if spread:  # no plane is read with a shift
        assert all(tap.shift == 0 for tap in phase.taps)
    else:
        assert all(0 <= tap.residue < stride for tap in phase.taps)
    # Each residue that taps read has one slot, numbered from 0.
    assert gather.slots == len({tap.residue for tap in phase.taps})
    for tap in phase.taps:
        assert 0 <= gather.slot_of(tap.index) < gather.slots
        assert gather.residue_of(gather.slot_of(tap.index)) == tap.residue


@given(axis, st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_positions_whose_tap_meets_data(parameters, positions, size, transposed) -> None:
    """All of them and no other, by trying each."""
    kernel, stride, dilation, pad = parameters
    gather = AxisAccess(transposed, kernel, 1 if transposed else stride, dilation, pad)
    assert gather.is_plain
    for tap in range(kernel):
        first, end = gather.meets(tap, positions, size)
        reads = {p: gather.reads_at(tap, p) for p in range(positions)}
        for p, at in reads.items():
            assert ((at, tap, p) if not transposed else (p, tap, at)) in meetings(
                kernel, gather.stride, dilation, pad, 400
            )
        assert list(range(first, end)) == [p for p, at in reads.items() if 0 <= at < size]


@given(axis)
def test_taps_of_a_phase_step_by_the_gcd(parameters) -> None:
    """The formula of docs/developer/maths.md: taps r0 + t*(s/g), input index stepping by d/g."""
    _, stride, dilation, pad = parameters
    common = gcd(stride, dilation)
    gather = AxisAccess(True, *parameters)
    assert gather.tap_step == stride // common
    for phase in gather.phases:
        for one, other in zip(phase.taps, phase.taps[1:]):
            assert other.index - one.index == stride // common
            assert one.shift - other.shift == dilation // common
        if phase.taps:
            assert phase.taps[0].index < stride // common
            assert (phase.offset + pad) % common == 0


@pytest.mark.parametrize("transposed", [False, True])
@given(parameters=axis)
def test_groups_and_closed_form_are_the_table(transposed: bool, parameters) -> None:
    gather = AxisAccess(transposed, *parameters)
    assert len(gather.groups) <= 2
    found = {}
    for group in gather.groups:
        for first in range(group.first_tap, group.first_tap + group.phases):
            offset = gather.phase_of(first)
            assert offset not in found
            indices = [first + t * gather.tap_step for t in range(group.taps)]
            shifts = [gather.shift_of(offset, r) for r in indices]
            residues = [gather.residue_of(gather.slot_of(r)) for r in indices]
            found[offset] = tuple(map(Tap, indices, residues, shifts))
            if transposed:
                steps = {other - one for one, other in itertools.pairwise(shifts)}
                assert steps <= {gather.shift_step}
    assert found == {phase.offset: phase.taps for phase in gather.phases if phase.taps}
    for phase in gather.phases:
        first = gather.first_tap_of(phase.offset)
        assert first == phase.taps[0].index if phase.taps else first >= gather.kernel
    assert gather.has_empty_phase == (len(found) < len(gather.phases))
    taps = [tap for phase in gather.phases for tap in phase.taps]
    assert len(taps) == gather.kernel
    shifts = [tap.shift for tap in taps]
    assert (gather.first_shift, gather.last_shift) == (min(shifts), max(shifts))


# ------------------------------------------------------------------------------ refusals

T = Geometry.of_conv_transpose
C = Geometry.of_conv
S = Geometry.of_sizes


@pytest.mark.parametrize(
    ("make", "arguments", "attributes", "line"),
    [
        (C, ((2, 3), (3, 3)), {}, "data has 2 axes, must have 3, 4 or 5"),
        (C, ((2,) * 6, (2,) * 6), {}, "data has 6 axes, must have 3, 4 or 5"),
        (C, ((1, 2, 5), (2, 2, 3, 3)), {}, "operands have 3 and 4 axes, must have equally many"),
        (C, ((1, 3, 5), (2, 2, 3)), {}, "channels=2 must equal data channels/groups=3/1"),
        (C, ((1, 6, 5), (2, 2, 3)), {"groups": 2}, "must equal data channels/groups=6/2"),
        (C, ((1, 3, 5), (4, 1, 3)), {"groups": 2}, "groups=2 must divide the channels 3 and 4"),
        (C, ((1, 4, 5), (3, 2, 3)), {"groups": 2}, "groups=2 must divide the channels 4 and 3"),
        (C, ((1, 2, 5), (2, 2, 3)), {"groups": 0}, "groups=0 must be at least 1"),
        (C, ((1, 2, 5), (2, 2, 3)), {"stride": 0}, "stride=(0,) must be at least 1"),
        (C, ((1, 2, 5), (2, 2, 3)), {"stride": -1}, "stride=(-1,) must be at least 1"),
        (C, ((1, 2, 5), (2, 2, 3)), {"dilation": 0}, "dilation=(0,) must be at least 1"),
        (C, ((1, 2, 5), (2, 2, 0)), {}, "kernel size=0 must be at least 1"),
        (C, ((1, 2, 5), (2, 2, 3)), {"stride": (1, 1)}, "stride=(1, 1) must have 1 value"),
        (C, ((1, 2, 5, 5), (2, 2, 3, 3)), {"padding": (1, 2, 3)},
         "padding=(1, 2, 3) must have 1, 2 or 4 values"),
        (C, ((1, 2, 2), (2, 2, 3)), {}, "output size=(0,) must be at least 1 on every axis"),
        (C, ((1, 2, 0), (2, 2, 1)), {}, "data size=(0,) must be at least 1 on every axis"),
        (T, ((1, 3, 5), (2, 2, 3)), {}, "weight input channels=2 must equal data channels=3"),
        (T, ((1, 3, 5), (3, 0, 3)), {}, "weight output channels=0 must be at least 1"),
        (T, ((1, 3, 5), (3, 2, 3)), {"groups": 2}, "groups=2 must divide the channels 4 and 3"),
        (T, ((1, 2, 1, 1), (2, 2, 1, 1)), {"padding": 3},
         "output size=(-5, -5) must be at least 1 on every axis"),
        (T, ((1, 2, 5, 5), (2, 2, 3, 3)), {"stride": 2, "output_padding": (2, 0)},
         "output_padding=(2, 0) must be at least 0 and smaller than stride=(2, 2) or "
         "dilation=(1, 1)"),
        (T, ((1, 2, 5), (2, 2, 3)), {"output_padding": -1}, "padding=(-1,) must be at least 0"),
        (T, ((1, 2, 5), (2, 2, 3)), {"output_padding": 1}, "than stride=(1,) or dilation=(1,)"),
        (S, ((1, 2, 5), (1, 3, 4), (3,)), {},
         "sizes x=(5,) and y=(4,) do not belong to kernel=(3,) stride=(1,) padding=(0, 0) "
         "dilation=(1,)"),
        (S, ((1, 2, 9), (1, 3, 3), (3,)), {"stride": 2}, "sizes x=(9,) and y=(3,) do not belong"),
        (S, ((1, 2, 5), (1, 3, 5), (1, 1)), {}, "kernel=(1, 1) must have 1 values"),
        # attributes are integers
        (C, ((1, 2, 5), (2, 2, 3)), {"stride": 1.5}, "stride=1.5 must be an integer"),
        (C, ((1, 2, 5), (2, 2, 3)), {"stride": (1.0,)}, "stride=(1.0,) must be integers"),
        (C, ((1, 2, 5), (2, 2, 3)), {"groups": True}, "groups=True must be an integer"),
        (C, ((1, 2, 5), (2, 2, 3)), {"groups": None}, "groups=None must be an integer"),
        (C, ((1, 2, 5), (2, 2, 3)), {"groups": (1,)}, "groups=(1,) must be an integer"),
        (C, ((1, 2, 5), (2, 2, 3)), {"dilation": "1"}, "dilation='1' must be an integer"),
        (C, ((1, 2, 5, 5), (2, 2, 3, 3)), {"dilation": "11"}, "dilation='11' must be an integer"),
        (C, ((1, 2, 5), (2, 2, 3)), {"padding": ((1,),)}, "padding=((1,),) must be integers"),
        (C, ((1, 2, 5), (2, 2, 3)), {"padding": {1: 2}}, "padding={1: 2} must be an integer"),
        (C, ((1, 2, 5, 5), (2, 2, 3, 3)), {"stride": ()}, "stride=() must have 1 or 2 values"),
        (T, ((1, 2, 5), (2, 2, 3)), {"groups": 1.0}, "groups=1.0 must be an integer"),
        (T, ((1, 2, 5), (2, 2, 3)), {"output_padding": 0.5}, "padding=0.5 must be an integer"),
        # what is too long
        (C, ((1, 2, 5), (2, 2, 3)), {"stride": 1 << 31}, "stride=2147483648 must fit into 32 bits"),
        (C, ((1, 2, 5), (2, 2, 3)), {"padding": [1 << 62]},
         f"padding=({1 << 62},) must fit into 32 bits"),
        (T, ((1, 2, 5), (2, 2, 3)), {"stride": 1 << 30},
         "stride=(1073741824,) must have a product of at most 1048576"),
        (T, ((1, 2, 5, 5), (2, 2, 3, 3)), {"dilation": 1 << 11},
         "dilation=(2048, 2048) must have a product of at most 1048576"),
        (T, ((1, 2, 1 << 40), (2, 2, 3)), {"stride": 1 << 20},
         f"x of shape (1, 2, {((1 << 40) - 1 << 20) + 3}) must have at most {1 << 59} elements"),
        (C, ((1 << 40, 1 << 19, 5), (2, 1 << 19, 3)), {}, "x of shape (1099511627776, 524288, 5)"),
    ],
)  # fmt: skip
def test_refused_in_one_line(make, arguments, attributes, line) -> None:
    with pytest.raises(ValueError) as caught:
        make("conv9d", *arguments, **attributes)
    said = str(caught.value)
    assert said.startswith("conv9d: ") and line in said and "\n" not in said


def test_integers_of_numpy_and_of_every_sequence_are_taken() -> None:
    want = C("op", (1, 2, 9, 9), (2, 2, 3, 3), stride=(2, 2), padding=(1, 1), groups=1)
    for one, several in ((np.int64(2), np.array([1, 1])), (np.array(2), [np.int32(1)] * 2)):
        got = C("op", (1, 2, 9, 9), (2, 2, 3, 3), stride=one, padding=several, groups=np.int8(1))
        assert got == want and all(type(s) is int for s in got.stride + got.padding)


@pytest.mark.parametrize("transposed", [False, True])
def test_steps_of_any_length_take_no_time(transposed: bool) -> None:
    """2^40 phases: whoever asked each of them would never end."""
    stride, pad = 1 << 40, 1
    gather = AxisAccess(transposed, 3, stride, 1, pad)
    assert gather.has_empty_phase == transposed
    assert (gather.first_shift, gather.last_shift) == ((0, 1) if transposed else (-1, 0))
    if transposed:
        for tap in range(3):
            assert gather.phase_of(tap) == (tap - pad) % stride
            assert gather.first_tap_of(gather.phase_of(tap)) == tap
        assert gather.first_tap_of(stride // 2) >= 3
    long = AxisAccess(transposed, 3, 3, 1 << 40, 1 << 40)
    assert not long.has_empty_phase and long.last_shift - long.first_shift == (2 << 40) // 3 + 1


def test_steps_that_do_nothing_are_short() -> None:
    """Between taps of a single one, and between positions of a y that has one."""
    g = C("op", (1, 2, 9, 9), (3, 2, 1, 1), dilation=1 << 30).as_rank3()
    assert g.dilation == (1, 1, 1)
    g = T("op", (1, 2, 1, 1), (2, 3, 3, 3), stride=(1 << 31) - 1).as_rank3()
    assert max(g.stride) <= 64 and g.x_size == (1, 3, 3)
    g = C("op", (1, 2, 9, 9), (3, 2, 3, 3), stride=1 << 30)
    assert g.y_size == (1, 1) and max(g.as_rank3().stride) <= 64
