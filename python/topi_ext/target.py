# SPDX-License-Identifier: Apache-2.0
"""Targets: the one of this machine, and a word about what keeps code slower than it could be."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from . import compat
from .notices import warn_once


def host_target(num_cores: int | None = None) -> Any:
    """The llvm target that uses all that this machine's processor can do.

    Parameters
    ----------
    num_cores : int, optional
        Number of threads to plan for; the cores that this process may use if left out.

    Returns
    -------
    tvm.target.Target
    """
    return compat.host_target(num_cores)


def threads() -> tuple[int, int]:
    """How many threads TVM's runtime will start, and how many this process could use.

    TVM reads ``TVM_NUM_THREADS``, then ``OMP_NUM_THREADS``; without them it takes half of the
    logical processors of an x86 machine, all of another.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    usable = usable or os.cpu_count() or 1
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if name in os.environ:
            number = re.match(r"\s*[+-]?[0-9]{1,9}", os.environ[name])  # as C's atoi
            return max(1, int(number[0]) if number else 0), usable
    half = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
    return max(1, (os.cpu_count() or 1) // 2 if half else usable), usable


def advise(package: str, target: Any) -> None:
    """Say, once per process, what a first compile for this machine should know.

    A target without ``mcpu`` is compiled for this machine's oldest relatives, one with AVX-512
    copies by accesses and scatters, and TVM leaves half of an x86 machine idle unless told.
    """
    if target is None or target.kind.name != "llvm" or not compat.is_for_this_machine(target):
        return
    if not (target.attrs.get("mcpu") or target.attrs.get("mattr")):
        warn_once(
            f"{package}: the llvm target names no mcpu, so code is built for a baseline processor; "
            f"{package}.host_target() names this one"
        )
    elif compat.gathers_elements(target):
        warn_once(
            f"{package}: the llvm target lets LLVM copy by accesses and scatters, slower than one "
            f"by one; {package}.host_target() adds mattr prefer-no-gather and prefer-no-scatter"
        )
    started, usable = threads()
    if started < usable:
        warn_once(
            f"{package}: TVM will run on {started} of {usable} processors; "
            f"set TVM_NUM_THREADS={usable} before the first run to use all"
        )
