# SPDX-License-Identifier: Apache-2.0
"""Kernels as object files with C functions, for programs without TVM and Python.

``python -m topi_ext.emit`` is its command line; `cmake` holds what CMake projects find, `runtime`
what every library of kernels is linked with.
"""
