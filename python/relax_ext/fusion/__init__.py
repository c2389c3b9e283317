# SPDX-License-Identifier: Apache-2.0
"""Find the Relax operators that become one kernel, and emit its call."""
