# SPDX-License-Identifier: Apache-2.0
"""Evaluate a host function for given shapes: the memory it allocates and the kernels it launches.

The function is read as TIR, after kernels are split off and before its arguments are packed.  TVM
itself is not needed here: plans that were made elsewhere are read without it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .faults import Unsupported

__all__ = [
    "BINARY",
    "CALLS",
    "Address",
    "Launch",
    "Memory",
    "Plan",
    "buffers_of",
    "extent",
    "name_of",
    "plan",
    "statements",
    "width_of",
]

Number = int | float | bool


class Memory(NamedTuple):
    """An argument, by its place, or a workspace (None)."""

    name: str
    argument: int | None
    bytes: int


class Address(NamedTuple):
    """A place in `memory[number]` of a plan."""

    number: int
    offset: int


class Launch(NamedTuple):
    """One launch of a kernel; sizes of grid and block are x, y and z.

    Each of `types` is the dtype of an argument, or ``handle``.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int
    arguments: tuple[Address | Number, ...]
    types: tuple[str, ...]


class Plan(NamedTuple):
    """Allocations and launches of one call."""

    memory: tuple[Memory, ...]
    launches: tuple[Launch, ...]


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
}
"""Expressions of two values, by the name of their class, but for those that round to zero."""

CALLS = {
    "bitwise_and": BINARY["BitwiseAnd"],
    "bitwise_or": BINARY["BitwiseOr"],
    "bitwise_xor": BINARY["BitwiseXor"],
    "shift_left": BINARY["LShift"],
    "shift_right": BINARY["RShift"],
}
"""Calls that TVM before 0.27 uses for some of these operators, by the name of the operator."""


def _kind(node: Any) -> str:
    return type(node).__name__


def _dtype(node: Any) -> str:
    kind = getattr(node, "ty", None)
    return str(getattr(kind, "dtype", None) or getattr(node, "dtype", None) or kind)


def _type_of(parameter: Any) -> str:
    """Return the type of a kernel's parameter; ``handle`` for every pointer."""
    dtype = _dtype(parameter)
    return "handle" if "handle" in dtype else dtype


def name_of(call: Any) -> str:
    """Name of the operator that a call calls, without its dialect."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def _truncated(a: Number, b: Number) -> int:
    quotient = abs(int(a)) // abs(int(b))
    return quotient if (a >= 0) == (b >= 0) else -quotient


def _bits(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8


def width_of(dtype: Any) -> int:
    """Bytes of an element."""
    return (_bits(str(dtype)) + 7) // 8


def statements(node: Any) -> Iterator[Any]:
    """This statement and all within it."""
    yield node
    inner = [getattr(node, name, None) for name in ("body", "then_case", "else_case")]
    for part in (*getattr(node, "seq", ()), *inner):
        if part is not None:
            yield from statements(part)


def buffers_of(host: Any) -> list[Any]:
    """For each parameter its buffer, or None for a scalar."""
    # Before TVM 0.26 a parameter is a handle that a map turns into a buffer.
    by_handle = {hash(k): v for k, v in (getattr(host, "buffer_map", None) or {}).items()}
    found = []
    for parameter in host.params:
        is_buffer = _kind(getattr(parameter, "ty", None)) == "BufferType"
        found.append(parameter if is_buffer else by_handle.get(hash(parameter)))
    return found


class _Reader:
    """Walks a host function with the values of its variables."""

    def __init__(self, name: str, kernels: dict[str, Any]) -> None:
        self.name, self.kernels = name, kernels
        self.values: dict[int, Any] = {}
        self.kept: list[Any] = []  # a hash is an address: what it is of must live
        self.memory: list[Memory] = []
        self.launches: list[Launch] = []

    def bind(self, variable: Any, value: Any) -> None:
        self.kept.append(variable)
        self.values[hash(variable)] = value

    def bind_data(self, buffer: Any, value: Any) -> None:
        self.bind(buffer, value)
        if _kind(buffer.data) == "Var":
            self.bind(buffer.data, value)

    # ---- arguments ---------------------------------------------------------------------------

    def take_arguments(self, host: Any, given: Sequence[Any]) -> None:
        buffers = buffers_of(host)
        if len(given) != len(buffers):
            raise ValueError(f"{self.name} takes {len(buffers)} arguments, {len(given)} given")
        tensors = []
        for place, (parameter, buffer, value) in enumerate(zip(host.params, buffers, given)):
            if buffer is None:
                self.bind(parameter, value.item() if isinstance(value, np.generic) else value)
                continue
            shape, name, sizes = tuple(buffer.shape), str(buffer.name), self._sizes(buffer, value)
            self._remember(buffer, place, sizes)
            tensors.append((name, shape, sizes))
        for _, shape, sizes in tensors:
            for dimension, size in zip(shape, sizes):
                if _kind(dimension) == "Var" and hash(dimension) not in self.values:
                    self.bind(dimension, size)
        for name, shape, sizes in tensors:
            expected = tuple(self.value(dimension) for dimension in shape)
            if expected != sizes:
                raise ValueError(f"{self.name}: {name} has shape {sizes}, expected {expected}")

    def _sizes(self, buffer: Any, value: Any) -> tuple[int, ...]:
        """Return the sizes of an array that fits the buffer; a shape stands for any such array."""
        name, wanted, rank = buffer.name, str(buffer.dtype), len(buffer.shape)
        is_array = isinstance(value, np.ndarray)
        sizes = value.shape if is_array else value
        if not isinstance(sizes, tuple) or len(sizes) != rank:
            raise ValueError(f"{self.name}: {name} is an array of {rank} dimensions")
        if is_array and not _fits(value.dtype, wanted):
            raise ValueError(f"{self.name}: {name} is {wanted}, {value.dtype} given")
        return sizes

    def _remember(self, buffer: Any, argument: int | None, sizes: Sequence[int]) -> None:
        self.bind_data(buffer, Address(len(self.memory), 0))
        size = math.prod(sizes) * width_of(buffer.dtype)
        self.memory.append(Memory(str(buffer.name), argument, size))

    # ---- statements --------------------------------------------------------------------------

    def statement(self, node: Any) -> None:
        handler = getattr(self, f"_{_kind(node).lower()}", None)
        if handler is None:
            raise Unsupported(f"{self.name}: a host statement {_kind(node)}")
        handler(node)

    def _seqstmt(self, node: Any) -> None:
        for part in node.seq:
            self.statement(part)

    def _bind(self, node: Any) -> None:
        self.bind(node.var, self.value(node.value))

    def _attrstmt(self, node: Any) -> None:
        self.statement(node.body)

    def _allocbuffer(self, node: Any) -> None:
        buffer = node.buffer
        self._remember(buffer, None, [int(self.value(extent)) for extent in buffer.shape])

    def _declbuffer(self, node: Any) -> None:
        data = getattr(node, "data", None)
        if data is None:
            data = node.buffer.data
        self.bind_data(node.buffer, self.value(data))

    def _assertstmt(self, node: Any) -> None:
        if not self.value(node.condition):
            raise ValueError(f"{self.name}: an assertion of the host fails: {node.condition}")

    def _ifthenelse(self, node: Any) -> None:
        branch = node.then_case if self.value(node.condition) else node.else_case
        if branch is not None:
            self.statement(branch)

    def _for(self, node: Any) -> None:
        first, extent = int(self.value(node.min)), int(self.value(node.extent))
        for i in range(first, first + extent):
            self.bind(node.loop_var, i)
            self.statement(node.body)

    def _evaluate(self, node: Any) -> None:
        call = node.value
        if _kind(call) != "Call":
            return
        name = name_of(call)
        if name in ("call_ffi_kernel", "tvm_call_packed"):
            kernel = str(call.args[0].value)
            if kernel not in self.kernels:
                raise Unsupported(f"{self.name}: the host calls {kernel}, which is no kernel")
            self._launch(kernel, call.args[1:])
        elif name != "ret":
            raise Unsupported(f"{self.name}: a host call of {name}")

    def _launch(self, kernel: str, given: Sequence[Any]) -> None:
        function = self.kernels[kernel]
        tags = [str(tag) for tag in function.attrs["tirx.kernel_launch_params"]]
        count = len(function.params)
        if len(given) != count + len(tags):
            raise Unsupported(f"{self.name}: {kernel} is launched with {len(given)} values")
        values = tuple(self.value(value) for value in given)
        sizes = {tag: int(value) for tag, value in zip(tags, values[count:])}
        grid, block = _popped(sizes, "blockIdx"), _popped(sizes, "threadIdx")
        dynamic = sizes.pop("tirx.use_dyn_shared_memory", 0)
        if sizes:
            raise Unsupported(f"{self.name}: {kernel} is launched with {', '.join(sizes)}")
        types = tuple(_type_of(parameter) for parameter in function.params)
        self.launches.append(Launch(kernel, grid, block, dynamic, values[:count], types))

    # ---- expressions -------------------------------------------------------------------------

    def value(self, node: Any) -> Any:
        if isinstance(node, (int, float)):
            return node
        kind = _kind(node)
        if kind in {"IntImm", "FloatImm"}:
            return node.value
        if hash(node) in self.values:
            return self.values[hash(node)]
        if kind in BINARY:
            return BINARY[kind](self.value(node.a), self.value(node.b))
        if kind == "Not":
            return not self.value(node.a)
        if kind in {"Div", "Mod"}:
            return self._quotient(kind, self.value(node.a), self.value(node.b), _dtype(node))
        if kind == "Cast":
            return self._cast(self.value(node.value), _dtype(node))
        if kind == "Select":
            chosen = node.true_value if self.value(node.condition) else node.false_value
            return self.value(chosen)
        if kind == "Let":
            self.bind(node.var, self.value(node.value))
            return self.value(node.body)
        if kind == "Call":
            return self._call(node)
        raise Unsupported(f"{self.name}: a host expression {kind}: {node}")

    @staticmethod
    def _quotient(kind: str, a: Number, b: Number, dtype: str) -> Number:
        if dtype.startswith("float"):
            return a / b if kind == "Div" else math.fmod(a, b)
        whole = _truncated(a, b)
        return whole if kind == "Div" else a - whole * b

    @staticmethod
    def _cast(value: Number, dtype: str) -> Number:
        if dtype == "bool":
            return bool(value)
        if dtype.startswith(("int", "uint")):
            bits, whole = _bits(dtype), int(value)
            whole &= (1 << bits) - 1
            negative = dtype.startswith("int") and whole >> (bits - 1)
            return whole - (1 << bits) if negative else whole
        return float(value)

    def _call(self, node: Any) -> Any:
        name = name_of(node)
        if name in {"buffer_data", "likely"}:
            return self.value(node.args[0])
        if name in CALLS:
            return CALLS[name](self.value(node.args[0]), self.value(node.args[1]))
        if name == "if_then_else":
            return self.value(node.args[1 if self.value(node.args[0]) else 2])
        if name in {"reinterpret", "handle_add_byte_offset"}:
            place = self.value(node.args[0])
            if isinstance(place, Address):
                more = 0 if name == "reinterpret" else int(self.value(node.args[1]))
                return place._replace(offset=place.offset + more)
        raise Unsupported(f"{self.name}: a host call of {name}")


def _fits(given: np.dtype, wanted: str) -> bool:
    """Return whether an array of dtype `given` may stand for `wanted`: NumPy itself has no
    bfloat16.
    """
    same = str(given) == wanted or (wanted == "bfloat16" and str(given) == "uint16")
    return same and given.itemsize * 8 == _bits(wanted)


def extent(dimension: Any, sizes: dict[str, int], name: str) -> int:
    """A dimension with sizes by their names; ``ValueError`` where one is missing."""
    reader = _Named(name, {})
    reader.sizes = sizes
    return int(reader.value(dimension))


class _Named(_Reader):
    """Knows variables by their names."""

    sizes: dict[str, int]

    def value(self, node: Any) -> Any:
        if _kind(node) != "Var":
            return super().value(node)
        if str(node.name) not in self.sizes:
            raise ValueError(f"{self.name}: --size {node.name}=... is missing")
        return self.sizes[str(node.name)]


def plan(name: str, host: Any, kernels: dict[str, Any], given: Sequence[Any]) -> Plan:
    """Return the allocations and launches of a call of this host function with `given`: arrays or
    their shapes, and numbers.

    Raises
    ------
    ValueError
        An argument that the function does not take.
    Unsupported
        The host does what this reader does not know.
    """
    reader = _Reader(name, kernels)
    reader.take_arguments(host, given)
    reader.statement(host.body)
    return Plan(tuple(reader.memory), tuple(reader.launches))


def _popped(sizes: dict[str, int], place: str) -> tuple[int, int, int]:
    """Remove the sizes of a grid or a block from `sizes`, and return them; 1 if absent."""
    x, y, z = (sizes.pop(f"{place}.{axis}", 1) for axis in "xyz")
    return x, y, z
