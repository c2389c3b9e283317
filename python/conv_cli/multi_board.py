# SPDX-License-Identifier: Apache-2.0
"""Check one model on several kinds of boards at the same time, in a process for each.

Rules are registered for a whole process, so threads are not enough.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path

from topi_ext.notices import one_line
from topi_ext.tuning.rpc import hang_up

from .adapter import Adapter
from .check import Options, Progress, Report, check, set_threads
from .errors import CliError

Outcome = Report | CliError
SECONDS_TO_END = 10
"""Seconds in which a process has to end after it has sent its result."""


def check_each(
    model: Path, adapter: Adapter, choices: Sequence[Options], progress: Progress
) -> list[Outcome]:
    """Run :func:`conv_cli.check.check` for each of several options.

    Returns
    -------
    list of Report or CliError
        In the order of the options: one board that fails does not end the others.
    """
    context = multiprocessing.get_context("spawn")
    found: dict[int, Outcome] = {}
    waiting: dict[Connection, int] = {}
    workers = []
    progress.start(len(choices))
    progress.step(", ".join(o.board.key for o in choices if o.board))
    try:
        for number, options in enumerate(choices):
            receive, send = context.Pipe(duplex=False)
            worker = context.Process(target=_run, args=(send, model, adapter, options), daemon=True)
            with _ignoring_interrupts():
                worker.start()
            send.close()
            workers.append(worker)
            waiting[receive] = number
        while waiting:
            ready = wait(list(waiting))
            for receive in [each for each in waiting if each in ready]:
                number = waiting.pop(receive)
                found[number] = _received(receive, choices[number])
                left = (choices[n].board for n in waiting.values())
                progress.step(", ".join(board.key for board in left if board))
                workers[number].join(SECONDS_TO_END)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    return [found[number] for number in range(len(choices))]


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Make processes that are started inside the block ignore Ctrl-C: they end with this one, which
    reports it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _received(receive: Connection, options: Options) -> Outcome:
    try:
        outcome: Outcome = receive.recv()
        return outcome
    except EOFError:
        key = options.board.key if options.board else ""
        return CliError(f"--key {key}: the process that checked it died: out of memory?")


def _run(send: Connection, model: Path, adapter: Adapter, options: Options) -> None:
    """Check in a separate process, and send the result."""
    # tqdm would register its locks with Python's resource tracker, which warns of them at Ctrl-C.
    multiprocessing.set_start_method(None, force=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.filterwarnings("ignore")  # shown once is enough: by a run with one board
    set_threads(options.threads)
    outcome: Outcome
    try:
        outcome = check(model, adapter, options)
    except CliError as error:
        outcome = CliError(str(error))
    except Exception as error:
        key = options.board.key if options.board else ""
        outcome = CliError(f"--key {key}: {one_line(error)}")
    send.send(outcome)
    send.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    hang_up()
    os._exit(1)
