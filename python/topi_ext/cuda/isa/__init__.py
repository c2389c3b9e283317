# SPDX-License-Identifier: Apache-2.0
"""Instructions that TIR cannot say, as device functions in CUDA."""
