# SPDX-License-Identifier: Apache-2.0
"""Plans of kernels of GPUs, and which one is taken; nothing here needs TVM."""
