# SPDX-License-Identifier: Apache-2.0
"""Memory that a compiled function does not get: asked for again, then reported in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

from topi_ext.compat import relax

from .setup import BACKEND

R = relax()

release = tvm.get_global_func("vm.builtin.memory_manager.clear")
"""Free the memory that TVM keeps for later calls."""


def called(executable: Any, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Return the results of a function of an executable, also where they need the memory that TVM
    keeps.

    Raises
    ------
    MemoryError
        There is too little memory.
    """
    try:
        return function(*arguments)
    except Exception as error:
        if not _is_of_memory(error):
            raise
    release()
    needed: list[int] = []

    def note(_: Any, symbol: str, is_before: bool, __: Any, *given: Any) -> None:
        if is_before and symbol == "vm.builtin.alloc_storage":
            needed.append(int(given[1][0]))

    # A machine of its own, because an instrument slows down all later calls.
    machine = R.VirtualMachine(executable, tvm.cpu())
    machine.set_instrument(note)
    try:
        return machine[name](*arguments)
    except Exception as error:
        if not _is_of_memory(error):
            raise
    amount = f"{needed[-1]} bytes" if needed else "memory"
    raise MemoryError(f"{BACKEND}: {amount} cannot be allocated for a compiled graph")


def _is_of_memory(error: Exception) -> bool:
    return "bad_alloc" in str(error)
