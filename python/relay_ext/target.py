# SPDX-License-Identifier: Apache-2.0
"""Targets: the one of this machine, and a word about one that is slower than it could be."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

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
    >>> library = relay.build(module, relay_ext.host_target())
    """
    return tvm_compat.host_target(num_cores)


def has_kernels(target: Any) -> bool:
    """Whether a target is one that our kernels are written for."""
    return tvm_compat.llvm_features(target) is not None


def warn_if_baseline(target: Any) -> None:
    """Say, once per process, that code for this machine's oldest relatives will be slow."""
    if target.kind.name != "llvm":
        return
    named = target.attrs.get("mcpu") or target.attrs.get("mattr")
    if not named and tvm_compat.is_for_this_machine(target):
        _warn()


@cache
def _warn() -> None:
    warnings.warn(
        "relay_ext: the llvm target names no mcpu, so code is built for a baseline processor; "
        "relay_ext.host_target() names this one",
        stacklevel=2,
    )
