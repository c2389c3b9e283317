# SPDX-License-Identifier: Apache-2.0
"""Instructions that TIR cannot say, as device functions in CUDA."""

from __future__ import annotations


def once(name: str, text: str) -> str:
    """`text`, which a module may hold several times: TVM writes it for every kernel that asks."""
    guard = f"TOPI_EXT_{name}"
    return f"#ifndef {guard}\n#define {guard}\n{text.strip()}\n#endif\n"
