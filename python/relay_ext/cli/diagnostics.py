# SPDX-License-Identifier: Apache-2.0
"""Turn TVM's diagnostics of a Relay module into the message of the error that it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_errors() -> Iterator[None]:
    """Diagnostics inside the block are raised, not printed.

    Raises
    ------
    TypeError
        With the first of them, where TVM raises an error that says only that there are some.
    """
    from tvm.error import DiagnosticError
    from tvm.ir import diagnostics

    found: list[str] = []

    def keep(context: Any) -> None:
        found.extend(str(diagnostic.message) for diagnostic in context.diagnostics)

    diagnostics.override_renderer(keep)
    try:
        yield
    except DiagnosticError as error:
        raise TypeError(found[0] if found else str(error)) from error
    finally:
        diagnostics.override_renderer(None)
