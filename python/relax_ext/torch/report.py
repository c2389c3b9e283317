# SPDX-License-Identifier: Apache-2.0
"""Report of compiled parts and operators in PyTorch: :func:`relax_ext.torch.report`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock

KEPT = 1000
"""Maximum graphs of a report; older ones are removed."""


@dataclass
class Part:
    """A part of a graph that was compiled.

    Attributes
    ----------
    operators : int
        Number of its operators of PyTorch; views do not count.
    packed : int
        Weights that are packed once.
    compiled : dict of tuple or None to float
        Seconds of the compilation for the first sizes, and for all others (None).
    """

    operators: int
    packed: int
    compiled: dict[tuple[int, ...] | None, float] = field(default_factory=dict)


@dataclass
class Graph:
    """A graph from ``torch.compile``.

    Attributes
    ----------
    kind : str
        ``"inference"``, ``"forward"`` or ``"backward"``.
    operators : int
        Operators of PyTorch in it.
    parts : list of Part
        Parts that were compiled.
    unknown : dict of str to str
        Operators that stay in PyTorch in a graph with convolutions or products, and the reasons;
        the only name of a small graph is ``the whole graph``.
    random : dict of str to str
        Operators that draw random numbers, which stay in PyTorch.
    attention : dict of str to str
        Large attention of training, and its gradient: PyTorch's operators do not store scores.
    first_s : float
        Seconds of imports and compilations before the first call, those of refused parts too.
    """

    kind: str
    operators: int
    parts: list[Part] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    random: dict[str, str] = field(default_factory=dict)
    attention: dict[str, str] = field(default_factory=dict)
    first_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds of imports and compilations, those of later sizes too."""
        return self.first_s + sum(sum([*part.compiled.values()][1:]) for part in self.parts)

    @property
    def in_pytorch(self) -> dict[str, str]:
        """Return all operators that stay in PyTorch, and the reasons."""
        return {**self.random, **self.attention, **self.unknown}


@dataclass(frozen=True)
class Report:
    """Graphs that were compiled, the oldest first; ``print`` shows them as lines."""

    graphs: tuple[Graph, ...]

    @property
    def seconds(self) -> float:
        """Return the seconds of imports and compilations."""
        return sum(graph.seconds for graph in self.graphs)

    def __str__(self) -> str:
        """Return a line for each graph, for the sizes of each of its parts that is not compiled for
        all, and for each operator that stays in PyTorch.
        """
        lines = [f"{len(self.graphs)} graphs, {self.seconds:.1f} s"]
        for graph in self.graphs:
            inside = sum(part.operators for part in graph.parts)
            lines.append(
                f"{graph.kind}: {inside} of {graph.operators} operators in {len(graph.parts)} parts"
            )
            lines += filter(None, map(_sizes, graph.parts))
            lines += [f"  in PyTorch: {name}: {why}" for name, why in graph.in_pytorch.items()]
        return "\n".join(lines)


def _sizes(part: Part) -> str:
    """Return a line of the sizes that a part is compiled for; nothing if it is one for all."""
    if set(part.compiled) <= {None}:
        return ""
    each = (
        f"{'others' if sizes is None else sizes} ({seconds:.1f} s)"
        for sizes, seconds in part.compiled.items()
    )
    return f"  compiled for sizes {', '.join(each)}"


_graphs: deque[Graph] = deque(maxlen=KEPT)
_lock = Lock()


def add(graph: Graph) -> None:
    """Add a graph to the report."""
    with _lock:
        _graphs.append(graph)


def report(*, clear: bool = False) -> Report:
    """Return the graphs of this process: compiled parts, and operators in PyTorch with the reasons.

    Parameters
    ----------
    clear : bool
        Clear the report afterwards.

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
