# SPDX-License-Identifier: Apache-2.0
"""IR builder primitives of kernels, for every target: a thin layer over TVM's IRBuilder.

Sizes and indices may be Python integers or expressions: integers fold here, so that one kernel
text serves static and symbolic sizes.
"""

from __future__ import annotations

from ..interrupts import answer_interrupts as _answer_interrupts
from ..interrupts import is_run as _is_run

if _is_run("topi_ext.emit"):  # what follows imports TVM, which takes seconds
    _answer_interrupts("topi_ext.emit")

from .builder import (
    ATTRIBUTES,
    SCRATCH_BYTES,
    STACK_BYTES,
    Workspace,
    allocated,
    argument,
    body,
    clamped_extent,
    fill,
    grid,
    is_kernel,
    kernel,
    loop,
    only_if,
    scratch,
    share_of,
    sides,
    tiles,
    tiles_or_ones,
    tiles_then_ones,
    via_memory,
    workspace,
)
from .expressions import (
    Expr,
    bits,
    both,
    broadcast,
    cast,
    ceil_div,
    choose,
    constant,
    converted,
    either,
    function,
    lane_numbers,
    lanes_of,
    least,
    let,
    most,
    opaque_base,
    quotient,
    remainder,
    select,
    shuffled,
    unravel,
    wide,
)
from .operands import Array, Channels, Operand, Part, store

__all__ = [
    "ATTRIBUTES",
    "SCRATCH_BYTES",
    "STACK_BYTES",
    "Array",
    "Channels",
    "Expr",
    "Operand",
    "Part",
    "Workspace",
    "allocated",
    "argument",
    "bits",
    "body",
    "both",
    "broadcast",
    "cast",
    "ceil_div",
    "choose",
    "clamped_extent",
    "constant",
    "converted",
    "either",
    "fill",
    "function",
    "grid",
    "is_kernel",
    "kernel",
    "lane_numbers",
    "lanes_of",
    "least",
    "let",
    "loop",
    "most",
    "only_if",
    "opaque_base",
    "quotient",
    "remainder",
    "scratch",
    "select",
    "share_of",
    "shuffled",
    "sides",
    "store",
    "tiles",
    "tiles_or_ones",
    "tiles_then_ones",
    "unravel",
    "via_memory",
    "wide",
    "workspace",
]
