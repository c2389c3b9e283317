# SPDX-License-Identifier: Apache-2.0
"""Parts that kernels share: panels, packed weights, copies and transposes, rows of the result."""
