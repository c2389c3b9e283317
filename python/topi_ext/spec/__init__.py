# SPDX-License-Identifier: Apache-2.0
"""What is to be computed: one frozen dataclass for each kind of operator.  Imports no TVM."""
