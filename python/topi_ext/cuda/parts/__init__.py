# SPDX-License-Identifier: Apache-2.0
"""What kernels share: a block's part of the work, how data comes in and how sums leave."""
