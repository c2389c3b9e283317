# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels: the model of a GPU, planners, emitters and their parts."""
