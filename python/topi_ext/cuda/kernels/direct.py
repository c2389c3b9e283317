# SPDX-License-Identifier: Apache-2.0
"""conv and conv_transpose of few channels in a group: depthwise, and last layers of decoders.

A thread computes neighbouring results of a row; there is no matrix product::

    threads (image, output channels, rows of the result, parts of a row):
        for input channels, taps along depth and height that the row's phases meet:
            inputs of the thread's results along the row         -> registers
            sums[positions][phases of the row][channels] += inputs x weights, taps written out
        sums -> epilogue -> out

Consecutive threads have consecutive channels where these are neighbours in memory, otherwise
consecutive parts of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...emit.arguments import weight_index
from ...emit.post_ops import RowEpilogue
from ...spec.axis_access import AxisAccess
from ...spec.conv import DATA, Convolution
from .. import emit
from ..emit import Array, Expr, Operand, both, flat, local, narrow, opaque_value, store
from ..isa.runs import FUNCTIONS
from ..plan.direct import DirectPlan, reads_of


def emit_body(problem: Convolution, plan: DirectPlan, operands: Sequence[Operand]) -> None:
    """Emit the single launch."""
    data, weight, *extra, out = operands
    per_row = emit.ceil_div(problem.positions[3], plan.vector)
    blocks = -(-problem.out_channels // plan.channels)
    count = prod(problem.out_sizes[:3]) * per_row * (problem.geometry.groups * blocks)
    grid = emit.ceil_div(count, plan.threads)
    with emit.launch(grid, plan.threads, FUNCTIONS) as (block, thread):
        number = opaque_value(block * plan.threads + thread)
        work = _Work.emitted(problem, plan, number, (data, weight, out), extra)
        for _ in emit.only_if(work.inside):
            work.emit()


@dataclass(frozen=True)
class _Axis:
    """The taps that a row of the result meets along depth or height.

    Attributes
    ----------
    first_tap, count : Expr
        The smallest tap, and the number of taps, which are `tap_step` apart.
    start : Expr
        The input position that the first tap reads; those of the next taps are `step` apart.
    """

    first_tap: Expr
    count: Expr
    tap_step: int
    start: Expr
    step: int

    @classmethod
    def emitted(cls, access: AxisAccess, position: Expr) -> _Axis:
        """Compute the taps that an output position meets."""
        if not access.transposed:
            start = opaque_value(position * access.stride - access.pad_before)
            return cls(0, access.kernel, 1, start, access.dilation)
        number, phase = emit.unravel(position, (0, access.stride))
        first = opaque_value(access.first_tap_of(opaque_value(phase)))
        step = access.tap_step
        count = emit.most(0, emit.quotient(access.kernel + (step - 1) - first, step))
        start = opaque_value(number + access.shift_of(phase, first))
        return cls(first, opaque_value(count), step, start, access.shift_step)


@dataclass(frozen=True)
class _Work:
    """The results of a thread: `at` along batch, depth and height, from position `first` on."""

    problem: Convolution
    plan: DirectPlan
    operands: tuple[Operand, Operand, Operand]
    extra: Sequence[Operand]
    inside: Expr
    group: Expr
    channel: Expr
    at: tuple[Expr, Expr, Expr]
    first: Expr
    sizes: tuple[tuple[Expr, ...], tuple[Expr, ...]]

    @classmethod
    def emitted(
        cls,
        problem: Convolution,
        plan: DirectPlan,
        number: Expr,
        operands: tuple[Operand, Operand, Operand],
        extra: Sequence[Operand],
    ) -> _Work:
        """Compute which results belong to thread `number`."""
        in_sizes, out_sizes = (
            tuple(opaque_value(narrow(size)) for size in of)
            for of in (problem.in_sizes, problem.out_sizes)
        )
        batch, depth, height, width = out_sizes
        step = problem.accesses[3].out_step * plan.vector
        per_row = opaque_value(emit.quotient(width + (step - 1), step))
        blocks = problem.geometry.groups * -(-problem.out_channels // plan.channels)
        if emit.along(operands[2], "C") == 1:
            digits = emit.unravel(number, (batch, depth, height, per_row, blocks))
            image, d, h, part, block = map(opaque_value, digits)
        else:
            digits = emit.unravel(number, (batch, blocks, depth, height, per_row))
            image, block, d, h, part = map(opaque_value, digits)
        group, channel = emit.unravel(block, (0, blocks // problem.geometry.groups))
        return cls(
            problem, plan, operands, extra, image < batch, opaque_value(group),
            opaque_value(channel * plan.channels), (image, d, h), opaque_value(part * plan.vector),
            (in_sizes, out_sizes),
        )  # fmt: skip

    @property
    def row(self) -> AxisAccess:
        """Axis access along a row of the result."""
        return self.problem.accesses[3]

    def emit(self) -> None:
        """Compute the sums and write the results."""
        problem, plan, acc = self.problem, self.plan, self.problem.acc_dtype
        count = plan.vector * self.row.out_step * plan.channels
        sums = local(count, acc)
        for i in emit.unrolled(count):
            store(sums, i, emit.constant(0, acc))
        reads = reads_of(self.row, plan.vector)
        held = local(max(1, len(reads)), acc)
        axes = [_Axis.emitted(g, at) for g, at in zip(problem.accesses[1:3], self.at[1:])]
        if reads:
            for channel in emit.loop(problem.in_channels):
                for depth in emit.loop(axes[0].count):
                    for height in emit.loop(axes[1].count):
                        pairs = list(zip(axes, (depth, height)))
                        where = [axis.start + tap * axis.step for axis, tap in pairs]
                        self._read(channel, where, held)
                        taps = [axis.first_tap + tap * axis.tap_step for axis, tap in pairs]
                        self._add(channel, taps, held, sums)
        self._write(sums)

    def _read(self, channel: Expr, at: Sequence[Expr], held: Array) -> None:
        """Read the inputs of all results of the thread from a row of the data."""
        problem, data, (_, *limits) = self.problem, self.operands[0], self.sizes[0]
        inside: Expr = True
        of_all = flat(self.group) * problem.in_channels + flat(channel)
        index = data.at("NC", flat(self.at[0]), of_all)
        for where, size, letter in zip(at, limits, DATA[1:]):
            where = opaque_value(where)
            known = isinstance(where, int) and isinstance(size, int)
            inside = both(inside, *([0 <= where < size] if known else [where >= 0, where < size]))
            index = index + flat(where) * emit.along(data, letter)
        start = opaque_value(self.first * self.row.in_step)
        index = opaque_value(index + flat(start) * emit.along(data, "W"))
        for number, read in enumerate(reads_of(self.row, self.plan.vector)):
            there = both(inside, start + read >= 0, start + read < limits[2])
            at_read = index + read * emit.along(data, "W")
            store(held, number, emit.load_if(there, data, at_read, problem.acc_dtype))

    def _add(self, channel: Expr, taps: Sequence[Expr], held: Array, sums: Array) -> None:
        """Add the products of a row of data and a row of the kernel."""
        problem, plan, row = self.problem, self.plan, self.row
        weight, place = self.operands[1], {q: i for i, q in enumerate(reads_of(row, plan.vector))}
        met = [(tap, phase.offset) for phase in row.phases for tap in phase.taps]
        for out in range(plan.channels):
            to = opaque_value(emit.least(self.channel + out, problem.out_channels - 1))
            for tap, offset in sorted(met, key=lambda one: one[0].index):
                at = weight_index(problem, weight, self.group, channel, to, (*taps, tap.index))
                factor = emit.via_register(weight.load(at, problem.acc_dtype), problem.acc_dtype)
                for position in range(plan.vector):
                    read = place[(position + tap.shift) * row.in_step + tap.residue]
                    number = (out * plan.vector + position) * row.out_step + offset
                    store(sums, number, sums[number] + held[read] * factor)

    def _write(self, sums: Array) -> None:
        problem, plan = self.problem, self.plan
        is_whole = problem.out_channels % plan.channels == 0
        for number in range(plan.channels):
            channel = opaque_value(self.group * problem.out_channels + self.channel + number)
            fits = self.channel + number < problem.out_channels
            for _ in emit.only_if(True if is_whole else fits):
                self._write_channel(sums, number, channel)

    def _write_channel(self, sums: Array, number: int, channel: Expr) -> None:
        """Finish and write the results of one channel, the thread's channel number `number`."""
        problem, out, run = self.problem, self.operands[2], self.plan.vector * self.row.out_step
        base = out.at("C" + DATA[:3], flat(channel), *(flat(value) for value in self.at))
        finished = local(run, out.dtype)
        epilogue = self._epilogue(channel)
        start = opaque_value(self.first * self.row.out_step)
        reads = any(step.order for step in problem.epilogue)
        for i in range(run):
            for _ in emit.only_if(not reads or start + i < self.sizes[1][3]):
                value = epilogue(sums[number * run + i], flat(start) + i)
                store(finished, i, emit.cast(value, problem.finished_dtype, out.dtype))
        self._store_run(finished, base, start)

    def _epilogue(self, channel: Expr) -> RowEpilogue:
        outer = tuple(map(flat, self.at))
        made = RowEpilogue.emitted(self.problem, self.extra, flat(channel), outer)
        return made._replace(kept=emit.via_register)

    def _store_run(self, finished: Array, base: Expr, start: Expr) -> None:
        """Store neighbouring results, by vectors where they are neighbours in memory."""
        out, width = self.operands[2], self.sizes[1][3]
        run = self.plan.vector * self.row.out_step
        stride = emit.along(out, "W")
        at = base + flat(start) * stride
        if stride == 1 and run > 1:
            data = (out.buffer.data, emit.wide(at), finished.buffer.data)
            emit.call(f"topi_store_run<{run}>", *data, width - start)
            return
        at = opaque_value(emit.wide(at))
        for i in range(run):
            for _ in emit.only_if(start + i < width):
                store(out, at + i * stride, finished[i])
