# SPDX-License-Identifier: Apache-2.0
"""Problem descriptions: one frozen dataclass for each kind of operator. Imports no TVM."""
