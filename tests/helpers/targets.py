# SPDX-License-Identifier: Apache-2.0
"""Targets of tests that compile many kernels."""

from __future__ import annotations

import tvm

from helpers.profile import FUZZ


def quickly_compiled(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target with LLVM's level 2 in place of TVM's default, 3; in a long run unchanged.

    Plans, lowering and vectors are the same, and LLVM takes a third less time.  Tests of
    torch.compile, assembly, exported kernels and whole models of others compile at level 3.
    """
    return target if FUZZ else tvm.target.Target({**target.export(), "opt-level": 2})
