# SPDX-License-Identifier: Apache-2.0
"""Which Relax operators become one kernel, and its call."""
