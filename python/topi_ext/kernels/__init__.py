# SPDX-License-Identifier: Apache-2.0
"""Kernels as direct TIR, one page each; every one is tested against the TE definitions."""

ATTRIBUTES = {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}
"""Both of the last two are needed to pass Relax's default pipelines: no default schedule is applied
to an opaque function (8), and it is not fused into another."""

DATA = "NDHW"
"""The four axes of data as kernels order them; the channel C stands apart."""

TAPS = "DHW"
"""The axes of a kernel beside its channels O and I."""
