# SPDX-License-Identifier: Apache-2.0
"""Analysis of GPU kernels without a GPU: lowered, compiled, disassembled and counted."""

import benchmarks_path  # noqa: F401 - layouts and the compiler are those of the benchmark
