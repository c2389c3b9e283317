# SPDX-License-Identifier: Apache-2.0
"""Measured plans: which are worth a measurement, how they run, and where the fastest are kept.

``shortlist`` proposes plans, ``runner`` builds and runs them here or through ``rpc``,
``interleaved`` times them in turns, ``database`` keeps the fastest, ``lookup`` finds it again.
"""
