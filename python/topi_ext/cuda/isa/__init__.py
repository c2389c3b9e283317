# SPDX-License-Identifier: Apache-2.0
"""Instructions that TIR cannot express, as CUDA device functions."""

from __future__ import annotations


def once(name: str, text: str) -> str:
    """Return `text` with a guard, since TVM writes it once for every kernel that uses it."""
    guard = f"TOPI_EXT_{name}"
    return f"#ifndef {guard}\n#define {guard}\n{text.strip()}\n#endif\n"
