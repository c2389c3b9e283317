# SPDX-License-Identifier: Apache-2.0
"""The C code around a kernel: its header, and the function that passes its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..spec.dtypes import byte_width
from .request import Argument, Request, Words

TYPES = {
    "float16": "conv_float16",
    "bfloat16": "conv_bfloat16",
    "float32": "float",
    "float64": "double",
    **{name: f"{name}_t" for name in ("int8", "uint8", "int16", "int32", "int64")},
}
"""Types of C, by dtype."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
"""Type codes of DLPack, by dtype without its width."""

_HEADER = """\
/* Made by `python -m topi_ext.emit`; changes are lost.

{text} */
#ifndef {guard}_H
#define {guard}_H

#include "conv_kernels.h"

#ifdef __cplusplus
extern "C" {{
#endif

{sizes}

{functions}

#ifdef __cplusplus
}}
#endif
#endif
"""

_SOURCE = """\
/* Made by `python -m topi_ext.emit`; changes are lost. */
#include "{name}.h"

#include "conv_kernels_call.h"
"""

_FUNCTION = """
int __tvm_ffi_{kernel}(void* self, void* arguments, int32_t count, void* result);

{signature} {{
{shapes}
  static const conv_kernels_argument arguments[] = {{
{arguments}
  }};
  const void* pointers[] = {{{pointers}}};
  return {call};
}}
"""


def header(request: Request, packed: Argument | None, target: str) -> str:
    """Return the header of a kernel.

    Parameters
    ----------
    request : Request
    packed : Argument or None
        The packed weights, if weights come packed.
    target : str
        The target that it was built for.
    """
    name, guard = request.words.name, request.words.name.upper()
    arguments = kernel_arguments(request, packed)
    functions = []
    if packed:
        said = f"/* Pack weights for {name}(). */\n"
        functions.append(said + _signature(f"{name}_pack", packing_arguments(request, packed)))
    functions.append(_signature(name, arguments))
    named = {argument.name: argument for argument in (*request.arguments, *arguments)}
    lines = []
    for argument in named.values():
        shape = "x".join(map(str, argument.shape))
        lines += [
            f"/* {argument.name}: {argument.dtype} {shape}, {argument.note} */",
            f"#define {guard}_{argument.name.upper()}_ELEMENTS {prod(argument.shape)}",
        ]
    return _HEADER.format(
        text=f"{_described(request)}\n   Target: {target}",
        guard=guard,
        sizes="\n".join(lines),
        functions="\n\n".join(f"{function};" for function in functions),
    )


def source(request: Request, packed: Argument | None, *, copies: bool) -> str:
    """Return the functions that the header declares.

    Parameters
    ----------
    copies : bool
        Whether packed weights are the weights as they are.
    """
    name = request.words.name
    text = _SOURCE.format(name=name)
    if packed:
        packing = packing_arguments(request, packed)
        text += _function(f"{name}_pack", packing, packing, copies=copies)
    arguments = kernel_arguments(request, packed)
    first, second, *rest = arguments
    order = [second, first, *rest] if request.swapped else arguments
    return text + _function(name, arguments, order)


def kernel_arguments(request: Request, packed: Argument | None) -> list[Argument]:
    """Return the arguments of the C function."""
    data, second, *rest = request.arguments
    return [data, packed or second, *rest]


def packing_arguments(request: Request, packed: Argument) -> list[Argument]:
    """Return the arguments of the function that packs weights."""
    return [request.arguments[1], packed]


def _described(request: Request) -> str:
    """Return the operator and its attributes."""
    words = request.words
    parts = [words.op]
    for attribute in ("stride", "padding", "dilation", "output_padding"):
        if getattr(words, attribute) != getattr(Words, attribute):
            parts.append(f"{attribute} {getattr(words, attribute)}")
    if words.groups != 1:
        parts.append(f"groups {words.groups}")
    if words.epilogue:
        parts.append("then " + ", ".join(words.epilogue))
    return ", ".join(parts)


def _signature(name: str, arguments: Sequence[Argument]) -> str:
    *operands, result = arguments
    declared = [f"const {TYPES[one.dtype]}* {one.name}" for one in operands]
    return f"int {name}({', '.join(declared)}, {TYPES[result.dtype]}* {result.name})"


def _function(
    name: str, arguments: Sequence[Argument], order: Sequence[Argument], *, copies: bool = False
) -> str:
    """One that hands `arguments` to the kernel, which takes them in this `order`."""
    shapes = [
        f"  static const int64_t {one.name}_shape[] = {{{', '.join(map(str, one.shape))}}};"
        for one in order
    ]
    rows = []
    for one in order:
        kind = one.dtype.rstrip("0123456789")
        dtype = f"{_CODES[kind]}, {8 * byte_width(one.dtype)}"
        rows.append(f'      {{"{one.name}", {one.name}_shape, {len(one.shape)}, {dtype}}},')
    call = (
        f'conv_kernels_copy("{name}", arguments, pointers)'
        if copies
        else f'conv_kernels_call("{name}", __tvm_ffi_{name}, arguments, pointers, {len(order)})'
    )
    text = _FUNCTION.format(
        kernel=name,
        signature=_signature(name, arguments),
        shapes="\n".join(shapes),
        arguments="\n".join(rows),
        pointers=", ".join(one.name for one in order),
        call=call,
    )
    return text if not copies else text[text.index(_signature(name, arguments)) - 1 :]
