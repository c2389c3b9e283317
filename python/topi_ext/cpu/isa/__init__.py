# SPDX-License-Identifier: Apache-2.0
"""Instructions of specific processors: matrix tiles, products of bfloat16, non-temporal stores."""
