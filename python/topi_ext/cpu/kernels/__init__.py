# SPDX-License-Identifier: Apache-2.0
"""Kernels as direct TIR, one page each; every one is tested against the TE definitions."""
