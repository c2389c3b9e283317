# SPDX-License-Identifier: Apache-2.0
"""The choice of a kernel and its plan."""
