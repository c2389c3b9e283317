# SPDX-License-Identifier: Apache-2.0
"""TVM's RPC tracker and servers on this machine, in processes that end with the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path

SECONDS = 120
"""Until a process has started, on a machine however busy."""


class Service:
    """A tracker or a server, and all processes that it starts, of which its session is one.

    Attributes
    ----------
    log : pathlib.Path
        What it has said.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TVM_NUM_THREADS": "1"}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--host", "127.0.0.1"],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @cached_property
    def port(self) -> int:
        """Return the port that the server listens on, once it does."""
        return int(self.says(r"bind to 127\.0\.0\.1:(\d+)")[0])

    def says(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until it has said this so many times; the groups of the last."""
        until = time.monotonic() + SECONDS
        while len(found := list(re.finditer(pattern, self.log.read_text()))) < times:
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, f"no {pattern} in: {self.log.read_text()}"
            time.sleep(0.05)
        return list(found[-1].groups())

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        for pid in self.processes():
            os.kill(pid, number)

    def processes(self) -> list[int]:
        """Return the processes of its session that still run."""
        return processes_of_session(self._process.pid)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()


def processes_of_session(session: int) -> list[int]:
    """Processes that still run in a session of Linux; zombies have ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its = file.read_text().rpartition(") ")[2].split()[:4]
        except OSError:
            continue
        if int(its) == session and state != "Z":
            found.append(int(file.parent.name))
    return found


def tracker(directory: Path) -> Service:
    """A tracker at a free port."""
    ports = ("--port", "19190", "--port-end", "19990")
    return Service(directory / "tracker.log", "tvm.exec.rpc_tracker", *ports)


def server(directory: Path, key: str, tracker_port: int) -> Service:
    """A server under a key, at a free port, which it has bound: of two that start at the same time,
    both may bind one.
    """
    service = Service(
        directory / f"{key}.log",
        "tvm.exec.rpc_server",
        *("--port", "20000", "--port-end", "20900"),
        *("--key", key, "--tracker", f"127.0.0.1:{tracker_port}"),
    )
    assert service.port
    return service
