# SPDX-License-Identifier: Apache-2.0
"""Definitions of the operators in TVM's tensor expressions: the specification of every kernel."""
