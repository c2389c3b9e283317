# SPDX-License-Identifier: Apache-2.0
"""The access of one result axis to the packed operand: taps, phases, shifts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any


@dataclass(frozen=True)
class Tap:
    """One kernel tap that meets the output positions of a phase.

    Output position number `j` of the phase reads input position
    ``in_step * (j + shift) + residue`` and multiplies it with kernel element `index`.
    """

    index: int
    residue: int
    shift: int


@dataclass(frozen=True)
class Phase:
    """The output positions ``out_step * j + offset`` of one axis, and the taps they meet.

    A phase without taps (kernel smaller than the stride) holds zeros that must still be written.
    """

    offset: int
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class TapGroup:
    """Phases with equally many taps: one piece of code serves them all.

    The phases whose smallest tap is ``first_tap .. first_tap + phases - 1`` meet `taps` taps each.
    """

    first_tap: int
    phases: int
    taps: int


@dataclass(frozen=True)
class AxisAccess:
    """The access of one kind to its input along one axis: a table of integers, independent of
    sizes.

    ``conv`` has one phase and reads with a step (``out_step = 1, in_step = stride``);
    ``conv_transpose`` has `stride` phases and reads densely (``out_step = stride, in_step = 1``).

    The methods are the table :attr:`phases` in closed form, for loops over phases or taps that run
    in the generated code: they use ``+ - * // %`` only and so take expressions as well as integers.

    Input positions that one plane of a panel holds are ``in_step * i + residue``; taps that read
    the same residue share a plane, shifted.  With `plane_per_tap` an access of ``conv`` gives each
    tap a plane of its own instead: more to pack, but no halo between rows and images.
    """

    transposed: bool
    kernel: int
    stride: int
    dilation: int
    pad_before: int
    plane_per_tap: bool = False

    @cached_property
    def with_planes(self) -> AxisAccess:
        """Return this access with a plane for each tap."""
        return replace(self, plane_per_tap=True)

    @property
    def out_step(self) -> int:
        """Distance of neighbouring output positions of a phase."""
        return self.stride if self.transposed else 1

    @property
    def in_step(self) -> int:
        """Distance of the input positions that neighbouring output positions of a phase read."""
        return 1 if self.transposed else self.stride

    @cached_property
    def tap_step(self) -> int:
        """Distance of neighbouring taps of a phase: ``stride / gcd(dilation, stride)``, or 1."""
        return self.stride // gcd(self.dilation, self.stride) if self.transposed else 1

    @cached_property
    def groups(self) -> tuple[TapGroup, ...]:
        """The phases that have taps, grouped by how many: at most two groups.

        Each residue of the taps modulo `tap_step` belongs to exactly one phase.
        """
        if not self.transposed:
            return (TapGroup(0, 1, self.kernel),)
        taps, rest = divmod(self.kernel, self.tap_step)
        groups = (TapGroup(0, rest, taps + 1), TapGroup(rest, self.tap_step - rest, taps))
        return tuple(group for group in groups if group.phases and group.taps)

    @cached_property
    def reads(self) -> dict[int, list[tuple[int, int]]]:
        """Return by how far the read is shifted, the phases that do so and the tap of each."""
        found: dict[int, list[tuple[int, int]]] = {}
        for tap in range(self.kernel):
            phase = self.phase_of(tap)
            found.setdefault(self.shift_of(phase, tap), []).append((phase, tap))
        return found

    def phase_of(self, first_tap: Any) -> Any:
        """Return the phase (its offset) whose smallest tap is `first_tap`."""
        return (self.dilation * first_tap - self.pad_before) % self.stride if self.transposed else 0

    def first_tap_of(self, phase: Any) -> Any:
        """Return the smallest tap that `phase` meets, the inverse of :meth:`phase_of`; not below
        `kernel` where it meets none.
        """
        if not self.transposed:
            return 0
        common, step = gcd(self.dilation, self.stride), self.tap_step
        whole, rest = (phase + self.pad_before) // common, (phase + self.pad_before) % common
        inverse = pow(self.dilation // common, -1, step)
        return whole % step * inverse % step + rest * self.kernel

    def shift_of(self, phase: Any, tap: Any) -> Any:
        """Return by how many input steps `phase` reads ahead for `tap`."""
        if self.plane_per_tap:
            return 0
        if self.transposed:
            return (phase + self.pad_before - self.dilation * tap) // self.stride
        return (self.dilation * tap - self.pad_before) // self.stride

    @property
    def shift_step(self) -> int:
        """Change of the shift from one tap of a transposed phase to its next."""
        return -(self.dilation // gcd(self.dilation, self.stride))

    @cached_property
    def slots(self) -> int:
        """Return how many residues of the input position the taps read, or all taps if
        `plane_per_tap`.
        """
        return self.kernel if self.plane_per_tap else min(self.kernel, self._slot_period)

    def slot_of(self, tap: Any) -> Any:
        """Return the number of the residue that `tap` reads, below `slots`."""
        return tap if self.plane_per_tap else tap % self._slot_period

    def residue_of(self, slot: Any) -> Any:
        """Return the residue of the input position modulo `in_step` that has number `slot`; with a
        plane per tap the position itself that its tap reads first, perhaps negative.
        """
        if self.plane_per_tap:
            return self.dilation * slot - self.pad_before
        return 0 if self.transposed else (self.dilation * slot - self.pad_before) % self.stride

    @property
    def is_plain(self) -> bool:
        """Return whether output positions are one phase, so that each reads one input for every
        tap.
        """
        return self.out_step == 1

    def meets(self, tap: Any, positions: Any, size: Any, most: Any = max, least: Any = min) -> Any:
        """Return the positions whose `tap` meets data: the first, and the one behind the last.

        For a plain access, with so many output positions and an input of this `size`; the second
        may be less than the first, where there is none.  `most` and `least` compute with
        expressions.
        """
        first = self.reads_at(tap, 0)
        begin = most(-(first // self.in_step), 0)
        return begin, least((size - 1 - first) // self.in_step + 1, positions)

    def reads_at(self, tap: Any, position: Any) -> Any:
        """Return the input position that an output position of a plain access reads for `tap`."""
        ahead = self.dilation * tap - self.pad_before
        return self.in_step * position + (-ahead if self.transposed else ahead)

    @cached_property
    def _slot_period(self) -> int:
        return 1 if self.transposed else self.stride // gcd(self.dilation, self.stride)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The table, found by trying every tap at every phase: for tests and pictures of it."""
        table = []
        for offset in range(self.out_step):
            taps = []
            for r in range(self.kernel):
                if self.transposed and (offset + self.pad_before - self.dilation * r) % self.stride:
                    continue
                residue = self.residue_of(self.slot_of(r))
                taps.append(Tap(r, residue, self.shift_of(offset, r)))
            table.append(Phase(offset, tuple(taps)))
        return tuple(table)

    @cached_property
    def busy_phases(self) -> int:
        """Return how many phases meet taps."""
        return sum(group.phases for group in self.groups)

    @property
    def has_empty_phase(self) -> bool:
        """Return whether some phase meets no tap, so that its outputs are zeros."""
        return self.busy_phases < self.out_step

    @cached_property
    def first_shift(self) -> int:
        """Smallest shift of any tap: of a transposed access, which reads backwards, of the last."""
        return self._shift_of_tap(self.kernel - 1 if self.transposed else 0)

    @cached_property
    def last_shift(self) -> int:
        """Largest shift of any tap."""
        return self._shift_of_tap(0 if self.transposed else self.kernel - 1)

    def _shift_of_tap(self, tap: int) -> int:
        return int(self.shift_of(self.phase_of(tap), tap))
