# SPDX-License-Identifier: Apache-2.0
"""Kernels as object files with functions in C, for programs without TVM and without Python.

``python -m topi_ext.emit`` is its command line; `cmake` holds what CMake projects find, `runtime`
what every library of kernels is linked with.
"""
