# SPDX-License-Identifier: Apache-2.0
"""Schedules and lowerings of the operators around our kernels."""
