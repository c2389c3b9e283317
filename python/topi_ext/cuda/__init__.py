# SPDX-License-Identifier: Apache-2.0
"""Kernels of GPUs, for CUDA: what a plan knows of a device, plans, and what is emitted."""
