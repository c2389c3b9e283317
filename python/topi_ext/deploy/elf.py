# SPDX-License-Identifier: Apache-2.0
"""Renaming and hiding the symbols of an object file of TVM's code generator.

TVM's names are those that its runtime has too.  A program may hold both, so kernels have names of
their own, which no library that they become part of shows to others.

Source: Tool Interface Standard, Executable and Linking Format, version 1.2; ELF-64 Object File
Format, version 1.5.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE, _HIDDEN, _LOCAL, _GLOBAL, _UNDEFINED = 2, 2, 0, 1, 0
_RISCV = 243


def is_riscv(data: bytes) -> bool:
    """Return whether an object file is one for RISC-V."""
    return data[18:20] == _RISCV.to_bytes(2, "little")


def isolated(data: bytes, renamed: Mapping[str, str], undefined: Collection[str] = ()) -> bytes:
    """Return the object file `data` with symbols renamed, and hidden where they are renamed or
    defined.

    Parameters
    ----------
    data : bytes
        A relocatable file of ELF, 64 bits, little-endian.
    renamed : mapping of str to str
        Names and what takes their place, which must not be longer.
    undefined : collection of str
        Symbols whose definition is removed, because another file has it.

    Raises
    ------
    ValueError
        It is no such file.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the target's object files must be ELF of 64 bits, little-endian")
    made = bytearray(data)
    for symbols, names in _symbol_tables(data):
        for place in symbols:
            name, info, other, section, value, size = _SYMBOL.unpack_from(data, place)
            if info >> 4 == _LOCAL:
                continue
            start = names + name
            text = data[start : data.index(b"\0", start)].decode()
            shorter = renamed.get(text)
            if shorter is not None:
                if len(shorter) > len(text):
                    raise ValueError(f"{shorter} is longer than {text}")
                made[start : start + len(text)] = shorter.encode().ljust(len(text), b"\0")
            if text in undefined:
                info, section, value, size = _GLOBAL << 4, _UNDEFINED, 0, 0
            if shorter is not None or section != _UNDEFINED:
                _SYMBOL.pack_into(made, place, name, info, other | _HIDDEN, section, value, size)
    return bytes(made)


def _symbol_tables(data: bytes) -> Iterator[tuple[range, int]]:
    """Return the location of the symbols of each table, and of its strings."""
    (first,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, first + i * entry) for i in range(count)]
    for _, kind, _, _, offset, size, strings, *_ in sections:
        if kind == _SYMBOL_TABLE:
            yield range(offset, offset + size, _SYMBOL.size), sections[strings][4]
