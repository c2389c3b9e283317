# SPDX-License-Identifier: Apache-2.0
"""The parts of ``scripts/bench_gpu.py``: GPU kernels compiled, bundled, launched and timed."""
