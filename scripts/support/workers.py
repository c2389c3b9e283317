# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own, which are measured in turns or at once.

Each engine has the threads, caches and settings of a process that runs nothing else.  While one
runs a block of calls, the others wait for a line of their standard input, and the pause before a
block lets threads that spin after a call fall asleep.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from . import timing

BLOCKS, BLOCK, PAUSE = 7, 0.4, 0.2
"""Blocks of calls, seconds of one, and seconds before each."""
MARK = "@ "
"""Begins a line of a worker; what libraries print begins otherwise."""


class WorkerError(RuntimeError):
    """A worker ended before it answered; the last line that it wrote says why."""


class Worker:
    """A process that prepares a call, and then makes blocks of calls.

    Parameters
    ----------
    command : sequence of str
        A program that calls :func:`serve`.
    environment : mapping, optional
        Variables that differ from those of this process.

    Attributes
    ----------
    ready : dict
        What the program told of its preparation.

    Raises
    ------
    WorkerError
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        pipe = subprocess.PIPE
        # A file, since a pipe that nobody reads stops a process that warns a lot.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.ready: dict[str, Any] = self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def start(self, seconds: float) -> None:
        """Let it make calls for so long; :meth:`finish` returns their times."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def finish(self) -> list[float]:
        """Return the milliseconds of each call of the block that was started."""
        found: list[float] = self._answer()
        return found

    def block(self, seconds: float = BLOCK) -> list[float]:
        """Return the milliseconds of each call of a block."""
        self.start(seconds)
        return self.finish()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self._process.communicate()
        self._errors.seek(0)
        errors = self._errors.read().strip().splitlines()
        raise WorkerError(errors[-1][:300] if errors else "it ended without a word")


class Started(NamedTuple):
    """Workers by engine, why others failed, and what the first process of each told."""

    workers: dict[str, Worker]
    failed: dict[str, str]
    cold: dict[str, dict[str, Any]]


def started(
    stack: ExitStack,
    commands: Mapping[str, Sequence[str]],
    environment: Mapping[str, str] | None = None,
    required: Container[str] = ("ours",),
    twice: bool = False,
) -> Started:
    """Start a worker for each engine, which ends with `stack`.

    Parameters
    ----------
    required : container of str
        Engines whose failure is raised.
    twice : bool
        Start and end a process of each before, which fills caches of compiled code.
    """
    found = Started({}, {}, {})
    for engine, command in commands.items():
        try:
            if twice:
                with Worker(command, environment) as first:
                    found.cold[engine] = first.ready
            found.workers[engine] = stack.enter_context(Worker(command, environment))
        except WorkerError as error:
            if engine in required:
                raise
            found.failed[engine] = str(error)
    return found


def in_turns(workers: Mapping[str, Worker]) -> dict[str, float]:
    """Return the median of the calls of each worker in milliseconds, by blocks in turns."""
    return timing.in_turns({n: worker.block for n, worker in workers.items()}, BLOCKS, PAUSE)


def empty_caches(folder: str) -> dict[str, str]:
    """Return variables that name folders of compiled code, below an empty folder."""
    return {"TVM_CONV_CACHE": f"{folder}/tvm_conv", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}


def serve(run: Callable[[], Any], ready: Mapping[str, Any]) -> None:
    """Tell that a call is prepared, then make a block of calls for each line that is read."""
    _tell(ready)
    for line in sys.stdin:
        _tell(timing.block(run, float(line)))


def _tell(answer: Any) -> None:
    print(MARK + json.dumps(answer), flush=True)
