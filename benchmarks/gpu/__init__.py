# SPDX-License-Identifier: Apache-2.0
"""Kernels of GPUs, looked at without one: lowered, compiled, counted; and run on one."""
