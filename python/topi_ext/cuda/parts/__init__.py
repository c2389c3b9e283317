# SPDX-License-Identifier: Apache-2.0
"""What kernels share: a block's share of the work, how data reaches shared memory, how sums leave."""
