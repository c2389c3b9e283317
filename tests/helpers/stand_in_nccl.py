# SPDX-License-Identifier: Apache-2.0
"""Collectives for disco's workers that are threads of one process, under the names of NCCL's.

Run as a program it takes ``data_parallel.ByNccl`` through every operation and prints, as JSON, what
the workers have afterwards. TVM asks for ``runtime.disco.LIBRARY.OPERATION``; as only a library
written in C++ can tell a worker its own name, LIBRARY is empty here.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import tvm  # noqa: F401 (loads disco)
import tvm_ffi

WORKERS = 2
SUM = 0
"""``ReduceKind.kSum`` of TVM's runtime."""
everyone = threading.Barrier(WORKERS, timeout=20)
sent: dict[int, Any] = {}
calls: list[str] = []


def worker() -> int:
    """Number of the worker whose thread this is."""
    (number,) = tvm_ffi.get_global_func("runtime.disco.worker_id")()
    return int(number)


def exchange(array: Any) -> list[Any]:
    """Return the arrays of all workers, in order."""
    sent[worker()] = None if array is None else array.numpy().copy()
    everyone.wait()
    arrays = [sent[i] for i in range(WORKERS)]
    everyone.wait()
    return arrays


def init_ccl(_session: Any, devices: Any) -> None:
    calls.append(f"init_ccl {list(devices)}")


def allreduce(send: Any, kind: int, in_group: bool, receive: Any) -> None:
    assert (kind, in_group) == (SUM, False)
    receive.copyfrom(sum(exchange(send)))


def broadcast(send: Any, in_group: bool, receive: Any) -> None:
    assert not in_group
    receive.copyfrom(exchange(send)[0])


def scatter(send: Any, in_group: bool, receive: Any) -> None:
    assert not in_group
    receive.copyfrom(exchange(send)[0][worker()])


def main() -> None:
    """Broadcast, scatter, sum, fetch."""
    import data_parallel

    for name, function in (
        ("nccl.init_ccl", init_ccl),
        (".allreduce", allreduce),
        (".broadcast_from_worker0", broadcast),
        (".scatter_from_worker0", scatter),
    ):
        tvm_ffi.register_global_func(f"runtime.disco.{name}", function)
    session = data_parallel.disco().ThreadedSession(WORKERS)
    collectives = data_parallel.ByNccl(session)
    scattered = collectives.scatter(np.arange(8, dtype="float32").reshape(WORKERS, 2, 2))
    refs = {
        "broadcast": collectives.broadcast(np.array([3, 4], "float32")),
        "scatter": scattered,
        "sum": collectives.sum(scattered, (2, 2)),
    }
    found = {
        name: [ref.debug_get_from_remote(i).numpy().tolist() for i in range(WORKERS)]
        for name, ref in refs.items()
    }
    fetched = collectives.fetch(refs["sum"], (2, 2)).tolist()
    print(json.dumps({**found, "fetch": fetched, "calls": calls}))


if __name__ == "__main__":
    main()
