# SPDX-License-Identifier: Apache-2.0
"""Kernels as rows of a registry: which there are, which may be chosen, what was chosen
and why, which plans were measured."""
