# SPDX-License-Identifier: Apache-2.0
"""Kernels for processors: the machine, plans, kernels and what they are made of."""
