# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA C++ that TVM generates on the CPU, to check its results and to find races.

No GPU, driver or CUDA toolkit is needed: TVM's passes make the text, a C++ compiler turns it into a
program in which the threads of a block take turns, and the host function is read as TIR.

See docs/developer/cuda-emulator.md for what it finds, and for what it cannot see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import compiler, host, process
from .faults import Fault, Unsupported
from .translate import translated

if TYPE_CHECKING:
    from .lowering import Lowered

__all__ = ["Fault", "Kernel", "Run", "Unsupported", "build"]


class Kernel(NamedTuple):
    """A kernel, with what is known of its launch before sizes are: None where it is not."""

    name: str
    threads: int | None
    block: tuple[int | None, ...]
    grid: tuple[int | None, ...]
    static_shared: int
    dynamic_shared: int | None


class Run:
    """A module made to run: call it with NumPy arrays, which are written in place."""

    def __init__(
        self, lowered: Lowered, mode: str, name: str | None, edit: Callable[[str], str] | None
    ) -> None:
        if mode not in compiler.MODES:
            raise ValueError(f"mode={mode!r} is none of {', '.join(compiler.MODES)}")
        self.mode, self._lowered = mode, lowered
        self.name = name if name is None else lowered.chosen(name)
        self.source: str = edit(lowered.source) if edit else lowered.source
        self._names = list(lowered.kernels)
        self._text = translated(self.source, self._names)

    @property
    def functions(self) -> list[str]:
        """Names of the functions that can be run."""
        return list(self._lowered.hosts)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of the module."""
        return [_described(name, kernel) for name, kernel in self._lowered.kernels.items()]

    def parameters(self, name: str | None = None) -> list[Any]:
        """For each parameter its TIR buffer, or None for a scalar."""
        return host.buffers_of(self._host(name))

    def declared(self, name: str | None = None) -> list[Any]:
        """The parameters themselves."""
        return list(self._host(name).params)

    def _host(self, name: str | None) -> Any:
        return self._lowered.hosts[self._lowered.chosen(name or self.name)]

    def launches(self, *arrays: Any, name: str | None = None) -> list[host.Launch]:
        """Return the launches of a call with these arrays, or with arrays of these shapes."""
        return list(self._lowered.plan(*arrays, name=name or self.name).launches)

    def __call__(
        self, *arrays: Any, order: int = 0, name: str | None = None, timeout: float = 600
    ) -> None:
        """Run the function on arrays in the order of its arguments; results are written in place.

        Parameters
        ----------
        order
            Of threads and blocks: 0 ascending, 1 descending, any other number a seed of shuffles.
        name
            Of the function, where the module holds several.
        timeout
            Seconds after which the program is given up.

        Raises
        ------
        Fault
            A race, an access out of bounds, a barrier that not all threads reach...
        ValueError
            Arrays that the function does not take.
        """
        if any(isinstance(value, tuple) for value in arrays):
            raise ValueError("shapes have no elements: a call takes arrays")
        plan = self._lowered.plan(*arrays, name=name or self.name)
        program = compiler.program(self._text, self.mode)
        process.run(program, plan, self._names, arrays, order, timeout, self._lowered.shared)


def _constant(value: Any) -> int | None:
    return int(value.value) if type(value).__name__ == "IntImm" else None


def _described(name: str, kernel: Any) -> Kernel:
    extents: dict[str, int | None] = {}
    shared: dict[str, int | None] = {"shared": 0, "shared.dyn": 0}

    for node in host.statements(kernel.body):
        kind = type(node).__name__
        if kind == "AttrStmt" and str(node.attr_key) == "thread_extent":
            extents[str(node.node.thread_tag)] = _constant(node.value)
        elif kind == "AllocBuffer":
            scope = str(node.buffer.scope())
            if scope in shared:
                shared[scope] = _sum(shared[scope], _bytes(node.buffer))
    grid, block = (
        tuple(extents.get(f"{place}.{axis}", 1) for axis in "xyz")
        for place in ("blockIdx", "threadIdx")
    )
    threads: int | None = 1
    for extent in block:
        threads = None if threads is None or extent is None else threads * extent
    return Kernel(name, threads, block, grid, shared["shared"] or 0, shared["shared.dyn"])


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _bytes(buffer: Any) -> int | None:
    size: int = host.width_of(buffer.dtype)
    for extent in map(_constant, buffer.shape):
        if extent is None:
            return None
        size *= extent
    return size


def build(
    mod: Any,
    target: Any,
    mode: str = "fibers",
    edit: Callable[[str], str] | None = None,
    name: str | None = None,
) -> Run:
    """Make a module of scheduled PrimFuncs, or one PrimFunc, run on the CPU.

    Parameters
    ----------
    mod
        An IRModule of PrimFuncs whose loops are bound to blocks and threads, or a PrimFunc.
    target
        A CUDA target, its text, a dict, or only an architecture such as ``"sm_90"``.
    mode
        ``fibers``: fast; ``watch``: every access of memory is checked; ``threads``: threads of the
        system under ThreadSanitizer; ``sanitize``: under Address- and UndefinedBehaviorSanitizer.
    edit
        Changes the CUDA text before it is compiled: to plant a fault.
    name
        Of the function that a call runs, where the module holds several.

    Raises
    ------
    Unsupported
        One line that names what the emulator does not know.
    """
    from .lowering import lower  # the only part that needs TVM

    return Run(lower(mod, target), mode, name, edit)
