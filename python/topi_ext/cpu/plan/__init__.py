# SPDX-License-Identifier: Apache-2.0
"""Frozen plans: which blocks and tiles a kernel uses, from its geometry and the machine."""
