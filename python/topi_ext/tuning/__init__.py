# SPDX-License-Identifier: Apache-2.0
"""Measuring plans: ``runner`` builds and runs them here or through ``rpc``, ``interleaved`` times
them in turns.
"""
