# SPDX-License-Identifier: Apache-2.0
"""Name and installed version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "tvm-conv-ext"


def name_and_version() -> str:
    """Return one line for ``--version``."""
    try:
        return f"{DISTRIBUTION} {version(DISTRIBUTION)}"
    except PackageNotFoundError:
        return f"{DISTRIBUTION}, not installed as a package"
