# SPDX-License-Identifier: Apache-2.0
"""Tasks in a separate process, which is replaced when it breaks.

On a GPU an illegal address breaks the context of its process permanently, and a kernel may never
end: either costs one task.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, Protocol

Row = dict[str, Any]

MOST_TASKS = 40
"""Maximum tasks of one process, which limits the effect of a fault that was not reported."""

START_SECONDS = 180.0
"""Maximum seconds until a process has imported PyTorch and opened the GPU."""

TASK_SECONDS = 60.0
"""Maximum seconds of a task: a row takes a second or two, with cuDNN's search for algorithms."""


class TaskError(Exception):
    """A task gave no result; the message states the reason in one line, and `status` its kind."""

    def __init__(self, message: str, status: str = "error") -> None:
        super().__init__(message)
        self.status = status


class Device(Protocol):
    """Device of a process, as runners need it."""

    def run(self, task: str, *arguments: Any) -> Row:
        """Return the result of a task."""

    def is_broken(self) -> bool:
        """Return whether an earlier fault has left the GPU's context unusable."""


class Runner(Protocol):
    """Interface of runners of tasks."""

    def result(self, task: str, *arguments: Any) -> Row:
        """Return the result of a task of the device."""


class InProcess:
    """Runs tasks on a device of this process."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def result(self, task: str, *arguments: Any) -> Row:
        """Run a task."""
        from .errors import one_line  # which imports PyTorch

        try:
            return self._device.run(task, *arguments)
        except Exception as failure:  # a task that fails does not end a run
            raise TaskError(one_line(failure)) from failure


class Workers:
    """Runs tasks one by one in a process that is replaced when it breaks.

    Parameters
    ----------
    open_device : callable
        Opens the device; it is called in the process, so it must be picklable.
    seconds : float
        Maximum seconds of a task.
    most : int
        Tasks of one process.
    """

    def __init__(
        self,
        open_device: Callable[[], Device],
        seconds: float = TASK_SECONDS,
        most: int = MOST_TASKS,
    ) -> None:
        self._open, self.seconds, self._most = open_device, seconds, most
        self._process: Any = None
        self._connection: Any = None
        self._left = 0

    def result(self, task: str, *arguments: Any) -> Row:
        """Run a task.

        Raises
        ------
        TaskError
            If it failed, never ended, or ended its process.
        """
        if self._process is None:
            self._start()
        self._left -= 1
        try:
            self._connection.send((task, arguments))
            row, failure, is_broken = self._answer(self.seconds)
        except TaskError:
            self.close(kill=True)
            raise
        if is_broken or self._left == 0:
            self.close()
        if failure:
            raise TaskError(failure)
        return row

    def _start(self) -> None:
        context = get_context("spawn")  # a fork would share what PyTorch and CUDA keep
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._open), daemon=True)
        self._process.start()
        other.close()
        self._left = self._most
        try:
            _, failure, _ = self._answer(START_SECONDS)
        except TaskError:
            self.close(kill=True)
            raise
        if failure:
            self.close()
            raise TaskError(failure)

    def _answer(self, seconds: float) -> tuple[Row, str, bool]:
        """Return the result of a task, the reason if there is none, and whether the GPU is lost."""
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            reason = f"its process ended with status {self._process.exitcode}"
            raise TaskError(reason, "crash") from None
        raise TaskError(f"no result after {seconds:.0f} s", "timeout")

    def close(self, *, kill: bool = False) -> None:
        """End the process; a later task starts another."""
        if self._process is None:
            return
        if kill:
            self._process.kill()
        self._connection.close()  # at which the process ends
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = self._connection = None


def _serve(connection: Any, open_device: Callable[[], Device]) -> None:
    """Answer tasks until the other end closes, or the GPU is lost."""
    try:
        device = open_device()
    except Exception as failure:  # the other end says so
        connection.send(({}, f"{type(failure).__name__}: {failure}", True))
        return
    connection.send(({}, "", False))
    runner = InProcess(device)
    while True:
        try:
            task, arguments = connection.recv()
        except (EOFError, OSError):
            return
        row, reason = {}, ""
        try:
            row = runner.result(task, *arguments)
        except TaskError as error:
            reason = str(error)
        is_broken = device.is_broken()
        connection.send((row, reason, is_broken))
        if is_broken:
            return
