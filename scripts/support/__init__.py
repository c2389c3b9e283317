# SPDX-License-Identifier: Apache-2.0
"""Code that the scripts share: cases, engines, timing, models, reports, and GPU benchmarks."""
