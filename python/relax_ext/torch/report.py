# SPDX-License-Identifier: Apache-2.0
"""What was compiled, what stayed in PyTorch and why: :func:`relax_ext.torch.report`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock

KEPT = 1000
"""Graphs that a report remembers; older ones are forgotten."""


@dataclass
class Part:
    """A part of a graph that was compiled.

    Attributes
    ----------
    operators : int
        Operators of PyTorch in it; views are none.
    packed : int
        Weights that are packed once.
    import_s, compile_s : float
        Seconds until it was a module of Relax, and until that was compiled.
    """

    operators: int
    packed: int
    import_s: float
    compile_s: float = 0.0


@dataclass
class Graph:
    """A graph that ``torch.compile`` handed over.

    Attributes
    ----------
    kind : str
        ``"inference"``, ``"forward"`` or ``"backward"``.
    operators : int
        Operators of PyTorch in it.
    parts : list of Part
        What was compiled of it.
    unknown : dict of str to str
        What stays in PyTorch of a graph with convolutions or products, and why.
    random : dict of str to str
        Operators that draw random numbers: those are PyTorch's.
    attention : dict of str to str
        Large attention of training, and its gradient: PyTorch's do not store scores.
    """

    kind: str
    operators: int
    parts: list[Part] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    random: dict[str, str] = field(default_factory=dict)
    attention: dict[str, str] = field(default_factory=dict)

    @property
    def in_pytorch(self) -> dict[str, str]:
        """Return all that stays in PyTorch, and why."""
        return {**self.random, **self.attention, **self.unknown}


@dataclass(frozen=True)
class Report:
    """Graphs that were compiled, the oldest first; ``print`` shows them as lines."""

    graphs: tuple[Graph, ...]

    @property
    def seconds(self) -> float:
        """Return the seconds that importing and compiling took."""
        return sum(part.import_s + part.compile_s for one in self.graphs for part in one.parts)

    def __str__(self) -> str:
        """Return a line for each graph, and one for each operator that stays in PyTorch."""
        lines = [f"{len(self.graphs)} graphs, {self.seconds:.1f} s"]
        for graph in self.graphs:
            inside = sum(part.operators for part in graph.parts)
            lines.append(
                f"{graph.kind}: {inside} of {graph.operators} operators in {len(graph.parts)} parts"
            )
            lines += [f"  in PyTorch: {name}: {why}" for name, why in graph.in_pytorch.items()]
        return "\n".join(lines)


_graphs: deque[Graph] = deque(maxlen=KEPT)
_lock = Lock()


def add(graph: Graph) -> None:
    """Remember a graph."""
    with _lock:
        _graphs.append(graph)


def report(*, clear: bool = False) -> Report:
    """Return what was compiled in this process, and what stayed in PyTorch and why.

    Parameters
    ----------
    clear : bool
        Forget it afterwards.

    Returns
    -------
    Report
        With a list ``graphs``; ``print`` shows it as text.
    """
    with _lock:
        found = Report(tuple(_graphs))
        if clear:
            _graphs.clear()
    return found
