# SPDX-License-Identifier: Apache-2.0
"""Runs a compiled Relax model: ``python vm_run.py LIBRARY OPERANDS RESULT``, both pickles."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import tvm
from tvm import relax


def main() -> None:
    """Call ``main`` of the library on the arrays, and keep what it returns."""
    library, operands, result = sys.argv[1:]
    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    given = map(tvm.runtime.tensor, pickle.loads(Path(operands).read_bytes()))
    Path(result).write_bytes(pickle.dumps(machine["main"](*given).numpy()))


if __name__ == "__main__":
    main()
