# SPDX-License-Identifier: Apache-2.0
"""What the kernels that save products share: tiles, transformed inputs and filters."""
