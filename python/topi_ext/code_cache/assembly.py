# SPDX-License-Identifier: Apache-2.0
"""Compiled functions as text that the next process only has to assemble.

A module of TVM's LLVM code generator becomes assembly, in which every name is its own; modules are
put together again as one of LLVM whose functions are assembly.  TVM runs, exports and sends it as
any other, and LLVM neither optimizes it nor chooses instructions again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import compat


def can_be_assembled(target: Any) -> bool:
    """Return whether a target is one whose assembly is known to be read as it was written.

    LLVM reads all instructions of x86, whichever a processor has; elsewhere it refuses some.
    """
    if target.kind.name != "llvm" or "cl-opt" in target.attrs:
        return False
    triple = str(target.attrs.get("mtriple", "") or compat.system_triple())
    return triple.startswith("x86_64-") and "linux" in triple


@dataclass(frozen=True)
class Assembled:
    """The cached form of a module.

    Attributes
    ----------
    head : str
        Head of LLVM's text: data layout, triple.
    flag : str
        Metadata that names TVM's target.
    functions : tuple of str
        Symbols that others call, each with TVM's signature.
    pointers : tuple of str
        Symbols that TVM's runtime fills in when the module is loaded.
    text : str
        The assembly, as a string of LLVM.
    """

    head: str
    flag: str
    functions: tuple[str, ...]
    pointers: tuple[str, ...]
    text: str

    def to_bytes(self) -> bytes:
        """For a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, content: bytes, own: str) -> Assembled | None:
        """Return what a file holds; None unless it is whole, and code whose names begin so."""
        try:
            found = json.loads(content)
            lists = {name: tuple(found[name]) for name in ("functions", "pointers")}
            part = cls(**{**found, **lists})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return part if part.is_whole(own) else None

    def is_whole(self, own: str) -> bool:
        """Return whether LLVM can read all of it, and each function is among the code."""
        names = (*self.functions, *self.pointers)
        texts: tuple[object, ...] = (self.head, self.flag, self.text, *names)
        if not self.functions or not all(isinstance(one, str) and one.isascii() for one in texts):
            return False
        labels = (f"\\0A{own}.{name}:\\0A" for name in self.functions)
        return (
            all(map(_HEAD.fullmatch, self.head.split("\n")))
            and _METADATA.fullmatch(self.flag) is not None
            and all(map(_NAME.fullmatch, names))
            and '"' not in self.text
            and "\n" not in self.text
            and all(label in self.text for label in labels)
        )


_POINTER = re.compile(r"(?m)^@(\S+) = (?:linkonce|weak) dllexport .*?global (ptr null.*)$")
_MAIN = re.compile(r"(?ms)^define weak dllexport i32 @__tvm_ffi_main\(.*?^}\n")
_ENTRY = re.compile(r"(?m)^define dllexport [^@\n]*i32 @(__tvm_ffi_[\w.]+)\(")
_OTHERS = re.compile(r"(?m)^(?!@llvm\.)(@\S+ = |define )(?=.*dllexport)")
_DEBUG = re.compile(r"(?m),? !dbg !\d+|^ *#dbg_.*\n|^!llvm\.dbg\.cu.*\n")
_HEAD = re.compile(r"(?m)^target .*$")
_FLAG = re.compile(r'(?m)^!\d+ = (!\{i32 \d, !"tvm_target".*)$')
_METADATA = re.compile(r'!\{i32 \d, !"tvm_target", !"[^"\n]*"\}')
_NAME = re.compile(r"[\w.]+")


def assembled(module: Any, own: str) -> Assembled | None:
    """Return the cacheable form of an LLVM module; None if it contains unsupported constructs.

    Parameters
    ----------
    module : tvm.runtime.Module
    own : str
        Unique prefix of the names of this module.
    """
    text = _MAIN.sub("", _DEBUG.sub("", module.inspect_source("ll")))
    head = "\n".join(_HEAD.findall(text))
    flag = _FLAG.search(text)
    pointers = tuple(name for name, _ in _POINTER.findall(text))
    functions = tuple(_ENTRY.findall(text))
    exported = len(_OTHERS.findall(text))
    if flag is None or exported != len(pointers) + len(functions):
        return None
    alone = compat.module_of_llvm(_POINTER.sub(r"@\1 = external global ptr", text))
    code = _with_own_names(alone.inspect_source("s"), own)
    part = code and Assembled(head, flag[1], functions, pointers, _escaped(code))
    return part if part and part.is_whole(own) else None


_LABEL = re.compile(r"([A-Za-z_.$][\w.$]*):")
_COMMON = re.compile(r"\s*\.(?:local|comm|lcomm)\s+([^\s,]+)")
_DIRECTIVE = re.compile(r"\s+(\.[A-Za-z_]\w*)")
_MNEMONIC = re.compile(r"\s+([A-Za-z]\w*)")
_LEFT_OUT = (".globl", ".weak", ".hidden", ".file", ".ident", ".addrsig", ".addrsig_sym")
_STRINGS = (".asciz", ".ascii", ".string")
_KNOWN = (
    *_STRINGS,
    *(".text", ".data", ".bss", ".section", ".p2align", ".type", ".size"),
    *(".byte", ".short", ".value", ".long", ".quad", ".octa", ".zero"),
    *(".local", ".comm", ".lcomm"),
)
"""Directives that mean the same in any place; code that has another is not kept."""


def _with_own_names(code: str, own: str) -> str | None:
    """Assembly whose symbols are seen by itself only; None where that is not sure."""
    lines, directives, mnemonics = [], [], set()
    for line in code.splitlines():
        found = _DIRECTIVE.match(line)
        directive = found[1] if found else ""
        if directive in _LEFT_OUT:
            continue
        is_known = not directive or directive in _KNOWN or directive.startswith(".cfi_")
        if line.startswith('"') or not is_known:
            return None
        if found := _MNEMONIC.match(line):
            mnemonics.add(found[1])
        lines.append(line)
        directives.append(directive)
    marks = [_LABEL.match(line) or _COMMON.match(line) for line in lines]
    names = {mark[1] for mark in marks if mark and not mark[1].startswith(".L")}
    if names & mnemonics:
        return None
    listed = "|".join(map(re.escape, sorted(names))) or "(?!)"
    symbol = re.compile(rf"(?<![\w.$%@])({listed}|\.L[\w.$]+)(?![\w$])(?!\.\w)")
    missed = re.compile(rf"\$(?:{listed}|\.L)")
    renamed = []
    for line, directive in zip(lines, directives):
        if directive not in _STRINGS:
            if missed.search(line):
                return None
            line = symbol.sub(lambda found: _own(own, found[1]), line)
        renamed.append(line)
    return "\n".join(renamed) + "\n"


def _own(own: str, name: str) -> str:
    return f".L{own}{name[2:]}" if name.startswith(".L") else f"{own}.{name}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")


_CALL = """\
define dllexport i32 @{name}(ptr %0, ptr %1, i32 %2, ptr %3) {{
  %5 = tail call i32 @"{own}.{name}"(ptr %0, ptr %1, i32 %2, ptr %3)
  ret i32 %5
}}
declare hidden i32 @"{own}.{name}"(ptr, ptr, i32, ptr)
"""


def together(parts: Sequence[tuple[str, Assembled]]) -> Any:
    """One module of LLVM with all functions of `parts`, each beside what its names begin with."""
    first = parts[0][1]
    lines = [first.head, *(f'module asm "{part.text}"' for _, part in parts)]
    pointers = dict.fromkeys(name for _, part in parts for name in part.pointers)
    lines += [f"@{name} = linkonce dllexport global ptr null, align 8" for name in pointers]
    for own, part in parts:
        lines += [_CALL.format(name=name, own=own) for name in part.functions]
    lines += ["!llvm.module.flags = !{!0}", f"!0 = {first.flag}"]
    return compat.module_of_llvm("\n".join(lines) + "\n")
