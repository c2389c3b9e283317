# SPDX-License-Identifier: Apache-2.0
"""A fingerprint of a lowered function that does not depend on names and orders of TVM 0.17.

``CommonSubexprElimTIR`` of TVM 0.17 binds common terms to variables ``cse_var_N`` in an order that
follows from addresses in memory: the same function differs from build to build.  The fingerprint
is that of the function with these variables replaced by their values.  They have no side effects,
so functions of one fingerprint compute the same.

The order of the attributes of a function differs too, where two of them meet in TVM's hash table.
They are sorted here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

_COMMON = "cse_var_"
_TIR = (
    *("Add", "Allocate", "And", "AssertStmt", "AttrStmt", "Broadcast", "Buffer", "BufferLoad"),
    *("BufferStore", "Call", "Cast", "DeclBuffer", "Div", "EQ", "Evaluate", "For", "GE", "GT"),
    *("IfThenElse", "LE", "LT", "Let", "LetStmt", "Max", "Min", "Mod", "Mul", "NE", "Not", "Or"),
    *("PrimFunc", "Ramp", "Select", "SeqStmt", "Shuffle", "StringImm", "Sub", "Var"),
    *("FloorDiv", "FloorMod", "SizeVar", "AllocateConst", "While"),
)
_KNOWN = frozenset(
    (
        *(f"tir.{name}" for name in _TIR),
        *("Array", "DictAttrs", "FloatImm", "FuncType", "IntImm", "Map", "Op", "PointerType"),
        *("PrimType", "Target", "TargetKind", "TupleType", "runtime.String"),
    )
)
"""Kinds of nodes whose attributes are known; a function with another is taken as its text."""

_PLAIN = {
    "IntImm": {"value"},
    "FloatImm": {"value"},
    "TargetKind": {"default_device_type"},
    "tir.Buffer": {"buffer_type", "data_alignment", "offset_factor"},
    "tir.For": {"kind"},
}
"""Attributes beside ``dtype`` that are values; all others are numbers of nodes."""

_VARIABLES = ("tir.Var", "tir.SizeVar")


def fingerprint(text: str) -> str:
    """Return what tells one lowered function from another, from its text in TVM's JSON."""
    graph = json.loads(text)
    nodes = graph["nodes"]
    is_known = all(node.get("type_key", "") in ("", *_KNOWN) for node in nodes)
    if not is_known or graph.get("b64ndarrays"):
        return sha256(text.encode()).hexdigest()
    return _Digests(nodes).of(int(graph["root"])).hex()


class _Digests:
    """Digests of nodes by their numbers; those of variables hold the order of their first use.

    Parameters
    ----------
    nodes : list of dict
        As TVM writes them.
    """

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.done: dict[int, bytes] = {}
        self.values: dict[int, int] = {}
        self.variables = 0

    def of(self, root: int) -> bytes:
        """Return the digest of a node; nodes below it come first, in order."""
        stack = [root]
        while stack:
            number = stack[-1]
            if number in self.done:
                stack.pop()
                continue
            below = [child for child in self._below(number) if child not in self.done]
            if below:
                stack += reversed(below)
            else:
                stack.pop()
                self.done[number] = self._digest(number)
        return self.done[root]

    def _below(self, number: int) -> list[int]:
        """Return the nodes that the digest of a node is made of."""
        node = self.nodes[number]
        if number in self.values:
            return [self.values[number]]
        attrs = node.get("attrs") or {}
        if node.get("type_key") == "tir.LetStmt" and self._is_common(int(attrs["var"])):
            self.values[int(attrs["var"])] = int(attrs["value"])
            return [int(attrs["body"])]
        return [int(child) for _, child in self._references(node)]

    def _digest(self, number: int) -> bytes:
        node, below = self.nodes[number], self._below(number)
        kind, attrs = node.get("type_key", ""), node.get("attrs") or {}
        if number in self.values or (kind == "tir.LetStmt" and self._is_common(int(attrs["var"]))):
            return self.done[below[0]]
        digest = sha256(kind.encode())
        if kind in _VARIABLES:
            self.variables += 1
            digest.update(b"%d" % self.variables)
        plain = {name: value for name, value in attrs.items() if self._is_plain(kind, name)}
        names = [name for name, _ in self._references(node)]
        keys = sorted(node.get("keys", ()))
        values = [plain, names, keys, node.get("repr_str"), node.get("repr_bytes")]
        digest.update(json.dumps(values).encode())
        for child in below:
            digest.update(self.done[child])
        return digest.digest()

    def _references(self, node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        kind = node.get("type_key", "")
        for name, value in (node.get("attrs") or {}).items():
            if not self._is_plain(kind, name):
                yield name, value
        values = node.get("data", ())
        if "keys" in node:
            values = [value for _, value in sorted(zip(node["keys"], values))]
        for value in values:
            yield "", value

    @staticmethod
    def _is_plain(kind: str, name: str) -> bool:
        return name == "dtype" or name in _PLAIN.get(kind, ())

    def _is_common(self, variable: int) -> bool:
        attrs = self.nodes[variable].get("attrs") or {}
        name = self.nodes[int(attrs["name"])] if "name" in attrs else {}
        return str(name.get("repr_str", "")).startswith(_COMMON)
