# SPDX-License-Identifier: Apache-2.0
"""The autoencoder of the demo, trained by several workers of TVM's disco on one machine.

Every worker has all weights, computes the gradients of its part of each batch, and makes the same
update of the sum of all gradients. Gradients are summed by NCCL where TVM has it and there is a
GPU for each worker, and otherwise by the process that starts the workers.

Exit status 1 when the loss of a step differs by more than 1e-4 from a single process, or when a
worker dies.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT = 1e-4
IMAGES = 1797
"""Number of images of scikit-learn's digits."""


class Collectives:
    """Collective operations of the workers. An array of a worker is a ``DRef``: one name, one value
    per worker."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def load(self, library: Path) -> Any:
        """The module of an exported library, on every worker's device."""
        raise NotImplementedError

    def broadcast(self, array: Any) -> Any:
        """Copy a numpy array to every worker."""
        raise NotImplementedError

    def scatter(self, array: Any) -> Any:
        """On worker i the i-th part of an array (workers, ...)."""
        raise NotImplementedError

    def sum(self, ref: Any, shape: Sequence[int]) -> Any:
        """On every worker the sum of what all workers have; float32."""
        raise NotImplementedError

    def fetch(self, ref: Any, shape: Sequence[int]) -> Any:
        """Return the array of worker 0 as a numpy array of float32."""
        raise NotImplementedError


class ByController(Collectives):
    """On processors, for which disco has no collectives: every array passes this process.

    It adds in the order of the workers, so all of them get the same bits.
    """

    def load(self, library: Path) -> Any:
        return self.session.load_vm_module(str(library), _tvm().cpu())

    def broadcast(self, array: Any) -> Any:
        return self._each([array] * self.session.num_workers)

    def scatter(self, array: Any) -> Any:
        return self._each(list(array))

    def sum(self, ref: Any, shape: Sequence[int]) -> Any:
        del shape
        first, *others = (self._get(ref, i) for i in range(self.session.num_workers))
        for part in others:
            first = first + part
        return self.broadcast(first)

    def fetch(self, ref: Any, shape: Sequence[int]) -> Any:
        del shape
        return self._get(ref, 0)

    def _get(self, ref: Any, worker: int) -> Any:
        return ref.debug_get_from_remote(worker).numpy()

    def _each(self, arrays: list[Any]) -> Any:
        ref = self.session.empty(arrays[0].shape, str(arrays[0].dtype))
        for worker, array in enumerate(arrays):
            ref.debug_copy_from(worker, array)
        return ref


class ByNccl(Collectives):
    """On GPUs, worker i on GPU i: no gradient leaves them."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        session.init_ccl("nccl", *range(session.num_workers))

    def load(self, library: Path) -> Any:
        return self.session.load_vm_module(str(library))

    def broadcast(self, array: Any) -> Any:
        return self.session.broadcast(array, in_group=False)

    def scatter(self, array: Any) -> Any:
        return self.session.scatter(array, in_group=False)

    def sum(self, ref: Any, shape: Sequence[int]) -> Any:
        total = self.session.empty(shape, "float32")
        self.session.allreduce(ref, total, op="sum", in_group=False)
        return total

    def fetch(self, ref: Any, shape: Sequence[int]) -> Any:
        host = _tvm().runtime.empty(tuple(shape), "float32")
        self.session.copy_from_worker_0(host, ref)
        self.session.sync_worker_0()
        return host.numpy()


def _tvm() -> Any:
    return importlib.import_module("tvm")


def disco() -> Any:
    """``tvm.runtime.disco``.

    ``import tvm`` of 0.27 asks for it before the library that holds it is loaded, sets it to None
    and leaves its table of functions empty.
    """
    import tvm  # noqa: F401 (loads the library)
    import tvm_ffi

    module = importlib.import_module("tvm.runtime.disco")
    tvm_ffi.init_ffi_api("runtime.disco", "tvm.runtime.disco._ffi_api")
    return module


def missing_for_nccl(workers: int) -> str:
    """Why NCCL cannot sum the gradients of so many workers, or an empty string."""
    import tvm
    import tvm_ffi

    if tvm_ffi.get_global_func("runtime.disco.nccl.init_ccl", allow_missing=True) is None:
        return "this TVM was built without NCCL"
    if not tvm.cuda(workers - 1).exist:
        return f"there are not {workers} GPUs"
    return ""


def train(
    model: Any,
    data: list[Any],
    collectives: Collectives,
    target: Any,
    tick: Callable[[], None] = lambda: None,
) -> Any:
    """Train by TVM from the weights of ``model``, which gets the result at the end.

    Parameters
    ----------
    model : autoencoder.Autoencoder
    data : list of torch.Tensor
        Batches (n, 1, 16, 16); n is a multiple of the number of workers.
    collectives : Collectives
    target : tvm.target.Target
        What the workers run on.
    tick : callable, optional
        Called after each step.

    Returns
    -------
    numpy.ndarray
        Losses of every step.
    """
    import autoencoder
    import numpy as np
    import torch

    session, workers = collectives.session, collectives.session.num_workers
    mod, names, state = autoencoder.training_module(model, data[0][::workers], parts=workers)
    mod, length = with_flat_gradients(mod)
    item = session.get_global_func("ffi.ArrayGetItem")
    together = session.get_global_func("ffi.Array")
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "step.so"
        compile_step(mod, target, library)
        step = collectives.load(library)
        session.sync_worker_0()
        gradients_of, flatten, split, update = map(
            step.__getitem__, ("main_adjoint", "flatten", "split", "update")
        )
        values = dict(model.named_parameters())
        weights = together(*(collectives.broadcast(values[n].detach().numpy()) for n in names))
        state = together(*(collectives.broadcast(s.numpy()) for s in state))
        losses = []
        for batch in data:
            parts = batch.numpy().reshape(workers, -1, *batch.shape[1:])
            each = (item(weights, i) for i in range(len(names)))
            mine = flatten(gradients_of(collectives.scatter(parts), *each))
            total = split(collectives.sum(mine, (length,)))
            updated = update(weights, item(total, 1), state)
            weights, state = item(updated, 0), item(updated, 1)
            losses.append(float(collectives.fetch(item(total, 0), ())))
            tick()
        with torch.no_grad():
            for i, value in enumerate(values[name] for name in names):
                weight = collectives.fetch(item(weights, i), tuple(value.shape))
                value.copy_(torch.from_numpy(weight))
    return np.array(losses)


def with_flat_gradients(module: Any) -> tuple[Any, int]:
    """Return the training module, with two more functions, and how long one vector of all numbers
    is.

    ``flatten(main_adjoint(...))`` puts the loss and all gradients into one vector, so that they are
    summed at once; ``split(vector)`` gives the loss and the tuple of gradients back.
    """
    from tvm import relax

    from topi_ext import compat

    result = compat.type_of(module["main_adjoint"].body)
    shapes = [
        compat.known_shape(leaf.shape) for leaf in (result.fields[0], *result.fields[1].fields)
    ]
    ends = [0]
    for shape in shapes:
        ends.append(ends[-1] + math.prod(shape))
    bb = relax.BlockBuilder(module)
    pair = relax.Var("pair", result)
    with bb.function("flatten", [pair]):
        with bb.dataflow():
            loss, gradients = (bb.emit(relax.TupleGetItem(pair, i)) for i in range(2))
            leaves = [loss, *(relax.TupleGetItem(gradients, i) for i in range(len(shapes) - 1))]
            flat = [bb.emit(relax.op.reshape(bb.emit(leaf), (-1,))) for leaf in leaves]
            vector = bb.emit_output(relax.op.concat(flat, axis=0))
        bb.emit_func_output(vector)
    whole = relax.Var("whole", compat.tensor_type((ends[-1],), "float32", 1))
    with bb.function("split", [whole]):
        with bb.dataflow():
            cut = bb.emit(relax.op.split(whole, ends[1:-1], axis=0))
            leaves = [
                bb.emit(relax.op.reshape(bb.emit(relax.TupleGetItem(cut, i)), shape))
                for i, shape in enumerate(shapes)
            ]
            both = bb.emit_output(relax.Tuple([leaves[0], relax.Tuple(leaves[1:])]))
        bb.emit_func_output(both)
    return bb.finalize(), ends[-1]


def compile_step(module: Any, target: Any, library: Path) -> None:
    """Compile a training module into a shared library, which every worker loads."""
    import tvm

    import relax_ext

    executable = tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))
    executable.export_library(str(library))


@contextmanager
def watched_workers(count: int) -> Iterator[Any]:
    """A session of so many workers; ends this process, and with it the others, when one dies.

    TVM would wait for its answer for ever. Workers end by themselves as soon as this process does,
    however it does: the pipe on which they wait closes. ``Session.shutdown`` is left out: what
    still refers to arrays of workers, such as the session's own cache, would write to them later.
    """
    before = _children()
    session = disco().ProcessSession(count)
    over = threading.Event()
    for pid in _children() - before:
        threading.Thread(target=_watch, args=(pid, over), daemon=True).start()
    try:
        yield session
    except Exception:
        time.sleep(0.5)  # if its cause is a dead worker, that is what is to be said
        raise
    finally:
        over.set()


def _children() -> set[int]:
    """Return the processes that this one has started."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for of_thread in lists for pid in of_thread.read_text().split()}


def _watch(pid: int, over: threading.Event) -> None:
    dead = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if dead is not None and not over.is_set():
        how = "status" if dead.si_code == os.CLD_EXITED else "signal"
        os.write(2, f"data_parallel: a worker died with {how} {dead.si_status}\n".encode())
        os._exit(1)


class Clock:
    """When steps ended."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def tick(self) -> None:
        """A step has ended."""
        self._times.append(time.perf_counter())

    @property
    def ms(self) -> float:
        """Milliseconds of the median step; NaN of fewer than two."""
        steps = [b - a for a, b in zip(self._times, self._times[1:])]
        return 1e3 * statistics.median(steps) if steps else float("nan")


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train the demo's autoencoder by several workers.")
    add = parser.add_argument
    add("--workers", type=int, default=2, help="default: %(default)s")
    add("--steps", type=int, default=50, help="default: %(default)s")
    add("--batch", type=int, default=64, help="images of a step, default: %(default)s")
    add(
        "--beside",
        choices=("tvm", "torch"),
        default="tvm",
        help="by what one process trains, to compare: TVM, or PyTorch (default: %(default)s)",
    )
    add("--json", type=Path, metavar="OUT", help="write losses and times to this file")
    chosen = parser.parse_args(argv)
    if chosen.workers < 1 or chosen.steps < 1:
        parser.error("--workers and --steps must be positive")
    if not 1 <= chosen.batch <= IMAGES:
        parser.error(f"--batch {chosen.batch} is not from 1 to {IMAGES}")
    if chosen.batch % chosen.workers:
        parser.error(f"--batch {chosen.batch} is not a multiple of --workers {chosen.workers}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Train by several workers and by one process, and compare; the exit status."""
    chosen = options(argv)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TVM_NUM_THREADS", str(max(1, cores // chosen.workers)))
    warnings.filterwarnings("ignore")  # of the importer of torch 2.13, of itself
    import autoencoder
    import numpy as np
    import torch
    import tvm

    import relax_ext
    from conv_cli.launch import answer_interrupts

    answer_interrupts("data_parallel")
    torch.manual_seed(0)
    single = autoencoder.Autoencoder()
    model = copy.deepcopy(single)
    batches = autoencoder.batches(autoencoder.digits(), chosen.batch, chosen.steps)
    host = relax_ext.host_target(num_cores=int(os.environ["TVM_NUM_THREADS"]))
    missing = missing_for_nccl(chosen.workers)
    by = f"this process ({missing})" if missing else "NCCL"
    with watched_workers(chosen.workers) as session:
        collectives = ByController(session) if missing else ByNccl(session)
        target = host if missing else tvm.target.Target.from_device(tvm.cuda(0))
        print(f"{chosen.workers} workers, gradients summed by {by}", flush=True)
        clock = Clock()
        losses = train(model, batches, collectives, target, clock.tick)
    clock_of_one, shown = Clock(), batches[0][:1]
    if chosen.beside == "tvm":
        one = autoencoder.train_tvm(single, batches, shown, host, clock_of_one.tick)
    else:
        torch.set_num_threads(int(os.environ["TVM_NUM_THREADS"]))
        one = autoencoder.train_torch(single, batches, shown, clock_of_one.tick)
    worst = float(np.abs(losses / one.losses - 1).max())
    print(
        f"loss {losses[0]:.4f} to {losses[-1]:.4f}, {clock.ms:.1f} ms a step; one process: "
        f"{clock_of_one.ms:.1f} ms, losses differ by {worst:.0e} at most, limit {LIMIT:.0e}"
    )
    if chosen.json:
        data = {"losses": losses.tolist(), "single": one.losses.tolist(), "ms": clock.ms}
        chosen.json.write_text(json.dumps(data) + "\n")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
