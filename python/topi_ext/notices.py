# SPDX-License-Identifier: Apache-2.0
"""What is said once per process, in one line."""

from __future__ import annotations

import sys
import warnings
from functools import cache


@cache
def warn_once(text: str) -> None:
    """Warn of `text`, unless it was said before."""
    try:
        warnings.warn(text, stacklevel=3)
    except UserWarning:
        # Made an error, as by `python -W error`, it would end a compile half-way, from inside one
        # of TVM's passes, and the next compile too. Nothing is wrong with what is compiled, so
        # whoever wants to see every warning sees this one.
        print(text, file=sys.stderr)
