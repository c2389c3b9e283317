# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the oracle, cases, tolerances, and how a Relax module is built and run."""
