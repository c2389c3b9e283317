# SPDX-License-Identifier: Apache-2.0
"""``tvm-conv MODEL``: the command line of the adapter that serves the TVM that is installed."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from . import launch
from .main import main as command
from .usage import RELAX, RELAY, Usage


def main() -> None:
    """Run the command line, and end this process."""
    usage = served()
    launch.run(usage.package, partial(command, usage, program="tvm-conv"))


def served() -> Usage:
    """Return Relay's command line if the TVM of this Python has Relay, else Relax's.

    TVM is found, not imported: help and refusals need none.
    """
    tvm = find_spec("tvm")
    if tvm is None:
        return RELAY if find_spec("bitblas") else RELAX  # that wheel contains a TVM
    folders = tvm.submodule_search_locations or ()
    return RELAY if any(Path(folder, "relay").is_dir() for folder in folders) else RELAX


if __name__ == "__main__":
    main()
