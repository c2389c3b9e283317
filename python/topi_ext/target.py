# SPDX-License-Identifier: Apache-2.0
"""Targets: the target of this machine, and warnings of settings that make code slow."""

from __future__ import annotations

from typing import Any

from . import compat
from .notices import warn_once
from .processors import started, usable


def host_target(num_cores: int | None = None) -> Any:
    """Return the llvm target with all features of this machine's processor.

    Parameters
    ----------
    num_cores : int, optional
        Number of threads to plan for; by default those that TVM starts in this process.

    Returns
    -------
    tvm.target.Target
    """
    return compat.host_target(num_cores or started() or usable())


def advise(package: str, target: Any) -> None:
    """Say, once per process, what a first compile for this machine should know.

    A target without ``mcpu`` is compiled for this machine's oldest relatives, and one with AVX-512
    copies by accesses and scatters.
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
