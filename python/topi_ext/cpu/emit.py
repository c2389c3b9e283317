# SPDX-License-Identifier: Apache-2.0
"""IR builder primitives of CPU kernels: the common ones, and memory, threads and caches.

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
from ..spec.dtypes import byte_width

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
    """Open the body as :func:`topi_ext.emit.body` does, with memory for the sizes that a symbolic
    kernel chooses."""
    is_static = all(isinstance(size, int) for _, _, shape, _ in arguments for size in shape)
    with emit.body(*arguments) as operands:
        with nullcontext() if is_static else _room_for_sizes():
            yield operands


def registers(vectors: int, lanes: int, dtype: str) -> list[tuple[Array, Expr]]:
    """Allocate vectors in registers: return the array of each and its index there.

    They do not count as workspace.  Each is an array of its own: TVM puts a new array into the
    memory of one whose use has ended if one is at most 16 times the other.  Registers in what was a
    row of data would stay memory, and be written back where LLVM needs registers.
    """
    return [(allocated(lanes, dtype, hidden=True), lanes_of(0, lanes)) for _ in range(vectors)]


def table(values: Sequence[float], dtype: str = "int64") -> Callable[[Expr], Expr]:
    """Return a function that looks up constants at run time; they are in memory unless their steps
    are equal."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if dtype == "int64" and len(steps) < 2:
        step = steps.pop() if steps else 0
        return lambda i: values[0] + (i * step if step else 0)
    array = scratch(len(values), dtype)
    for i, value in enumerate(values):
        store(array, i, constant(value, dtype))
    return lambda i: let(array[i])


def prefetch(array: Array, start: Expr, cache: int = 1) -> None:
    """Prefetch the cache line of an element that is read later into the first cache, or the
    second."""
    compat.prefetch(array.buffer, wide(start), cache)


@contextmanager
def tasks(extent: Expr, parallel: bool) -> Iterator[Expr]:
    """Open a loop over independent tasks, which the threads of the runtime share if `parallel`."""
    kind = script.parallel if parallel else script.serial
    bytes_of_kernel = workspace()
    outer, bytes_of_kernel.in_task = bytes_of_kernel.in_task, parallel or bytes_of_kernel.in_task
    # Memory of a parallel task is freed when it ends, before other tasks begin.
    memory = bytes_of_kernel.branch() if parallel else nullcontext()
    with statements(kind(wide(0), wide(extent))) as i, memory:
        with _room_for_sizes() if _sizes else nullcontext():
            yield i
    bytes_of_kernel.in_task = outer


def opaque_value(value: Expr) -> Expr:
    """Compute `value` once, and hide how from TVM; an integer stays one.

    This is for sizes that a kernel chooses at run time: TVM would substitute their divisions and
    minima into every index that uses them, and simplify for minutes.  It does not look into memory.
    """
    if isinstance(value, int):
        return value
    number = next(_sizes[-1].free, None) if _sizes else None
    if number is None:
        return let(via_memory(wide(value), "int64"))
    store(_sizes[-1].array, number, wide(value))
    return let(_sizes[-1].array[number])


class _Sizes:
    """Memory for the sizes that a kernel of symbolic sizes, or one of its tasks, chooses.

    It is one hidden array, since TVM takes long over many small ones.
    """

    def __init__(self) -> None:
        count = STACK_BYTES // byte_width("int64")
        self.array = allocated(count, "int64", hidden=True)
        self.free = iter(range(count))


_sizes: list[_Sizes] = []
"""The memory of the kernels and tasks that are being built, the innermost last."""


@contextmanager
def _room_for_sizes() -> Iterator[None]:
    _sizes.append(_Sizes())
    try:
        yield
    finally:
        _sizes.pop()
