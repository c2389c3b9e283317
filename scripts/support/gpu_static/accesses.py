# SPDX-License-Identifier: Apache-2.0
"""Addresses that the threads of a block read and write: a kernel's indices, evaluated for all of
its threads at once.

Numbers with a fraction are not computed, for no index depends on them.  Loops at run time are
followed a few times: their addresses repeat.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cuda_emulator.host import name_of, width_of

from .banks import sectors, wavefronts
from .values import Value, Values

TURNS = 3
"""Evaluated iterations of a loop whose length is known only at run time."""

_EXTERN = ("call_extern", "call_pure_extern")

_UNROLLED = 3  # ForKind.UNROLLED
_SIXTEEN = 16
"""Bytes that device functions of ours move at a time, if their names say no other number."""


class Site(NamedTuple):
    """Accesses that are counted together.

    Attributes
    ----------
    space : str
        ``"shared"`` or ``"global"``.
    verb : str
        ``"load"`` or ``"store"``.
    width : int
        Bytes of a thread.
    looped : bool
        Whether within a loop at run time, as the main loop is.
    """

    space: str
    verb: str
    width: int
    looped: bool


@dataclass
class Count:
    """Accesses of a kind by warps.

    Attributes
    ----------
    requests : int
    taken, least : int
        Of shared memory, cycles that they take, and would without conflicts of banks; of global
        memory, sectors of 32 bytes that they touch, and would touch if they lay side by side.
    worst : int
        Most cycles of a part of a request that could take one.
    where : str
        Index of the worst.
    """

    requests: int = 0
    taken: int = 0
    least: int = 0
    worst: int = 0
    where: str = ""

    def add(self, made: tuple[int, int, int, int], where: str) -> None:
        """Count the requests of all warps of a block at one place of the text."""
        requests, taken, least, worst = made
        self.requests += requests
        self.taken += taken
        self.least += least
        if worst > self.worst:
            self.worst, self.where = worst, where


@dataclass
class _State:
    """Threads that are active at a statement, and if it is in a loop."""

    mask: np.ndarray
    looped: bool = False


@dataclass
class _Memory:
    """Root of each buffer, and what those of integers hold."""

    roots: dict[Any, Any] = field(default_factory=dict)
    scopes: dict[Any, str] = field(default_factory=dict)
    local: dict[Any, np.ndarray] = field(default_factory=dict)
    shared: dict[Any, np.ndarray] = field(default_factory=dict)

    def root(self, buffer: Any) -> Any:
        return self.roots.get(buffer, buffer)

    def scope(self, buffer: Any) -> str:
        return self.scopes.get(self.root(buffer), "global")


class Threads(Values):
    """All threads of one block."""

    def __init__(self, kernel: Any, block: int, threads: int, values: Mapping[str, int]) -> None:
        super().__init__()
        self.block, self.count = block, threads
        self.found: dict[Site, Count] = {}
        self.memory = _Memory()
        self.state = _State(np.ones(threads, bool))
        self._silent: dict[Any, bool] = {}
        for parameter in kernel.params:
            if parameter.name in values:
                self.variables[parameter] = values[parameter.name]
        self.run(kernel.body)

    # ---------------------------------------------------------------- expressions

    def load(self, expr: Any) -> Value:
        buffer, index = expr.source, expr.indices[0]
        place = self.of(index)
        scope = self.memory.scope(buffer)
        if scope.startswith("local"):
            return self._of_local(buffer, place)
        self._record(scope, "load", buffer, index, place)
        held = self.memory.shared.get(self.memory.root(buffer))
        if held is None or place is None or not scope.startswith("shared"):
            return np.zeros(self.count, np.int64) if "int" in str(buffer.dtype) else None
        return held[np.clip(np.broadcast_to(place, self.count), 0, len(held) - 1)]

    def _of_local(self, buffer: Any, place: Value) -> Value:
        held = self.memory.local.get(self.memory.root(buffer))
        if held is None or place is None:
            return None
        return held[np.arange(self.count), np.clip(place, 0, held.shape[1] - 1)]

    def call(self, name: str, expr: Any) -> Value:
        if name in _EXTERN:
            self._extern(expr)
        return None

    def chosen(self, condition: Value, expr: Any, other: Any) -> Value:
        if not isinstance(condition, np.ndarray):
            return self.of(other if condition is not None and not condition else expr)
        with_it = self._under(condition, lambda: self.of(expr))
        without = self._under(~condition, lambda: self.of(other))
        known = with_it is not None and without is not None
        return np.where(condition, with_it, without) if known else None

    def _under(self, condition: np.ndarray, run: Callable[[], Value]) -> Value:
        """Run it for the threads for which the condition holds."""
        before = self.state
        mask = before.mask & condition
        if not mask.any():
            return 0
        self.state = _State(mask, before.looped)
        try:
            return run()
        finally:
            self.state = before

    # ---------------------------------------------------------------- statements

    def run(self, stmt: Any) -> None:
        """Run a statement, but for what touches no memory that threads share and no index."""
        if self._is_silent(stmt):
            return
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for one in stmt.seq:
                self.run(one)
        elif kind == "AttrStmt":
            self._attribute(stmt)
        elif kind == "Bind":
            self.variables[stmt.var] = self.of(stmt.value)
        elif kind == "AllocBuffer":
            self._declare(stmt.buffer, stmt.buffer.scope())
        elif kind == "DeclBuffer":
            self._alias(stmt)
        elif kind == "BufferStore":
            self._store(stmt)
        elif kind == "IfThenElse":
            self._if(stmt)
        elif kind == "For":
            self._for(stmt)
        elif kind == "Evaluate":
            self._evaluate(stmt.value)

    def _is_silent(self, stmt: Any) -> bool:
        """Return whether a loop only computes in registers of floats."""
        if type(stmt).__name__ != "For":
            return False
        if stmt not in self._silent:
            self._silent[stmt] = not _touches(stmt.body, self.memory)
        return self._silent[stmt]

    def _attribute(self, stmt: Any) -> None:
        if stmt.attr_key == "thread_extent":
            tag = str(stmt.node.thread_tag)
            value = {"blockIdx.x": self.block, "threadIdx.x": np.arange(self.count)}.get(tag, 0)
            self.variables[stmt.node.var] = value
        self.run(stmt.body)

    def _declare(self, buffer: Any, scope: str) -> None:
        memory = self.memory
        memory.scopes[buffer] = scope
        elements = int(np.prod([int(size) for size in buffer.shape]))
        if not str(buffer.dtype).startswith("int"):
            return
        if scope.startswith("local"):
            memory.local[buffer] = np.zeros((self.count, elements), np.int64)
        elif scope.startswith("shared"):
            memory.shared[buffer] = np.zeros(elements, np.int64)

    def _alias(self, stmt: Any) -> None:
        memory, data = self.memory, stmt.data
        of = data.args[0] if type(data).__name__ == "Call" and len(data.args) else data
        root = memory.root(of)
        memory.roots[stmt.buffer] = root
        is_integer = str(stmt.buffer.dtype).startswith("int")
        if is_integer and memory.scope(root).startswith("shared") and root not in memory.shared:
            memory.shared[root] = np.zeros(int(stmt.buffer.shape[0]), np.int64)

    def _store(self, stmt: Any) -> None:
        buffer, index = stmt.buffer, stmt.indices[0]
        value, place = self.of(stmt.value), self.of(index)
        scope = self.memory.scope(buffer)
        if not scope.startswith("local"):
            self._record(scope, "store", buffer, index, place)
        if place is None or value is None or not str(buffer.dtype).startswith("int"):
            return
        root, mask = self.memory.root(buffer), self.state.mask
        value = np.broadcast_to(np.asarray(value).astype(np.int64), self.count)[mask]
        place = np.broadcast_to(place, self.count)[mask]
        if root in self.memory.local:
            self.memory.local[root][np.nonzero(mask)[0], place] = value
        elif root in self.memory.shared:
            self.memory.shared[root][place] = value

    def _if(self, stmt: Any) -> None:
        condition = self.of(stmt.condition)
        if condition is None or isinstance(condition, (bool, int, np.bool_, np.integer)):
            taken = stmt.then_case if condition is None or condition else stmt.else_case
            if taken is not None:
                self.run(taken)
            return
        self._under(condition, lambda: self.run(stmt.then_case))
        if stmt.else_case is not None:
            self._under(~condition, lambda: self.run(stmt.else_case))

    def _for(self, stmt: Any) -> None:
        first, extent = self.of(stmt.min), self.of(stmt.extent)
        extent = TURNS if extent is None else extent
        before = self.state
        is_unrolled = int(stmt.kind) == _UNROLLED
        most = int(np.max(extent)) if before.mask.any() else 0
        for turn in range(most if is_unrolled else min(most, TURNS)):
            self.variables[stmt.loop_var] = first + turn
            runs = before.mask & np.broadcast_to(np.asarray(turn < extent), self.count)
            self.state = _State(runs, before.looped or not is_unrolled)
            if runs.any():
                self.run(stmt.body)
        self.state = before

    def _evaluate(self, value: Any) -> None:
        if type(value).__name__ != "Call":
            return
        if name_of(value) in _EXTERN:
            self._extern(value)
        else:
            self.of(value)

    def _extern(self, value: Any) -> None:
        """A device function: places in shared memory that it is given are bytes, but for functions
        of so many elements."""
        name, *given = value.args
        text = str(getattr(name, "value", name))
        if run := re.fullmatch(r"topi_(put|load|read)(\d)", text):
            self._run(run[1], int(run[2]), given)
            return
        lanes, said = re.search(r"<(\d+)", text), re.search(r"(?:copy|keep)(\d+)", text)
        wide = int(said[1]) if said else _SIXTEEN
        is_load = "load" in text
        guard = self.of(given[-1]) if re.search("copy|read", text) else None
        for one, index in itertools.pairwise(given):
            if type(one).__name__ != "Call" or name_of(one) != "buffer_data":
                continue
            buffer, place = one.args[0], self.of(index)
            scope = self.memory.scope(buffer)
            if scope.startswith("shared"):
                self._note(scope, "load" if is_load else "store", place, wide, text)
            elif scope == "global":
                element = width_of(buffer.dtype)
                width = element * int(lanes[1]) if lanes else wide
                verb = "store" if "store" in text else "load"
                where = None if place is None else place * element
                noted = partial(self._note, "global", verb, where, width, text)
                if isinstance(guard, np.ndarray):
                    self._under(guard.astype(bool), noted)
                elif guard is None or guard:
                    noted()

    def _run(self, verb: str, count: int, given: Sequence[Any]) -> None:
        """Neighbours that are written or read at once; of a read, where it reads anything."""
        guard = self.of(given[-1]) if verb == "read" else True
        for one, index in itertools.pairwise(given):
            if type(one).__name__ != "Call" or name_of(one) != "buffer_data":
                continue
            buffer, place = one.args[0], self.of(index)
            scope, element = self.memory.scope(buffer), width_of(buffer.dtype)
            if scope.startswith("local") or place is None:
                continue
            kind = "store" if verb == "put" else "load"
            noted = partial(self._note, scope, kind, place * element, element * count, given[0])
            if isinstance(guard, np.ndarray):
                self._under(guard.astype(bool), noted)
            elif guard is None or guard:
                noted()

    # ---------------------------------------------------------------- counts

    def _record(self, scope: str, verb: str, buffer: Any, index: Any, place: Value) -> None:
        element = width_of(buffer.dtype)
        lanes = int(index.lanes) if type(index).__name__ == "Ramp" else 1
        address = None if place is None else place * element
        self._note(scope, verb, address, element * lanes, index)

    def _note(self, scope: str, verb: str, address: Value, width: int, where: Any) -> None:
        if address is None:
            return
        space = "shared" if scope.startswith("shared") else "global"
        site = Site(space, verb, width, self.state.looped)
        count = self.found.setdefault(site, Count())
        places = np.broadcast_to(np.asarray(address, np.int64), self.count)
        counted = wavefronts if space == "shared" else sectors
        made = counted(places, self.state.mask, width)
        count.add(made, str(where)[-200:] if made[3] > count.worst else "")


def _touches(stmt: Any, memory: _Memory) -> bool:
    """Return whether a statement has more than arithmetic in registers of floats."""
    kind = type(stmt).__name__
    if kind == "SeqStmt":
        return any(_touches(one, memory) for one in stmt.seq)
    if kind == "For":
        return _touches(stmt.body, memory)
    if kind == "BufferStore":
        plain = memory.scope(stmt.buffer).startswith("local")
        is_integer = str(stmt.buffer.dtype).startswith("int")
        return not plain or is_integer or _loads(stmt.value, memory)
    if kind == "Evaluate" and type(stmt.value).__name__ == "Call":
        given = stmt.value.args
        data = [one.args[0] for one in given if type(one).__name__ == "Call" and len(one.args)]
        return any(not memory.scope(one).startswith("local") for one in data)
    return kind != "Bind"


def _loads(expr: Any, memory: _Memory) -> bool:
    """Return whether an expression reads memory that is not a thread's own."""
    kind = type(expr).__name__
    if kind in ("TensorLoad", "BufferLoad"):
        return not memory.scope(expr.source).startswith("local")
    if kind == "Call":
        return any(_loads(one, memory) for one in expr.args)
    parts = (getattr(expr, name, None) for name in ("a", "b", "value", "true_value", "false_value"))
    return any(_loads(part, memory) for part in parts if part is not None and kind != "IntImm")


def accesses(
    kernel: Any, threads: int, values: Mapping[str, int], block: int = 0
) -> dict[Site, Count]:
    """Return the reads and writes of the threads of a block.

    Parameters
    ----------
    kernel : PrimFunc
        Of the device, as the generator of CUDA gets it.
    threads : int
        Of a block.
    values : mapping
        Of its scalar parameters, by name.
    block : int
    """
    return dict(Threads(kernel, block, threads, values).found)
