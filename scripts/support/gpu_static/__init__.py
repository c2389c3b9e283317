# SPDX-License-Identifier: Apache-2.0
"""Analysis of GPU kernels without a GPU: lowered, compiled, disassembled and counted."""
