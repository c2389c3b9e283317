# SPDX-License-Identifier: Apache-2.0
"""The primitives in which CUDA kernels are written: those of every target, and launches, threads,
memories and barriers.

Indices within a kernel have 32 bits, but for what is added to the start of a tensor: `flat`.  What
a kernel computes once and uses often is kept by :func:`opaque_value`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .. import compat, emit
from ..compat import script, statements, tir
from ..emit import *  # noqa: F403  what every target has
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
    """Dtype of an expression."""
    return str(getattr(value, "dtype", None) or value.ty)


def narrow(value: Expr) -> Expr:
    """`value` as an index of 32 bits; a Python integer stays one."""
    if isinstance(value, int) or dtype_of(value) == "int32":
        return value
    return value.astype("int32")


def flat(value: Expr) -> Expr:
    """`value` with 64 bits, for what tensors are indexed by."""
    if isinstance(value, int):
        return value
    return value if dtype_of(value) == "int64" else value.astype("int64")


def _index(value: Expr) -> Expr:
    return tir.IntImm("int32", value) if isinstance(value, int) else value


@contextmanager
def launch(
    blocks: Expr, threads: int, functions: str = "", least_blocks: int = 1
) -> Iterator[tuple[Expr, Expr]]:
    """One kernel: the number of its block and of its thread in the block.

    Parameters
    ----------
    blocks : int or expression
    threads : int
        Of a block.
    functions : str
        What the kernel calls, in CUDA.
    least_blocks : int
        That a multiprocessor is to hold at once, which bounds the registers of a thread.
    """
    # An empty batch, of a size that only run time knows, is no reason to launch nothing: CUDA
    # refuses that.
    blocks = _index(blocks) if isinstance(blocks, int) else most(1, narrow(blocks))
    with ExitStack() as open_frames:
        block = open_frames.enter_context(compat.launch_thread("blockIdx.x", blocks))
        thread = open_frames.enter_context(compat.launch_thread("threadIdx.x", _index(threads)))
        if least_blocks > 1:
            open_frames.enter_context(compat.least_blocks(least_blocks))
        if functions:
            open_frames.enter_context(compat.imported_c(functions))
        open_frames.enter_context(compat.unrolled_by_compiler())
        open_frames.enter_context(statements(ExitStack()))
        yield block, thread


def workspace_of(elements: Expr, dtype: str) -> Array:
    """Memory of the device that kernels of one function hand each other."""
    workspace().add(elements, dtype)
    return Array(compat.scoped(wide(elements), dtype, "global"), dtype)


def shared(elements: int, dtype: str, scope: str = "shared") -> Array:
    """Memory of the threads of a block."""
    return Array(compat.scoped(_index(elements), dtype, scope), dtype)


def local(elements: int, dtype: str) -> Array:
    """Registers of a thread, as long as all its indices are known when it is compiled."""
    return Array(compat.scoped(_index(elements), dtype, "local"), dtype)


def via_register(value: Expr, dtype: str) -> Expr:
    """`value` of this dtype, through a register of its own that TVM does not look into."""
    held = local(1, dtype)
    store(held, _index(0), value)
    return held[_index(0)]


def opaque_value(value: Expr) -> Expr:
    """`value`, computed once, and no more than a number to TVM; a Python integer stays one.

    TVM would put its text into every index that uses it, and simplify for ten times as long.
    """
    return value if isinstance(value, int) else via_register(value, dtype_of(value))


def barrier(scope: str = "shared") -> None:
    """All threads of the block wait for each other, and see what the others wrote."""
    compat.barrier(scope)


def call(name: str, *arguments: Expr) -> None:
    """Call a device function that returns nothing."""
    compat.extern_call(name, *map(_index, arguments))


def loop(extent: Expr) -> Iterator[Expr]:
    """Emit a serial loop of 32 bits: ``for i in loop(extent)``, as :func:`topi_ext.emit.loop`."""
    if isinstance(extent, int) and extent <= 1:
        if extent == 1:
            yield 0
        return
    with statements(script.serial(_index(0), _index(extent))) as i:
        yield i


def unrolled(extent: int) -> Iterator[Expr]:
    """Emit a loop that the compiler unrolls, ``for i in unrolled(extent)``: TVM's passes see its
    body once."""
    if extent == 1:
        yield 0
        return
    with statements(script.unroll(_index(0), _index(extent))) as i:
        yield i


def pick(condition: Expr, value: Callable[[], Expr], other: Expr) -> Expr:
    """``value()`` where `condition` holds, evaluated only there."""
    if isinstance(condition, bool):
        return value() if condition else other
    return tir.if_then_else(condition, value(), other)


def condition(value: Expr) -> Expr:
    """A condition as an expression, also one that Python knows."""
    return tir.const(value, "bool") if isinstance(value, bool) else value


def quotient(a: Expr, b: Expr) -> Expr:
    """``a // b`` of a >= 0 and b > 0, of 32 bits."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return a if isinstance(b, int) and b == 1 else tir.truncdiv(_index(a), _index(b))


def remainder(a: Expr, b: Expr) -> Expr:
    """``a % b`` of a >= 0 and b > 0, of 32 bits."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return 0 if isinstance(b, int) and b == 1 else tir.truncmod(_index(a), _index(b))


def ceil_div(a: Expr, b: int) -> Expr:
    """``a / b`` rounded up."""
    return quotient(a + (b - 1), b)


def unravel(index: Expr, extents: Sequence[Expr]) -> tuple[Expr, ...]:
    """The digits of `index` in the mixed radix `extents`, most significant first."""
    digits: list[Expr] = []
    for extent in reversed(extents[1:]):
        digits.append(remainder(index, extent))
        index = quotient(index, extent)
    return (index, *reversed(digits))


def least(a: Expr, b: Expr) -> Expr:
    """The smaller of two numbers of 32 bits."""
    known = isinstance(a, int) and isinstance(b, int)
    return min(a, b) if known else tir.min(_index(a), _index(b))


def most(a: Expr, b: Expr) -> Expr:
    """The larger of two numbers of 32 bits."""
    known = isinstance(a, int) and isinstance(b, int)
    return max(a, b) if known else tir.max(_index(a), _index(b))


def typed(value: Expr) -> Expr:
    """`value` as an expression of 32 bits."""
    return _index(value)


def xor(a: Expr, b: Expr) -> Expr:
    """The bits in which two numbers differ."""
    if isinstance(a, int) and isinstance(b, int):
        return a ^ b
    return tir.bitwise_xor(_index(a), _index(b))


def _lanes(start: Expr, count: int) -> Expr:
    start = _index(start)
    return tir.Ramp(start, tir.IntImm(dtype_of(start), 1), count)


def get_vector(array: Array, start: Expr, count: int) -> Expr:
    """`count` neighbouring elements by one instruction: they begin at a multiple of their size."""
    return array.buffer[_lanes(start, count) if count > 1 else _index(start)]


def set_vector(array: Array, start: Expr, count: int, value: Expr) -> None:
    """Write `count` neighbouring elements by one instruction."""
    script.buffer_store(array.buffer, value, [_lanes(start, count) if count > 1 else _index(start)])


def along(operand: Operand, letter: str) -> Expr:
    """The stride of an axis; 0 where it is not stored, since it has one element."""
    return operand.strides.get(letter, 0)
