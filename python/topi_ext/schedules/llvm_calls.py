# SPDX-License-Identifier: Apache-2.0
"""Expressions of a function, replaced by calls of functions in LLVM's language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import compat

Replacements = Mapping[str, Callable[[Any], Any]]
"""By kind of node, as :func:`topi_ext.compat.with_replaced` takes them."""


def with_calls(
    func: Any,
    replacements: Callable[[set[Any]], Replacements],
    text: Callable[[tuple[Any, ...]], str],
) -> Any:
    """Replace nodes of `func`, and define what the new ones call.

    Parameters
    ----------
    func : PrimFunc
        With a root block, for LLVM.
    replacements : callable
        Functions of a set, to which they add the names that they call.
    text : callable
        Function of the called names, sorted, that returns their definitions in LLVM IR.

    Returns
    -------
    PrimFunc
        `func` itself where nothing is replaced, or where TVM reads no LLVM text.
    """
    if not compat.takes_llvm(func):
        return func
    used: set[Any] = set()
    body = compat.with_replaced(func.body, replacements(used))
    if used:
        body = compat.importing_llvm(body, text(tuple(sorted(used))))
    return func if body.same_as(func.body) else func.with_body(body)
