# SPDX-License-Identifier: Apache-2.0
"""Parts that kernels share: the work of a block, copies of operands, writes of sums."""
