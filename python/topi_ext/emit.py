# SPDX-License-Identifier: Apache-2.0
"""The verbs in which kernels are written: a thin layer over TVM's IRBuilder.

A kernel reads as its loop nest::

    with kernel("double") as attrs:
        x = argument("X", (n,), "float32")
        y = argument("Y", (n,), "float32")
        with body():
            with tasks(n, parallel=True) as i:
                store(y, i, x[i] * 2)

Sizes and indices may be Python integers or expressions: integers fold here, so that one kernel
text serves static and symbolic sizes.  Loops over one element disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from . import tvm_compat
from .dtypes import byte_width
from .tvm_compat import IRBuilder, script, statements, tir

Expr = Any
"""A Python integer or boolean, or an expression of the IR."""


class Array:
    """A flat buffer; ``array[i]`` loads one element, ``array[lanes_of(i, n)]`` a vector."""

    def __init__(self, buffer: Any, dtype: str):
        self.buffer = buffer
        self.dtype = dtype

    def __getitem__(self, index: Expr) -> Expr:
        return self.buffer[wide(index)]

    def load(self, index: Expr, dtype: str) -> Expr:
        """One element as `dtype`."""
        return cast(self[index], self.dtype, dtype)


class Operand(Array):
    """An argument of the kernel as a flat array with a stride per stored axis."""

    def __init__(self, buffer: Any, dtype: str, order: str, shape: Sequence[Expr]):
        super().__init__(buffer, dtype)
        self.strides: dict[str, Expr] = {}
        self.sizes = dict(zip(order, shape))
        stride: Expr = 1
        for letter, size in reversed(list(zip(order, shape))):
            self.strides[letter] = stride
            stride = stride * size

    def at(self, letters: str, *where: Expr) -> Expr:
        """Flat index of the element whose axes `letters` have the values `where`.

        Letters that the operand does not store are unit axes: they are left out.
        """
        return sum(i * self.strides[a] for a, i in zip(letters, where) if a in self.strides)

    def is_run(self, letters: str) -> bool:
        """Whether the axes `letters` lie in memory as one run, the last one fastest.

        Other axes of one element do not count.
        """
        counts = {a for a, size in self.sizes.items() if not isinstance(size, int) or size != 1}
        stored = [a for a in self.sizes if a in letters or a in counts]
        wanted = [a for a in letters if a in self.sizes]
        return stored[len(stored) - len(wanted) :] == wanted


class Part(Operand):
    """Elements of `whole` from `start` on, as an operand of its own that is only read."""

    def __init__(self, whole: Array, start: int, order: str, shape: Sequence[Expr]):
        super().__init__(whole.buffer, whole.dtype, order, shape)
        self.start = start

    def __getitem__(self, index: Expr) -> Expr:
        return self.buffer[wide(index + self.start)]


# -------------------------------------------------------------------- the function


class _Scratch:
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
        """What is allocated inside is given back at the end."""
        before = self.now
        yield
        self.now = before


def _exceeds(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a != b and a[0] >= b[0] and a[1] >= b[1]


_scratch: list[_Scratch] = []
"""Of the kernels that are being built, the innermost last."""

SCRATCH_BYTES = "topi_ext.scratch_bytes"
"""Attribute of a kernel: pairs of the bytes that it allocates once and for each task that runs, one
for each branch that takes most; left out where a size is symbolic."""


@contextmanager
def kernel(attrs: dict[str, Any]) -> Iterator[list[Any]]:
    """Build a PrimFunc; the list that is yielded holds it when the block ends.

    Other threads wait until then.
    """
    made: list[Any] = []
    with tvm_compat.building:
        _scratch.append(_Scratch())
        try:
            with IRBuilder() as builder:
                with tvm_compat.prim_func():
                    script.func_attr(attrs)
                    yield made
            func = builder.get()
        finally:
            used = _scratch.pop()
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
    """Open the body (Relax asks for a root block) and yield the arguments as flat operands."""
    with tvm_compat.root_block():
        operands = []
        for buffer, order, shape, dtype in arguments:
            elements: Expr = 1
            for size in shape:
                elements = elements * size
            flat = tvm_compat.flat_alias(buffer, wide(elements), dtype)
            operands.append(Operand(flat, dtype, order, shape))
        is_static = all(isinstance(size, int) for _, _, shape, _ in arguments for size in shape)
        with nullcontext() if is_static else _room_for_sizes():
            yield operands


# -------------------------------------------------------------------- memory


STACK_BYTES = 992
"""What TVM leaves on the stack, where LLVM may make registers of it."""


def scratch(elements: Expr, dtype: str) -> Array:
    """Memory of the enclosing loop body; what it holds at first is undefined."""
    _scratch[-1].add(elements, dtype)
    is_small = isinstance(elements, int) and elements * byte_width(dtype) <= STACK_BYTES
    return _array(elements, dtype, hidden=not is_small)


def _array(elements: Expr, dtype: str, *, hidden: bool = False) -> Array:
    return Array(tvm_compat.allocate(wide(elements), dtype, hidden=hidden), dtype)


def registers(vectors: int, lanes: int, dtype: str) -> list[tuple[Array, Expr]]:
    """`vectors` vectors in registers: for each, the array that holds it and its index there.

    They are no memory, and not counted as such.
    Each is an array of its own.  TVM puts arrays whose use has ended and new ones into the same
    memory if one is at most 16 times the other: registers in what was a row of data would stay
    memory, and be written back where LLVM needs the registers for something else.
    """
    return [(_array(lanes, dtype, hidden=True), lanes_of(0, lanes)) for _ in range(vectors)]


def table(values: Sequence[float], dtype: str = "int64") -> Callable[[Expr], Expr]:
    """Numbers that are known now, looked up when the kernel runs; kept in memory if need be."""
    steps = {b - a for a, b in zip(values, values[1:])}
    if dtype == "int64" and len(steps) < 2:
        step = steps.pop() if steps else 0
        return lambda i: values[0] + (i * step if step else 0)
    held = scratch(len(values), dtype)
    for i, value in enumerate(values):
        store(held, i, constant(value, dtype))
    return lambda i: let(held[i])


def store(array: Array, index: Expr, value: Expr) -> None:
    """Write one element, or a vector when `index` is one."""
    script.buffer_store(array.buffer, value, [wide(index)])


def lanes_of(start: Expr, count: int) -> Expr:
    """The index of `count` neighbouring elements."""
    return tir.Ramp(wide(start), wide(1), count)


def broadcast(value: Expr, count: int) -> Expr:
    """One value in every lane."""
    return tir.Broadcast(value, count)


def shuffled(vectors: Sequence[Expr], elements: Sequence[int]) -> Expr:
    """A vector of some `elements`, counted through all `vectors`."""
    return tir.Shuffle(list(vectors), [tir.IntImm("int32", i) for i in elements])


def select(condition: Expr, value: Expr, other: Expr) -> Expr:
    """`value` where `condition` holds, else `other`; both are computed."""
    return tir.Select(condition, value, other)


def cast(value: Expr, given: str, wanted: str) -> Expr:
    """`value`, whose dtype is `given`, in another."""
    return value if given == wanted else value.astype(wanted)


def converted(vector: Expr, dtype: str, lanes: int) -> Expr:
    """A vector in another dtype."""
    return vector.astype(f"{dtype}x{lanes}")


def bits(value: Expr, dtype: str) -> Expr:
    """The bits of `value` read as another dtype of the same width."""
    return tvm_compat.reinterpret(value, dtype)


def function(name: str, value: Expr) -> Expr:
    """A function of the mathematics library."""
    return getattr(tir, name)(value)


def constant(value: float, dtype: str) -> Expr:
    """A typed constant."""
    return tir.const(value, dtype)


def fill(array: Array, start: Expr, count: Expr, value: Expr) -> None:
    """Write `value` to `count` neighbouring elements."""
    loop(count, lambda i: store(array, start + i, value))


def ask(operand: Operand, start: Expr) -> None:
    """Ask for the cache line of an element, which is read later: it comes while others are used."""
    tvm_compat.prefetch(operand.buffer, wide(start))


# -------------------------------------------------------------------- control


@contextmanager
def tasks(extent: Expr, parallel: bool) -> Iterator[Expr]:
    """A loop over independent tasks, which the threads of the runtime share if `parallel`."""
    kind = script.parallel if parallel else script.serial
    outer, _scratch[-1].in_task = _scratch[-1].in_task, parallel or _scratch[-1].in_task
    # What a parallel task allocates is given back when it ends, before other tasks begin.
    held = _scratch[-1].branch() if parallel else nullcontext()
    with statements(kind(wide(0), wide(extent))) as i, held:
        with _room_for_sizes() if _sizes else nullcontext():
            yield i
    _scratch[-1].in_task = outer


def loop(extent: Expr, step: Callable[[Expr], None]) -> None:
    """Run ``step(i)`` for i below `extent`, at run time; nothing is emitted for extent 0."""
    if isinstance(extent, int) and extent <= 1:
        if extent == 1:
            step(0)
        return
    with statements(script.serial(wide(0), wide(extent))) as i:
        step(i)


def tiles(count: int, size: int, step: Callable[[Expr, int], None]) -> None:
    """``step(first, size)`` for the tiles of `count`, of which the last may be smaller."""
    full, tail = divmod(count, size)
    loop(full, lambda i: step(i * size, size))
    if tail:
        step(full * size, tail)


def tiles_then_ones(count: Expr, size: int, step: Callable[[Expr, int], None]) -> None:
    """``step(first, size)`` for whole tiles of `count`, and ``step(first, 1)`` for what is left."""
    whole = count // size
    loop(whole, lambda i: step(i * size, size))
    if size > 1 and (not isinstance(count, int) or count % size):
        done = whole * size
        loop(count - done, lambda i: step(done + i, 1))


def tiles_or_ones(count: Expr, size: int, step: Callable[[Expr, int], None]) -> None:
    """``step(first, size)`` for tiles that cover `count`, of which a last one may reach behind it.

    Of a count known only at run time what is left of whole tiles goes one by one.
    """
    if isinstance(count, int):
        loop(-(-count // size), lambda i: step(i * size, size))
    else:
        tiles_then_ones(count, size, step)


def present(first: Expr, size: Expr, block: Expr) -> Expr:
    """How many of a `block` of numbers from `first` on, a multiple of `block`, are below `size`.
    At least one is: who calls has to see to it that `first` itself is below."""
    if isinstance(size, int) and isinstance(block, int) and size % block == 0:
        return block
    return let(least(block, size - first))


def share_of(count: Expr, shares: int, number: Expr, step: Callable[[Expr], None]) -> None:
    """``step(i)`` for the part of all i below `count` that is share `number` of so many."""
    each = ceil_div(count, shares)
    is_even = shares == 1 or (isinstance(count, int) and count % shares == 0)

    def one(i: Expr) -> None:
        place = let(number * each + i)
        when(True if is_even else place < count, lambda: step(place))

    loop(each, one)


def let(value: Expr) -> Expr:
    """`value`, computed once: a variable of the generated code unless it is an integer.

    Divisions are best hidden in one: TVM's region analysis fails on some remainders in indices.
    """
    return value if isinstance(value, int) else tvm_compat.bind(value)


def settled(value: Expr, dtype: str) -> Expr:
    """`value` of this dtype, computed now, through memory that LLVM turns into a register.

    For conversions: TVM 0.27 forgets those of bfloat16 in the value of a variable.
    """
    held = scratch(1, dtype)
    store(held, 0, value)
    return held[0]


def origin(value: Expr) -> Expr:
    """`value`, computed once, as the 64-bit start of a row: index a row by ``origin + i``.

    TVM would take such sums apart, narrow them to 32 bits and spread them over the loops; LLVM
    then can't see that neighbours are neighbours, and gathers them one by one.  An integer stays
    one: a zero that is read as another type TVM 0.27 takes for a null pointer.
    """
    return value if isinstance(value, int) else let(tvm_compat.opaque(value))


def chosen(value: Expr) -> Expr:
    """`value`, computed once, and no more than a number to TVM; an integer stays one.

    For sizes that a kernel chooses when it runs: TVM would put their divisions and minima into
    every index that uses them, and then simplify for minutes. It does not look into memory.
    """
    if isinstance(value, int):
        return value
    number = next(_sizes[-1].free, None) if _sizes else None
    if number is None:
        return let(settled(wide(value), "int64"))
    store(_sizes[-1].held, number, wide(value))
    return let(_sizes[-1].held[number])


class _Sizes:
    """Room for what is chosen, of a kernel of symbolic sizes or of one of its tasks.

    One hidden array: TVM takes long over many small ones.
    """

    def __init__(self) -> None:
        count = STACK_BYTES // byte_width("int64")
        self.held = _array(count, "int64", hidden=True)
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


def nest(extents: Sequence[Expr], step: Callable[..., None]) -> None:
    """Nested loops: ``step(i, j, ...)``, the last index running fastest."""
    if not extents:
        step()
        return
    loop(extents[0], lambda i: nest(extents[1:], lambda *rest: step(i, *rest)))


def when(
    condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:
    """Emit a branch, or only the side that a Python boolean chooses."""
    if isinstance(condition, bool):
        if condition:
            then()
        elif otherwise is not None:
            otherwise()
        return
    with script.If(condition):
        with statements(script.Then()), _scratch[-1].branch():
            then()
        if otherwise is not None:
            with statements(script.Else()), _scratch[-1].branch():
                otherwise()


def both(*conditions: Expr) -> Expr:
    """Conjunction; Python booleans fold."""
    result: Expr = True
    for condition in conditions:
        if isinstance(condition, bool):
            if not condition:
                return False
        else:
            result = condition if isinstance(result, bool) else tir.And(result, condition)
    return result


def choose(condition: Expr, value: Callable[[], Expr], other: Expr) -> Expr:
    """``value()`` where `condition` holds, evaluated only there."""
    if isinstance(condition, bool):
        return value() if condition else other
    return tir.if_then_else(condition, wide(value()), wide(other))


def least(a: Expr, b: Expr) -> Expr:
    """The smaller of two."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tir.min(wide(a), wide(b))


def most(a: Expr, b: Expr) -> Expr:
    """The larger of two."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tir.max(wide(a), wide(b))


def quotient(a: Expr, b: Expr) -> Expr:
    """``a // b`` of a >= 0 and b > 0.

    By a size known at run time TVM's floor division would be four operations that ask for signs,
    and nested ones grow exponentially.
    """
    return a // b if isinstance(b, int) else tir.truncdiv(wide(a), b)


def remainder(a: Expr, b: Expr) -> Expr:
    """``a % b`` of a >= 0 and b > 0; see :func:`quotient`."""
    return a % b if isinstance(b, int) else tir.truncmod(wide(a), b)


def ceil_div(a: Expr, b: Expr) -> Expr:
    """``a / b`` rounded up."""
    return quotient(a + (b - 1), b)


def unravel(index: Expr, extents: Sequence[Expr]) -> tuple[Expr, ...]:
    """The digits of `index` in the mixed radix `extents`, most significant first."""
    digits: list[Expr] = []
    for extent in reversed(extents[1:]):
        if isinstance(extent, int) and extent == 1:
            digits.append(0)
            continue
        digits.append(remainder(index, extent))
        index = quotient(index, extent)
    return (index, *reversed(digits))


def wide(value: Expr) -> Expr:
    """`value` as an index: 64 bits throughout, since Relax sizes are 64 bits wide."""
    return tir.IntImm("int64", value) if isinstance(value, int) else value
