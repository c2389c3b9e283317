# SPDX-License-Identifier: Apache-2.0
"""Handling of Ctrl-C and SIGTERM: one line and status 130 or 143 in ``python -m PACKAGE``, no loss
in a library."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def answer_interrupts(package: str, last: Callable[[], None] = lambda: None) -> None:
    """Make Ctrl-C and SIGTERM end this process with one line, whatever it is doing.

    As KeyboardInterrupt it would wait for the end of what TVM runs, which can be a minute, and then
    travel through code of TVM and torch that turns it into another error or loses it.  So a thread
    waits for the byte that Python's own handler writes at once.

    Parameters
    ----------
    package : str
        The package that the message begins with.
    last : callable
        Is called before the process ends.
    """
    answered = [number for number, (_, usual) in _SAID.items() if signal.getsignal(number) is usual]
    if not answered:
        return  # ignored, as SIGINT behind nohup, or answered already
    # The progress bar has hidden the cursor.
    start = ("\r\x1b[2K\x1b[?25h" if os.isatty(2) else "") + package
    heard, told = os.pipe()
    os.set_blocking(told, False)

    def stop() -> None:
        while (number := os.read(heard, 1)[0]) not in _SAID:
            pass
        with suppress(OSError):  # nobody reads it
            os.write(2, f"{start}: {_SAID[number][0]}\n".encode())
        last()
        os._exit(128 + number)

    threading.Thread(target=stop, daemon=True).start()
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    for number in answered:
        signal.signal(number, lambda *_: None)


_SAID: dict[int, tuple[str, Any]] = {
    signal.SIGINT: ("interrupted", signal.default_int_handler),
    signal.SIGTERM: ("terminated", signal.SIG_DFL),
}
"""Text for each signal, and its handler in a process that has set none."""


def ignore_interrupts() -> None:
    """Let Python end by itself when all is printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_raised: list[BaseException] = []
"""Errors that the handler of Ctrl-C raised inside of :func:`keep_interrupts`."""


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Raise at the end of a block what the handler of Ctrl-C raised inside of it.

    TVM turns a KeyboardInterrupt into an error without a text, which would count as a refusal.
    Python calls handlers in the main thread only, so in others this has no effect.
    """
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handle(*args: Any) -> None:
        try:
            before(*args)
        except BaseException as error:
            _raised.append(error)
            raise

    signal.signal(signal.SIGINT, handle)
    try:
        yield
        raise_interrupt()
    except Exception:
        raise_interrupt()
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        _raised.clear()


def raise_interrupt() -> None:
    """Raise what the handler of Ctrl-C raised in this thread, if an error may have replaced it."""
    if _raised and threading.current_thread() is threading.main_thread():
        raise _raised[0] from None
