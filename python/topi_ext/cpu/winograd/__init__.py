# SPDX-License-Identifier: Apache-2.0
"""Code that the kernels with minimal filtering share: tiles, transformed inputs and filters."""
