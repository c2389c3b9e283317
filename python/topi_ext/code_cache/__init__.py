# SPDX-License-Identifier: Apache-2.0
"""Compiled functions that one process leaves for the next."""
