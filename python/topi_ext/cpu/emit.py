# SPDX-License-Identifier: Apache-2.0
"""The verbs in which kernels of processors are written: those of every target, and memory, threads
and caches of a processor.

A kernel reads as its loop nest::

    with kernel(ATTRIBUTES) as made:
        x = argument("X", "W", (n,), "float32")
        y = argument("Y", "W", (n,), "float32")
        with body(x, y) as (x, y):
            with tasks(n, parallel=True) as i:
                store(y, i, x[i] * 2)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from .. import compat, emit
from ..compat import script, statements
from ..dtypes import byte_width
from ..emit import *  # noqa: F403  what every target has
from ..emit import (
    STACK_BYTES,
    Array,
    Expr,
    Operand,
    allocated,
    constant,
    lanes_of,
    let,
    scratch,
    store,
    via_memory,
    wide,
    workspace,
)

__all__ = [
    *emit.__all__,
    "opaque_value",
    "prefetch",
    "registers",
    "table",
    "tasks",
]


@contextmanager
def body(*arguments: tuple[Any, ...]) -> Iterator[list[Operand]]:
    """As :func:`topi_ext.emit.body`, with room for the sizes that a symbolic kernel chooses."""
    is_static = all(isinstance(size, int) for _, _, shape, _ in arguments for size in shape)
    with emit.body(*arguments) as operands:
        with nullcontext() if is_static else _room_for_sizes():
            yield operands


def registers(vectors: int, lanes: int, dtype: str) -> list[tuple[Array, Expr]]:
    """`vectors` vectors in registers: for each, the array that holds it and its index there.

    They are no memory, and not counted as such.
    Each is an array of its own.  TVM puts arrays whose use has ended and new ones into the same
    memory if one is at most 16 times the other: registers in what was a row of data would stay
    memory, and be written back where LLVM needs the registers for something else.
    """
    return [(allocated(lanes, dtype, hidden=True), lanes_of(0, lanes)) for _ in range(vectors)]


def table(values: Sequence[float], dtype: str = "int64") -> Callable[[Expr], Expr]:
    """Numbers that are known now, looked up when the kernel runs; kept in memory if need be."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if dtype == "int64" and len(steps) < 2:
        step = steps.pop() if steps else 0
        return lambda i: values[0] + (i * step if step else 0)
    held = scratch(len(values), dtype)
    for i, value in enumerate(values):
        store(held, i, constant(value, dtype))
    return lambda i: let(held[i])


def prefetch(operand: Operand, start: Expr) -> None:
    """Ask for the cache line of an element, which is read later: it comes while others are used."""
    compat.prefetch(operand.buffer, wide(start))


@contextmanager
def tasks(extent: Expr, parallel: bool) -> Iterator[Expr]:
    """A loop over independent tasks, which the threads of the runtime share if `parallel`."""
    kind = script.parallel if parallel else script.serial
    held_by = workspace()
    outer, held_by.in_task = held_by.in_task, parallel or held_by.in_task
    # What a parallel task allocates is given back when it ends, before other tasks begin.
    held = held_by.branch() if parallel else nullcontext()
    with statements(kind(wide(0), wide(extent))) as i, held:
        with _room_for_sizes() if _sizes else nullcontext():
            yield i
    held_by.in_task = outer


def opaque_value(value: Expr) -> Expr:
    """`value`, computed once, and no more than a number to TVM; an integer stays one.

    For sizes that a kernel chooses when it runs: TVM would put their divisions and minima into
    every index that uses them, and then simplify for minutes. It does not look into memory.
    """
    if isinstance(value, int):
        return value
    number = next(_sizes[-1].free, None) if _sizes else None
    if number is None:
        return let(via_memory(wide(value), "int64"))
    store(_sizes[-1].held, number, wide(value))
    return let(_sizes[-1].held[number])


class _Sizes:
    """Room for what is chosen, of a kernel of symbolic sizes or of one of its tasks.

    One hidden array: TVM takes long over many small ones.
    """

    def __init__(self) -> None:
        count = STACK_BYTES // byte_width("int64")
        self.held = allocated(count, "int64", hidden=True)
        self.free = iter(range(count))


_sizes: list[_Sizes] = []
"""Of the kernels and tasks that are being built, the innermost last."""


@contextmanager
def _room_for_sizes() -> Iterator[None]:
    _sizes.append(_Sizes())
    try:
        yield
    finally:
        _sizes.pop()
