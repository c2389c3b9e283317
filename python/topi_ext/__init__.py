# SPDX-License-Identifier: Apache-2.0
"""Convolution kernels for TVM: problems, plans by a cost model, and TIR for CPU and CUDA.

It knows neither Relax nor Relay, and importing it registers nothing: ``import relax_ext`` for
Relax, ``relay_ext`` for Relay.
"""
