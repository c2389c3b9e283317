# SPDX-License-Identifier: Apache-2.0
"""Plans of one kernel: built as one library, and run here or on a board behind TVM's RPC."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm

from .. import compat
from ..backend import Work
from ..code_cache.build import keeping
from ..cpu.plan.base import Plan
from .interleaved import Timed
from .rpc import Board, export, upload


class Opened(NamedTuple):
    """A library where it runs.

    Attributes
    ----------
    module : tvm.runtime.Module
    device : tvm.runtime.Device
    doing : callable
        ``with doing("ran a plan"):`` reports an error inside as one line.
    """

    module: Any
    device: Any
    doing: Callable[[str], AbstractContextManager[None]]


def built(work: Work, plans: Sequence[Plan], target: Any) -> Any:
    """Return a library with ``kernel_N`` of each plan, and ``pack_N`` where that packs weights.

    Where compiled functions are kept, they are compiled on all cores.
    """
    functions = {}
    for number, plan in enumerate(plans):
        functions[f"kernel_{number}"] = work.backend.build(work.problem, plan)
        packing = work.backend.build_packing(work.problem, plan) if work.problem.prepacked else None
        if packing:
            functions[f"pack_{number}"] = packing[0]
    named = {name: one.with_attr("global_symbol", name) for name, one in functions.items()}
    with keeping():
        return tvm.compile(tvm.IRModule(named), target=target)


@contextmanager
def here(library: Any) -> Iterator[Opened]:
    """A library on this machine."""
    yield Opened(getattr(library, "mod", library), tvm.cpu(), lambda _: nullcontext())


@contextmanager
def on_board(library: Any, board: Board, target: Any) -> Iterator[Opened]:
    """A library on a board, which is free for others when the block ends.

    Raises
    ------
    BoardError
        Nothing links for it, no board is free, or it ends.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "plans.so"
        export(library, board, target, path)
        session = board.connect()
        try:
            upload(session, path)
            with session.doing("loaded a library"):
                opened = session.remote.load_module(path.name), session.remote.cpu()
            yield Opened(*opened, session.doing)
        finally:
            session.close()


class PlanRuns:
    """Kernels of a library on operands that they share.

    Parameters
    ----------
    work : Work
    plans : sequence of Plan
        As the library has them.
    opened : Opened
    """

    def __init__(self, work: Work, plans: Sequence[Plan], opened: Opened) -> None:
        self.work, self.plans, self.opened = work, plans, opened
        self.made: dict[tuple[int, tuple[int, ...], str], Any] = {}

    def ready(self, number: int) -> tuple[Timed, np.ndarray]:
        """Return a function that times the kernel of a plan, and the result of its first call."""
        module, device, doing = self.opened
        kinds = compat.parameters_of(self.work.backend.build(self.work.problem, self.plans[number]))
        with doing("was sent operands"):
            arrays = [self._operand(place, *kind) for place, kind in enumerate(kinds[:-1])]
            arrays.append(tvm.runtime.empty(*kinds[-1], device))
        with doing("ran a plan"):
            self._pack(number, arrays, kinds)
            module[f"kernel_{number}"](*arrays)
            result = arrays[-1].numpy().copy()

        def timed(calls: int) -> float:
            with doing("timed a plan"):
                evaluator = module.time_evaluator(
                    f"kernel_{number}", device, number=calls, repeat=1
                )
                return float(evaluator(*arrays).mean)

        return timed, result

    def _pack(self, number: int, arrays: list[Any], kinds: Sequence[Any]) -> None:
        """Packed weights in the place of weights, where the plan has them."""
        problem = self.work.problem
        packing = problem.prepacked and self.work.backend.build_packing(problem, self.plans[number])
        if packing:
            stored = self._operand(1, *compat.parameters_of(packing[0])[0])
            arrays[1] = tvm.runtime.empty(*kinds[1], self.opened.device)
            self.opened.module[f"pack_{number}"](stored, arrays[1])

    def _operand(self, place: int, shape: tuple[int, ...], dtype: str) -> Any:
        """Random numbers, the same for every plan."""
        key = place, shape, dtype
        if key not in self.made:
            rng = np.random.default_rng(place)
            array = tvm.runtime.empty(shape, dtype, self.opened.device)
            if dtype.startswith(("float", "bfloat")):
                values = rng.uniform(0.5, 1.5, shape) * rng.choice((-1.0, 1.0), shape)
            else:
                values = rng.integers(0, 100, shape)
            array.copyfrom(values.astype(array.numpy().dtype))
            self.made[key] = array
        return self.made[key]
