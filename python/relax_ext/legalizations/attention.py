# SPDX-License-Identifier: Apache-2.0
"""Legalization of attention by its kernel, which does not store scores."""

from __future__ import annotations

from typing import Any

from ..fusion.attention import OPERATORS, read_operator
from ..fusion.match import lowered


def attention_kernel(bb: Any, call: Any, stock: Any) -> Any:
    """Lower a call by the kernel of attention, if there is one for it."""
    match = read_operator(call, lambda _: None)
    if match is None or not match.is_supported:
        return stock(bb, call)
    return lowered(bb, match, match.anchor, (), ())


RULES = dict.fromkeys(OPERATORS, attention_kernel)
