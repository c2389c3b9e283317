# SPDX-License-Identifier: Apache-2.0
"""Kernels as direct TIR, one page each; every one is tested against the TE definitions."""

ATTRIBUTES = {
    "tirx.noalias": True,
    # Both of these are needed to pass Relax's default pipelines: no default schedule is applied to
    # an opaque function (8), and it is not fused into another.
    "tirx.is_scheduled": True,
    "op_pattern": 8,
    # MetaSchedule takes every kernel for a task, and lays aside those without a decision. First it
    # counts their operations, unless it is told how many: it fails on vectors.
    "estimated_flops": 0,
}

DATA = "NDHW"
"""The four axes of data as kernels order them; the channel C stands apart."""

TAPS = "DHW"
"""The axes of a kernel beside its channels O and I."""
