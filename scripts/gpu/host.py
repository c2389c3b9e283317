# SPDX-License-Identifier: Apache-2.0
"""What the host's part of a function would launch, for operands of given shapes: nothing runs.

The host function that TVM makes is followed statement by statement: it takes the sizes from the
shapes of its operands, allocates workspaces and launches kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from .values import Value, Values, name_of

ARGUMENT, WORKSPACE = "argument", "workspace"


class Memory(NamedTuple):
    """An operand of the function, or a workspace of it, by number."""

    kind: str
    number: int


@dataclass(frozen=True)
class Launch:
    """One kernel, launched.

    Attributes
    ----------
    kernel : str
    grid, block : tuple of int
        Blocks, and threads of a block, along x, y, z.
    shared : int
        Bytes of dynamic shared memory.
    arguments : tuple of Memory or int
        In the kernel's order.
    types : tuple of str
        Of the arguments: a dtype, or ``pointer``.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[Memory | int, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class Launches:
    """All that one call of a function does: launches in order, and bytes of its workspaces."""

    launches: tuple[Launch, ...]
    workspaces: tuple[int, ...]


class _Field(NamedTuple):
    """What ``tvm_struct_get`` reads from: all arguments, one of them, or the sizes of one."""

    kind: str
    number: int = 0


# TVM's `tvm_struct_get` names what it reads by number (TVMStructFieldKind).
_SHAPE, _STRIDES, _TYPE_INDEX, _UNION, _ELEMENT = 2, 3, 13, 15, 17
_TENSOR = 70
"""Type index of a tensor that TVM owns."""


class _Host(Values):
    def __init__(self, func: Any, kernels: dict[str, Any], shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.kernels, self.shapes = kernels, shapes
        self.memory: dict[Any, Value] = {}
        self.launches: list[Launch] = []
        self.workspaces: list[int] = []
        self.variables[func.params[1]] = _Field("all")

    def call(self, name: str, expr: Any) -> Value:
        if name == "tvm_struct_get":
            return self._field(*(self.of(arg) for arg in expr.args[:3]))
        if name in ("reinterpret", "handle_add_byte_offset"):
            return self.of(expr.args[0])
        if name == "buffer_data":
            return self.memory.get(expr.args[0])
        if name == "isnullptr":
            return isinstance(self.of(expr.args[0]), type(None))
        return None

    def _field(self, source: Value, index: Value, kind: Value) -> Value:
        if not isinstance(source, _Field):
            return None
        if source.kind == "all":
            return _TENSOR if kind == _TYPE_INDEX else _Field("tensor", index)
        if source.kind == "sizes":
            return self.shapes[source.number][index]
        if kind == _SHAPE:
            return _Field("sizes", source.number)
        return None if kind == _STRIDES else source

    def run(self, stmt: Any) -> None:
        """Follow a statement."""
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for one in stmt.seq:
                self.run(one)
        elif kind == "Bind":
            self.variables[stmt.var] = self.of(stmt.value)
        elif kind == "IfThenElse":
            if self.of(stmt.condition):
                self.run(stmt.then_case)
            elif stmt.else_case is not None:
                self.run(stmt.else_case)
        elif kind == "DeclBuffer":
            self.memory[stmt.buffer] = self.of(stmt.data)
        elif kind == "AllocBuffer":
            self._allocate(stmt.buffer)
        elif kind == "Evaluate" and type(stmt.value).__name__ == "Call":
            self._evaluate(stmt.value)
        elif hasattr(stmt, "body"):
            self.run(stmt.body)

    def _allocate(self, buffer: Any) -> None:
        self.memory[buffer] = Memory(WORKSPACE, len(self.workspaces))
        elements = prod(int(self.of(size)) for size in buffer.shape)
        self.workspaces.append(elements * width_of(buffer.dtype))

    def _evaluate(self, call: Any) -> None:
        name = name_of(call)
        if name in ("call_ffi_kernel", "tvm_call_packed", "tvm_call_packed_lowered"):
            first, *rest = call.args
            kernel = getattr(first, "value", "")
            if kernel in self.kernels:
                self._launch(kernel, rest)

    def _launch(self, name: str, given: Sequence[Any]) -> None:
        func = self.kernels[name]
        count = len(func.params)
        values = [self.of(one) for one in given]
        tags = [str(tag) for tag in func.attrs["tirx.kernel_launch_params"]]
        extents = {tag: int(value) for tag, value in zip(tags, values[count:])}
        grid, block = (_of_axes(extents, kind) for kind in ("blockIdx", "threadIdx"))
        shared = extents.get("tirx.use_dyn_shared_memory", 0)
        arguments = tuple(
            Memory(ARGUMENT, value.number)
            if isinstance(value, _Field)
            else value
            if isinstance(value, Memory)
            else int(value)
            for value in values[:count]
        )
        types = tuple(map(_type_of, func.params))
        self.launches.append(Launch(name, grid, block, shared, arguments, types))


def _of_axes(extents: dict[str, int], kind: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(f"{kind}.{axis}", 1) for axis in "xyz")
    return x, y, z


def width_of(dtype: Any) -> int:
    """Bytes of an element."""
    bits = int("".join(filter(str.isdigit, str(dtype).replace("bfloat", "").partition("_")[0])))
    return max(1, bits // 8)


def _type_of(parameter: Any) -> str:
    text = str(parameter.ty)
    return "pointer" if "handle" in text else text.rpartition(".")[2]


def follow(func: Any, kernels: dict[str, Any], shapes: Sequence[Sequence[int]]) -> Launches:
    """What `func` launches for operands of these shapes.

    Parameters
    ----------
    func : PrimFunc
        The host's.
    kernels : dict
        The device's functions, by name.
    shapes : sequence of tuple of int
        Of all operands, the result among them.
    """
    host = _Host(func, kernels, shapes)
    host.run(func.body)
    return Launches(tuple(host.launches), tuple(host.workspaces))
