# SPDX-License-Identifier: Apache-2.0
"""Targets: the one of this machine, and the one that a call is compiled for."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import tvm

from topi_ext import tvm_compat


def host_target(num_cores: int | None = None) -> Any:
    """The llvm target that uses all that this machine's processor can do.

    Parameters
    ----------
    num_cores : int, optional
        Number of threads to plan for; the cores that this process may use if left out.

    Returns
    -------
    tvm.target.Target

    Examples
    --------
    >>> executable = tvm.compile(module, relax_ext.host_target())
    """
    return tvm_compat.host_target(num_cores)


def target_of(found: Any) -> Any:
    """The target that a result of this tensor type is computed on, or None."""
    if found.vdevice is not None and found.vdevice.target is not None:
        return found.vdevice.target
    return tvm.target.Target.current(allow_none=True)


def warn_if_baseline(target: Any) -> None:
    """Say, once per process, that code for this machine's oldest relatives will be slow."""
    if target is None or target.kind.name != "llvm":
        return
    named = target.attrs.get("mcpu") or target.attrs.get("mattr")
    if not named and tvm_compat.is_for_this_machine(target):
        _warn()


@cache
def _warn() -> None:
    warnings.warn(
        "relax_ext: the llvm target names no mcpu, so code is built for a baseline processor; "
        "relax_ext.host_target() names this one",
        stacklevel=2,
    )
