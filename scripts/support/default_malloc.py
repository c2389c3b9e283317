# SPDX-License-Identifier: Apache-2.0
"""PyTorch as glibc's malloc comes: in a process of its own, for malloc is set when one starts.

Run as a module it is that process: it answers each case, read from standard input, by a time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from . import by_torch
from .cases import Case
from .timing import interleaved, timed


class TorchByDefault:
    """The process, for the time of a ``with`` block."""

    def __init__(self, threads: int, budget: float):
        self.threads, self.budget = threads, budget

    def __enter__(self) -> TorchByDefault:
        environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(self.threads), str(self.budget)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def ms(self, case: Case, kind: str, dtype: str) -> float:
        """Return the milliseconds of the baseline's call, by the protocol of all others."""
        pickle.dump((case, kind, dtype), self._process.stdin)
        self._process.stdin.flush()
        return float(pickle.load(self._process.stdout))


def _answer(threads: int, budget: float) -> None:
    torch.set_num_threads(threads)
    while True:
        try:
            case, kind, dtype = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with torch.inference_mode():
            run = by_torch.baseline(case, kind, by_torch.operands(case, dtype))
            _, first = timed(run)
            found = interleaved({"torch": run}, {"torch": first}, budget)["torch"]
        pickle.dump(found.ms, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _answer(int(sys.argv[1]), float(sys.argv[2]))
