# SPDX-License-Identifier: Apache-2.0
"""Functions, memory and control flow of kernels, over TVM's IRBuilder.  Loops over one element and
branches that Python decides disappear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import compat
from ..compat import IRBuilder, script, statements
from ..spec.dtypes import byte_width
from .expressions import Expr, ceil_div, lanes_of, least, let, wide
from .operands import Array, Operand, store

SCRATCH_BYTES = "topi_ext.scratch_bytes"
"""Attribute of a kernel: pairs of the bytes that it allocates once and for each task that runs, one
for each branch that takes most; left out where a size is symbolic."""


ATTRIBUTES = {
    "tirx.noalias": True,
    # Both of these are needed to pass Relax's default pipelines: no default schedule is applied to
    # an opaque function (8), and it is not fused into another.
    "tirx.is_scheduled": True,
    "op_pattern": 8,
    # MetaSchedule takes every kernel for a task, and lays aside those without a decision. First it
    # counts their operations, unless it is told how many: it fails on vectors.
    "estimated_flops": 0,
}
"""Attributes of every kernel."""


def is_kernel(func: Any) -> bool:
    """Return whether a PrimFunc is one of ours."""
    return func.attrs is not None and set(ATTRIBUTES) <= set(func.attrs.keys())


class Workspace:
    """Bytes that a kernel allocates: together with all tasks, and for each task that runs.

    `most` holds the pairs that no other exceeds in both; None if a size is symbolic.
    """

    def __init__(self) -> None:
        self.in_task = False
        self.now = (0, 0)
        self.most: set[tuple[int, int]] | None = {self.now}

    def add(self, elements: Expr, dtype: str) -> None:
        if self.most is None or not isinstance(elements, int):
            self.most = None
            return
        common, per_task = self.now
        size = elements * byte_width(dtype)
        self.now = (common, per_task + size) if self.in_task else (common + size, per_task)
        self.most.add(self.now)
        self.most = {a for a in self.most if not any(_exceeds(b, a) for b in self.most)}

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Enclose a branch; allocations inside are freed at its end."""
        before = self.now
        yield
        self.now = before


def _exceeds(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a != b and a[0] >= b[0] and a[1] >= b[1]


_kernels: list[Workspace] = []
"""Workspaces of the kernels that are being built, the innermost last."""


def workspace() -> Workspace:
    """Return the workspace of the kernel that is being built."""
    return _kernels[-1]


@contextmanager
def kernel(attrs: dict[str, Any]) -> Iterator[list[Any]]:
    """Build a PrimFunc; the list that is yielded holds it when the block ends.

    Other threads wait until then.
    """
    made: list[Any] = []
    with compat.building:
        _kernels.append(Workspace())
        try:
            with IRBuilder() as builder:
                with compat.prim_func():
                    script.func_attr(attrs)
                    yield made
            func = builder.get()
        finally:
            used = _kernels.pop()
    if used.most is not None:
        func = func.with_attr(SCRATCH_BYTES, [list(pair) for pair in sorted(used.most)])
    made.append(func)


def argument(name: str, order: str, shape: Sequence[Expr], dtype: str) -> tuple[Any, ...]:
    """Declare an argument stored in `order`; pass what is returned to :func:`body`."""
    sizes = [wide(size) for size in shape]
    # Callers own this memory, and a tensor of another framework may begin at any element.
    held = script.buffer(sizes, dtype, align=byte_width(dtype))
    return script.arg(name, held), order, tuple(shape), dtype


@contextmanager
def body(*arguments: tuple[Any, ...]) -> Iterator[list[Operand]]:
    """Open the body (with the root block that Relax requires) and yield the arguments as flat
    operands.
    """
    with compat.root_block():
        operands = []
        for buffer, order, shape, dtype in arguments:
            elements: Expr = 1
            for size in shape:
                elements = elements * size
            flat = compat.flat_alias(buffer, wide(elements), dtype)
            operands.append(Operand(flat, dtype, order, shape))
        yield operands


STACK_BYTES = 992
"""Limit of what TVM leaves on the stack, where LLVM may turn it into registers."""


def allocated(elements: Expr, dtype: str, *, hidden: bool = False) -> Array:
    """Return the memory of the enclosing statements that does not count as workspace; `hidden`: see
    :func:`topi_ext.compat.allocate`.
    """
    return Array(compat.allocate(wide(elements), dtype, hidden=hidden), dtype)


def scratch(elements: Expr, dtype: str) -> Array:
    """Return the memory of the enclosing loop body; what it holds at first is undefined."""
    workspace().add(elements, dtype)
    is_small = isinstance(elements, int) and elements * byte_width(dtype) <= STACK_BYTES
    return allocated(elements, dtype, hidden=not is_small)


def via_memory(value: Expr, dtype: str, lanes: int = 1) -> Expr:
    """`value` of this dtype, computed now, through memory that LLVM turns into a register.

    For conversions: TVM 0.27 forgets those of bfloat16 in the value of a variable.
    """
    held, index = scratch(lanes, dtype), 0 if lanes == 1 else lanes_of(0, lanes)
    store(held, index, value)
    return held[index]


def fill(array: Array, start: Expr, count: Expr, value: Expr) -> None:
    """Write `value` to `count` neighbouring elements."""
    for i in loop(count):
        store(array, start + i, value)


def loop(extent: Expr, index: str = "int64") -> Iterator[Expr]:
    """Emit a serial loop: ``for i in loop(extent)`` yields its variable, an `index`, once.

    Nothing is emitted for extent 0, and no loop for extent 1.  Do not ``break``, ``continue`` or
    ``return`` inside: what follows in the Python body is the body of the loop.
    """
    if isinstance(extent, int) and extent <= 1:
        if extent == 1:
            yield 0
        return
    with statements(script.serial(wide(0, index), wide(extent, index))) as i:
        yield i


def grid(*extents: Expr) -> Iterator[tuple[Expr, ...]]:
    """Emit nested serial loops: ``for i, j in grid(m, n)``; the last index runs fastest."""
    if not extents:
        yield ()
        return
    for first in loop(extents[0]):
        for rest in grid(*extents[1:]):
            yield (first, *rest)


def tiles(count: int, size: int) -> Iterator[tuple[Expr, int]]:
    """Emit ``for first, width in tiles(count, size)``: a loop over whole tiles, then the last one,
    which is narrower.  The Python body runs for each of the two."""
    full, tail = divmod(count, size)
    for i in loop(full):
        yield i * size, size
    if tail:
        yield full * size, tail


def tiles_then_ones(count: Expr, size: int) -> Iterator[tuple[Expr, int]]:
    """Emit ``for first, width in tiles_then_ones(count, size)``: a loop over whole tiles, then one
    of width 1 over what is left."""
    whole = count // size
    for i in loop(whole):
        yield i * size, size
    if size > 1 and (not isinstance(count, int) or count % size):
        done = whole * size
        for i in loop(count - done):
            yield done + i, 1


def tiles_or_ones(count: Expr, size: int) -> Iterator[tuple[Expr, int]]:
    """Emit ``for first, width in tiles_or_ones(count, size)``: whole tiles that cover `count`, of
    which the last may reach beyond it.

    A count that only run time knows is covered as by :func:`tiles_then_ones`.
    """
    if not isinstance(count, int):
        yield from tiles_then_ones(count, size)
        return
    for i in loop(-(-count // size)):
        yield i * size, size


def clamped_extent(first: Expr, size: Expr, block: Expr) -> Expr:
    """Return how many of a `block` of numbers from `first` on, a multiple of `block`, are below
    `size`. It is at least one: the caller has to ensure that `first` itself is below.
    """
    if isinstance(size, int) and isinstance(block, int) and size % block == 0:
        return block
    return let(least(block, size - first))


def share_of(count: Expr, shares: int, number: Expr) -> Iterator[Expr]:
    """Emit ``for i in share_of(count, shares, number)``: a loop over the part of all i below
    `count` that is share `number` of `shares` equal ones."""
    each = ceil_div(count, shares)
    is_even = shares == 1 or (isinstance(count, int) and count % shares == 0)
    for i in loop(each):
        index = let(number * each + i)
        for _ in only_if(True if is_even else index < count):
            yield index


def only_if(condition: Expr) -> Iterator[None]:
    """Emit a branch: ``for _ in only_if(condition)``.

    A condition that Python knows emits no branch: the Python body runs once or not at all.
    """
    if isinstance(condition, bool):
        if condition:
            yield
        return
    with script.If(condition), statements(script.Then()), workspace().branch():
        yield


def sides(condition: Expr) -> Iterator[bool]:
    """Emit a branch of two sides: ``for holds in sides(condition)`` yields True in the side where
    `condition` holds, then False in the other.

    A condition that Python knows yields its value alone, and emits no branch.
    """
    if isinstance(condition, bool):
        yield condition
        return
    with script.If(condition):
        with statements(script.Then()), workspace().branch():
            yield True
        with statements(script.Else()), workspace().branch():
            yield False
