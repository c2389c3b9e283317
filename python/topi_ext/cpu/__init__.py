# SPDX-License-Identifier: Apache-2.0
"""CPU kernels: the machine model, planners, emitters and their parts."""
