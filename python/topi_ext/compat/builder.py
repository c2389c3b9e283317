# SPDX-License-Identifier: Apache-2.0
"""Functions, blocks, variables, memory and intrinsics, by TVM's IRBuilder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from threading import RLock
from typing import Any

from .versions import (
    ADDRESSES_HAVE_TYPES,
    LETS_ARE_FRAMES,
    IRBuilder,
    StringImm,
    script,
    tir,
    tvm,
)

_NAMESPACE = tir.__name__.rpartition(".")[2]
_REINTERPRET, _PREFETCH = (f"{_NAMESPACE}.{name}" for name in ("reinterpret", "prefetch"))


building = RLock()
"""Held while a kernel is built: what is open then belongs to the process, not to a thread."""


_open: list[ExitStack] = []


@contextmanager
def statements(frame: Any) -> Iterator[Any]:
    """Enter `frame`; what :func:`bind` and :func:`allocate` open inside ends with it."""
    with frame as value, ExitStack() as inner:
        _open.append(inner)
        try:
            yield value
        finally:
            _open.pop()


def prim_func() -> Any:
    """Return the frame of a function."""
    return script.prim_func() if LETS_ARE_FRAMES else script.prim_func(s_tir=True)


@contextmanager
def root_block() -> Iterator[None]:
    """Open the frame of a function's body, which is a block if Relax requires one."""
    if LETS_ARE_FRAMES:
        # The body is taken out of the function, see relay_ext: no block may be around it.
        with statements(ExitStack()):
            yield
        return
    with statements(script.sblock("root")):
        # Stated empty: deriving the regions fails on the divisions of our indices.
        script.reads()
        script.writes()
        yield


def asserting(func: Any, rules: Sequence[tuple[Any, str]]) -> Any:
    """Return a function of :func:`root_block`, which raises the line of a rule that does not hold.

    Relay takes bodies out of functions, and does so itself.
    """
    if not rules or LETS_ARE_FRAMES:
        return func
    realize, root, kind = type(func.body), func.body.block, StringImm("ValueError")
    # In this order, whatever the constructor calls its parameters.
    asserts = [tir.AssertStmt(holds, kind, [StringImm(line)]) for holds, line in rules]
    body = tir.SeqStmt([*asserts, root.body])
    inside = type(root)([], [], [], root.name_hint, body, alloc_buffers=root.alloc_buffers)
    return func.with_body(realize([], tir.const(True, "bool"), inside))


def flat_alias(buffer: Any, elements: Any, dtype: str) -> Any:
    """Return the memory of `buffer` as a buffer with one axis, which begins where any element
    may.
    """
    if LETS_ARE_FRAMES:
        aligned = buffer.data_alignment
        return tir.decl_buffer((elements,), dtype, data=buffer.data, data_alignment=aligned)
    return script.decl_buffer((elements,), dtype, data=buffer.data, align=buffer.data_alignment)


def uses_var(expr: Any, variable: Any) -> bool:
    """Return whether a variable occurs in an expression."""
    return any(found.same_as(variable) for found in tir.analysis.undefined_vars(expr))


def bind(value: Any) -> Any:
    """Return a variable of the generated code."""
    if LETS_ARE_FRAMES:
        return _open[-1].enter_context(script.LetStmt(value))
    return script.bind(value)


def opaque(value: Any) -> Any:
    """`value`, about which TVM's passes know nothing more than that it has 64 bits."""
    return reinterpret(value, "int64")


def reinterpret(value: Any, dtype: str) -> Any:
    """Return the bits of `value` read as another dtype of the same width."""
    return tir.call_intrin(dtype, _REINTERPRET, value)


def converts_vectors(dtype: str) -> bool:
    """Return whether vectors of `dtype` may be converted and stored.

    Before TVM 0.27 those of bfloat16 fail as soon as a pass has rewritten them: it compares the
    vector with one element of where it is stored.
    """
    return dtype != "bfloat16" or hasattr(tvm, "sym")


def allocate(elements: Any, dtype: str, *, hidden: bool = False) -> Any:
    """Return a buffer that lives until the enclosing statements end.

    Parameters
    ----------
    hidden : bool
        Whether it is reached by its address.  TVM's CompactBufferAllocation evaluates each access
        to memory that a function allocates over all loops and variables in scope, which takes
        longer than all other passes; it looks at none that goes through an address.  TVM 0.26 and
        later.
    """
    if not LETS_ARE_FRAMES:
        made = script.alloc_buffer((elements,), dtype)
        if not (hidden and ADDRESSES_HAVE_TYPES):
            return made
        place = script.bind(tir.address_of(made[tir.IntImm("int64", 0)]))
        # The last use that TVM sees: until here it gives the memory to nothing else.
        _open[-1].callback(lambda: script.evaluate(made.data))
        return script.decl_buffer((elements,), dtype, data=place)
    data = _open[-1].enter_context(script.allocate([elements], dtype, "global"))
    return tir.decl_buffer((elements,), dtype, data=data)


_numbers = count()


def scoped(elements: Any, dtype: str, scope: str) -> Any:
    """Return a buffer in one of a GPU's memories: "global", "shared", "shared.dyn" or "local"."""
    if not LETS_ARE_FRAMES:
        return script.alloc_buffer((elements,), dtype, scope=scope)
    data = _open[-1].enter_context(script.allocate([elements], dtype, scope))
    # TVM 0.17 writes CUDA with the names as they are, be they empty.
    IRBuilder.name(f"held{next(_numbers)}", data)
    return tir.decl_buffer((elements,), dtype, data=data, scope=scope)


def launch_thread(tag: str, extent: Any) -> Any:
    """Return the frame of what runs once for each number below `extent`, which has this name on a
    GPU.
    """
    return script.launch_thread(tag, extent)


def barrier(scope: str) -> None:
    """Every thread of the block waits until all are here, and sees what they wrote."""
    script.evaluate(tir.call_intrin("void", f"{_NAMESPACE}.tvm_storage_sync", StringImm(scope)))


def imported_c(text: str) -> Any:
    """Return the frame of statements that may call the functions that `text`, in CUDA, defines.

    TVM writes it once for every launch of a module, into one file.
    """
    return script.attr(tir.IntImm("int32", 0), "pragma_import_c", text)


def least_blocks(count: int) -> Any:
    """The frame of a kernel whose threads get so few registers that a multiprocessor holds `count`
    blocks.  Releases of TVM before 0.27 leave the choice to the compiler."""
    name = f"{_NAMESPACE}.launch_bounds_min_blocks_per_sm"
    return script.attr(tir.IntImm("int32", 0), name, tir.IntImm("int32", count))


def unrolled_by_compiler() -> Any:
    """Return the frame of loops that are unrolled by the compiler of what TVM writes, and not by
    TVM.
    """
    no = tir.IntImm("bool", 0)
    return script.attr(tir.IntImm("int32", 0), "pragma_unroll_explicit", no)


def size_var(name: str) -> Any:
    """Return a fresh variable for a size."""
    return tir.Var(name, "int64")


def address(buffer: Any, offset: Any) -> Any:
    """Return the address of the byte `offset` of a buffer, of which any part may then be used."""
    # Not of an element: TVM would take it for the only one that is used, and allocate no more.
    return tir.call_intrin("handle", "tirx.handle_add_byte_offset", buffer.data, offset)


def llvm_call(name: str, *arguments: Any) -> None:
    """Emit a call of one of LLVM's intrinsics."""
    script.evaluate(tir.call_llvm_intrin("void", name, *arguments))


def prefetch(buffer: Any, index: Any, cache: int) -> None:
    """Ask for the cache line of an element of an argument, into the first cache or the second;
    nothing is read.
    """
    if str(buffer.dtype) == "bfloat16" and not ADDRESSES_HAVE_TYPES:
        return  # Rewriting bfloat16, these releases lose the element whose address is taken.
    place = tir.address_of(buffer[index])
    locality = 4 - cache
    to_read, near, data = (tir.IntImm("int32", number) for number in (0, locality, 1))
    operation = tvm.ir.Op.get(_PREFETCH)
    script.evaluate(tir.call_intrin("void", operation, place, to_read, near, data))


def reads_llvm() -> bool:
    """Return whether :func:`imported_llvm` takes text with opaque pointers, as LLVM 17 writes
    it.
    """
    return not LETS_ARE_FRAMES and tvm.target.codegen.llvm_version_major() >= 17


@contextmanager
def imported_llvm(text: str) -> Iterator[None]:
    """Statements inside may call the functions that `text`, in LLVM's language, defines.

    They are inlined.
    """
    with statements(script.attr(tir.IntImm("int32", 0), "pragma_import_llvm", text)):
        yield


def extern_value(dtype: str, name: str, *arguments: Any) -> Any:
    """Return the result of an external function without side effects."""
    return tir.call_pure_extern(dtype, name, *arguments)


def extern_call(name: str, *arguments: Any) -> None:
    """Call a function that returns nothing."""
    script.evaluate(tir.call_extern("void", name, *arguments))


def system_call(*arguments: int) -> Any:
    """Return the result of a Linux system call."""
    numbers = (tir.IntImm("int64", argument) for argument in arguments)
    return tir.call_extern("int64", "syscall", *numbers)
