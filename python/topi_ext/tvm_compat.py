# SPDX-License-Identifier: Apache-2.0
"""The only room that knows one TVM version from another."""

from tvm import tirx as tir

__all__ = ["tir"]
