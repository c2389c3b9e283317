# SPDX-License-Identifier: Apache-2.0
"""The parts of ``benchmarks/bench.py``, which other benchmarks and tools use too."""
