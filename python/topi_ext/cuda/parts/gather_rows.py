# SPDX-License-Identifier: Apache-2.0
"""Addresses of the data of a position, tap by tap."""

from __future__ import annotations

from dataclasses import dataclass

from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Expr, Operand, flat, opaque_value
from .gather_block import GatherBlock
from .tap_steps import TapSteps


@dataclass(frozen=True)
class GatherRow:
    """A position whose data a thread copies.

    Attributes
    ----------
    inside : Expr
        Whether it is a position: the last tile may reach past the last one.
    at : tuple of Expr
        Input position for the phase's first tap, along depth, height and width.
    start : Expr
        Index of the first element of its image and group, with 64 bits.
    """

    inside: Expr
    at: tuple[Expr, ...]
    start: Expr

    @classmethod
    def emitted(
        cls, problem: Convolution, data: Operand, block: GatherBlock, row: Expr
    ) -> GatherRow:
        """Emit row number `row` of the block's tile."""
        inside, (image, *positions) = block.position(row)
        axes = zip(positions, problem.accesses[1:], block.axes)
        at = tuple(opaque_value(j * access.in_step + axis.start) for j, access, axis in axes)
        channel = block.group * problem.in_channels
        start = data.at("NC", flat(image), flat(channel))
        return cls(opaque_bool(inside), at, opaque_value(start))

    def read(
        self, problem: Convolution, data: Operand, block: GatherBlock, steps: TapSteps
    ) -> tuple[Expr, Expr]:
        """Return whether the current tap meets data, and the index of its channel 0."""
        inside, index = [self.inside], self.start
        sizes = block.in_sizes[1:]
        for access, at, tap, size, letter in zip(
            problem.accesses[1:], self.at, steps.taps, sizes, DATA[1:]
        ):
            step = access.shift_step if access.transposed else access.dilation
            where = opaque_value(at + tap * step)
            known = isinstance(where, int) and isinstance(size, int)
            inside += [0 <= where < size] if known else [where >= 0, where < size]
            index = index + flat(where) * emit.along(data, letter)
        return opaque_bool(emit.both(*inside)), opaque_value(index)


def opaque_bool(value: Expr) -> Expr:
    """Compute a condition once; a Python boolean stays one."""
    if isinstance(value, bool):
        return value
    return emit.via_register(value.astype("int32"), "int32") != 0
