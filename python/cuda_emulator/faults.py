# SPDX-License-Identifier: Apache-2.0
"""Errors of emulated code, and of code that uses features the emulator does not support."""

from __future__ import annotations

__all__ = ["Fault", "Unsupported"]


class Fault(RuntimeError):  # noqa: N818 - the fault is in the emulated code
    """The emulated code did what it must not do; the message is one line.

    Attributes
    ----------
    kind
        ``race``, ``out-of-bounds``, ``uninitialised``, ``divergence``, ``misaligned``, ``launch``,
        ``undefined``, ``address-space``, ``division``, ``crash`` or ``timeout``.
    kernel, block, thread
        Where, as far as it is known.
    """

    def __init__(
        self, kind: str, message: str, kernel: str = "", block: str = "", thread: str = ""
    ):
        self.kind, self.kernel, self.block, self.thread = kind, kernel, block, thread
        place = f"{kernel}, block ({block}), thread ({thread})" if kernel else "no kernel"
        super().__init__(f"{kind}: {place}: {message}")


class Unsupported(ValueError):  # noqa: N818 - as topi_ext names its own
    """The emulator does not know something that the code uses; the message names it."""
