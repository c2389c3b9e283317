# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled functions for later processes."""
