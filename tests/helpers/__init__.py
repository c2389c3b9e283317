# SPDX-License-Identifier: Apache-2.0
"""Code that the tests share: the oracle, cases, tolerances, and functions that build and run a
Relax module."""
