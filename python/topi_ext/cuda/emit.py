# SPDX-License-Identifier: Apache-2.0
"""IR builder primitives of CUDA kernels: those of every target, and launches, threads, memory and
barriers.

Indices within a kernel have 32 bits, except those that are added to the start of a tensor (`flat`).
A value that a kernel computes once and uses often goes through :func:`opaque_value`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from .. import compat, emit
from ..compat import script, statements, tir
from ..emit import *  # noqa: F403  the primitives of every target
from ..emit import Array, Expr, Operand, store, wide, workspace

__all__ = [
    *emit.__all__,
    "barrier",
    "call",
    "ceil_div",
    "condition",
    "dtype_of",
    "flat",
    "get_vector",
    "launch",
    "least",
    "load_if",
    "local",
    "loop",
    "most",
    "narrow",
    "opaque_value",
    "pick",
    "quotient",
    "remainder",
    "set_vector",
    "shared",
    "typed",
    "unravel",
    "unrolled",
    "via_register",
    "along",
    "workspace_of",
    "xor",
]


def dtype_of(value: Expr) -> str:
    """Return the dtype of an expression."""
    return str(getattr(value, "dtype", None) or value.ty)


def narrow(value: Expr) -> Expr:
    """Return `value` as an index of 32 bits; a Python integer stays one."""
    if isinstance(value, int) or dtype_of(value) == "int32":
        return value
    return value.astype("int32")


def flat(value: Expr) -> Expr:
    """Return `value` with 64 bits, for indices into tensors."""
    if isinstance(value, int):
        return value
    return value if dtype_of(value) == "int64" else value.astype("int64")


typed = partial(emit.wide, index="int32")
loop = partial(emit.loop, index="int32")
least = partial(emit.least, index="int32")
most = partial(emit.most, index="int32")


@contextmanager
def launch(
    blocks: Expr, threads: int, functions: str = "", least_blocks: int = 1
) -> Iterator[tuple[Expr, Expr]]:
    """Emit a launch of one kernel: ``with launch(...) as (block, thread)``, the numbers of both.

    Parameters
    ----------
    blocks : int or expression
    threads : int
        Threads of a block.
    functions : str
        CUDA source of the device functions that the kernel calls.
    least_blocks : int
        Blocks that a multiprocessor is to hold at once, which bounds the registers of a thread.
    """
    # CUDA rejects an empty grid, which an empty batch of symbolic size would give.
    blocks = typed(blocks) if isinstance(blocks, int) else most(1, narrow(blocks))
    with ExitStack() as open_frames:
        block = open_frames.enter_context(compat.launch_thread("blockIdx.x", blocks))
        thread = open_frames.enter_context(compat.launch_thread("threadIdx.x", typed(threads)))
        if least_blocks > 1:
            open_frames.enter_context(compat.least_blocks(least_blocks))
        if functions:
            open_frames.enter_context(compat.imported_c(functions))
        open_frames.enter_context(compat.unrolled_by_compiler())
        open_frames.enter_context(statements(ExitStack()))
        yield block, thread


def workspace_of(elements: Expr, dtype: str) -> Array:
    """Allocate device memory that the kernels of one function share."""
    workspace().add(elements, dtype)
    return Array(compat.scoped(wide(elements), dtype, "global"), dtype)


def shared(elements: int, dtype: str, scope: str = "shared") -> Array:
    """Allocate memory that the threads of a block share."""
    return Array(compat.scoped(typed(elements), dtype, scope), dtype)


def local(elements: int, dtype: str) -> Array:
    """Allocate registers of a thread; all indices into them must be known at compile time."""
    return Array(compat.scoped(typed(elements), dtype, "local"), dtype)


def via_register(value: Expr, dtype: str) -> Expr:
    """Return `value` with this dtype, read from a register that TVM does not simplify."""
    held = local(1, dtype)
    store(held, typed(0), value)
    return held[typed(0)]


def opaque_value(value: Expr) -> Expr:
    """Compute `value` once and return a number that TVM does not simplify; a Python integer stays
    one.

    TVM would otherwise insert the expression into every index that uses it, and simplify for ten
    times as long.
    """
    return value if isinstance(value, int) else via_register(value, dtype_of(value))


def barrier(scope: str = "shared") -> None:
    """Emit a barrier of the block, after which its threads see what the others wrote."""
    compat.barrier(scope)


def call(name: str, *arguments: Expr) -> None:
    """Emit a call of a device function that returns nothing."""
    compat.extern_call(name, *map(typed, arguments))


def unrolled(extent: int) -> Iterator[Expr]:
    """Emit a loop that the compiler unrolls, ``for i in unrolled(extent)``: TVM's passes see its
    body once."""
    if extent == 1:
        yield 0
        return
    with statements(script.unroll(typed(0), typed(extent))) as i:
        yield i


def pick(condition: Expr, value: Callable[[], Expr], other: Expr) -> Expr:
    """Return ``value()`` if `condition` holds, else `other`; the value is evaluated only then."""
    if isinstance(condition, bool):
        return value() if condition else other
    return tir.if_then_else(condition, value(), other)


def load_if(inside: Expr, array: Array, index: Expr, dtype: str) -> Expr:
    """Return an element as `dtype` if `inside` holds, else zero; it is read only then."""
    return pick(inside, lambda: array.load(index, dtype), emit.constant(0, dtype))


def condition(value: Expr) -> Expr:
    """Return a condition as an expression, also if it is a Python boolean."""
    return tir.const(value, "bool") if isinstance(value, bool) else value


def quotient(a: Expr, b: Expr) -> Expr:
    """Return ``a // b`` with 32 bits, for a >= 0 and b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return a if isinstance(b, int) and b == 1 else tir.truncdiv(typed(a), typed(b))


def remainder(a: Expr, b: Expr) -> Expr:
    """Return ``a % b`` with 32 bits, for a >= 0 and b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return 0 if isinstance(b, int) and b == 1 else tir.truncmod(typed(a), typed(b))


def ceil_div(a: Expr, b: int) -> Expr:
    """Return ``a / b`` rounded up."""
    return quotient(a + (b - 1), b)


unravel = partial(emit.unravel, quotient=quotient, remainder=remainder)


def xor(a: Expr, b: Expr) -> Expr:
    """Return the bits in which two numbers differ."""
    if isinstance(a, int) and isinstance(b, int):
        return a ^ b
    return tir.bitwise_xor(typed(a), typed(b))


def _lanes(start: Expr, count: int) -> Expr:
    start = typed(start)
    return tir.Ramp(start, tir.IntImm(dtype_of(start), 1), count)


def get_vector(array: Array, start: Expr, count: int) -> Expr:
    """Return `count` neighbouring elements, loaded by one instruction: they begin at a multiple of
    their size.
    """
    return array.buffer[_lanes(start, count) if count > 1 else typed(start)]


def set_vector(array: Array, start: Expr, count: int, value: Expr) -> None:
    """Store `count` neighbouring elements by one instruction."""
    script.buffer_store(array.buffer, value, [_lanes(start, count) if count > 1 else typed(start)])


def along(operand: Operand, letter: str) -> Expr:
    """Return the stride of an axis; 0 for an axis of one element, which is not stored."""
    return operand.strides.get(letter, 0)
