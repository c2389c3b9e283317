# SPDX-License-Identifier: Apache-2.0
"""Relax functions on a board: compiled and linked here, run and timed there.

One compiled function is one session: while the next one is compiled here, the board is free for
others. Its time is that of TVM's ``time_evaluator``, which measures on the board; the network is
not in it.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from conv_cli.adapter import Compiled
from conv_cli.measure import Protocol
from topi_ext.tuning.rpc import Board, export, upload

LIBRARY = "model.so"
MOST_RUNS = 1000
SHORTEST = 0.1
"""Seconds of timed runs, where the budget allows."""


class RemoteCompiled(Compiled):
    """A function of the virtual machine on a board; see :class:`conv_cli.adapter.Compiled`."""

    def __init__(self, mod: Any, target: Any, function: str, board: Board, **options: Any) -> None:
        self.function = function
        with warnings.catch_warnings():
            # What this package advises of targets and threads is about this machine.
            warnings.filterwarnings("ignore", message="relax_ext: ", category=UserWarning)
            executable = tvm.compile(mod, target, **options)
        with tempfile.TemporaryDirectory() as directory:
            library = Path(directory) / LIBRARY
            export(executable, board, target, library)
            self.session = session = board.connect()
            try:
                upload(session, library)
                with session.doing("loaded a library"):
                    kind = str(target.kind.name)
                    self.device = session.remote.device("cpu" if kind == "llvm" else kind, 0)
                    module = session.remote.load_module(LIBRARY)
                    self.vm = relax.VirtualMachine(module, self.device)
            except BaseException:
                session.close()
                raise

    def put(self, tensors: list[Any]) -> list[Any]:
        """Return the arguments on the board."""
        with self.session.doing("was sent the inputs"):
            arrays = [
                tvm.runtime.from_dlpack(t.detach().clone().contiguous()).copyto(self.device)
                for t in tensors
            ]
            self.vm.set_input(self.function, *arrays)
        return arrays

    def run(self, arguments: list[Any]) -> Any:
        """Execute the function once, and return when it has finished."""
        with self.session.doing("ran a function"):
            self.vm.invoke_stateful(self.function)
            self.device.sync()
            return self.vm.get_outputs(self.function)

    def timed(self, arguments: list[Any], protocol: Protocol) -> tuple[Any, float]:
        """Return a result, and the milliseconds of the best run there."""
        result = self.run(arguments)
        with self.session.doing("ran a function"):
            first = self._seconds(1)
            if first > protocol.budget:
                return result, first * 1e3
            wanted = max(protocol.repeat, SHORTEST / first)
            runs = int(min(wanted, protocol.budget / first, MOST_RUNS))
            return result, min(first, self._seconds(max(runs, 1))) * 1e3

    def _seconds(self, runs: int) -> float:
        """Return the shortest of so many runs."""
        evaluator = self.vm.time_evaluator("invoke_stateful", self.device, number=1, repeat=runs)
        return float(min(evaluator(self.function).results))

    def get(self, result: Any) -> list[Any]:
        """Return the tensors of a result, nested tuples flattened."""
        from torch.utils import dlpack

        if not isinstance(result, tvm.runtime.Tensor):
            return [t for item in result for t in self.get(item)]
        with self.session.doing("sent the results"):
            return [dlpack.from_dlpack(result.copyto(tvm.cpu()))]

    def close(self) -> None:
        """Give the board back."""
        self.session.close()
