# SPDX-License-Identifier: Apache-2.0
"""CUDA C++ of TVM, as C++ for the CPU: the same text but for inline PTX and shared memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import ptx

__all__ = ["translated"]

_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:cuda\w*\.h|mma\.h|sm_\w+\.h|cooperative_groups\.h)>", re.M
)
_ALIGNED = r"(?:(?:__align__|alignas)\((\d+)\)\s*)?"
_DYNAMIC = re.compile(
    rf"extern\s+(?:__shared__\s+{_ALIGNED}|__align__\((\d+)\)\s*__shared__\s+)"
    r"([\w:<> ]+?)\s*(\w+)\s*\[\s*\]\s*;"
)
_SHARED = re.compile(rf"__shared__\s+{_ALIGNED}([\w:<>, ]+?)\s*\b(\w+)\s*((?:\[[^\]]*\]\s*)*);")


def translated(source: str, kernels: Sequence[str]) -> str:
    """A module of C++ with these kernels in its table; line n is line n of `source`."""
    text = _INCLUDE.sub("", source)
    text = _DYNAMIC.sub(_dynamic, text)
    count = 0

    def shared(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        alignment, element, name, extents = found.groups()
        kind = f"emu_kind_{name}"
        room = f'emu_shared_array({count}, "{name}", sizeof({kind}), '
        room += f"alignof({kind}) > {alignment or 1} ? alignof({kind}) : {alignment or 1})"
        return f"typedef {element} {kind}{extents}; {kind}& {name} = *({kind}*){room};"

    text = ptx.replaced(_SHARED.sub(shared, text))
    rows = ", ".join(
        f'{{"{name}", [](const emu_argument* given) {{ emu_call({name}, given); }}}}'
        for name in kernels
    )
    return (
        '#include "cuda_emulator.h"\n'
        f'#line 1 "kernels.cu"\n{text}\n'
        f"const emu_kernel emu_kernels[] = {{{rows}}};\n"
        f"const int emu_kernel_count = {len(kernels)};\n"
    )


def _dynamic(found: re.Match[str]) -> str:
    first, second, element, name = found.groups()
    alignment = first or second or 16
    return f'{element}* {name} = ({element}*)emu_dynamic_shared("{name}", {alignment});'
