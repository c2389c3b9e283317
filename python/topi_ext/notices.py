# SPDX-License-Identifier: Apache-2.0
"""Warnings that are given once per process, and one-line errors."""

from __future__ import annotations

import sys
import warnings
from functools import cache


@cache
def warn_once(text: str) -> None:
    """Warn of `text`, unless this warning was given before."""
    try:
        warnings.warn(text, stacklevel=3)
    except UserWarning:
        # As an error, by `python -W error`, it would end a compilation inside one of TVM's passes,
        # and break the next one too. The compiled code is correct, so it is printed instead.
        print(text, file=sys.stderr)


def printable(text: str) -> str:
    """Return a text with escapes for characters that would control a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


NOT_TELLING = ("File ", "at ", "[bt]", "Stack", "^", "#", "R.", "Offending call:")
"""Beginnings of lines in TVM's errors that quote code or its place."""


def one_line(error: BaseException, width: int = 100) -> str:
    """Return the last line of an exception that explains it, at most ``width`` long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    explaining = [line for line in lines if not line.startswith(NOT_TELLING)]
    text = (explaining or lines or [""])[-1]
    name = type(error).__name__
    if name == "NotImplementedError":
        name = ""
    text = text if text.startswith(name) else f"{name}: {text}"
    return text if len(text) <= width else text[: width - 1] + "…"
