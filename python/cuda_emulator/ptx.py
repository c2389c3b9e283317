# SPDX-License-Identifier: Apache-2.0
"""Statements of inline PTX, as calls of the emulator's functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from .faults import Unsupported

__all__ = ["replaced"]

_STATEMENT = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\(')
_MATRIX_KINDS = {
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": ("f32_f16", "float", 4, ""),
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": ("f32_bf16", "float", 4, ""),
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16": ("f16_f16", "unsigned", 2, ""),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": ("f32_tf32", "float", 4, ""),
}
for _a, _b in (("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")):
    _signs = (_a == "s8") + 2 * (_b == "s8")
    for _clamp in ("", ".satfinite"):
        _MATRIX_KINDS[f"mma.sync.aligned.m16n8k32.row.col{_clamp}.s32.{_a}.{_b}.s32"] = (
            *("s32", "int", 4),
            f"{_signs}, ",
        )


def replaced(text: str) -> str:
    """`text` with every statement of inline PTX replaced, lines kept where they were."""
    parts, at = [], 0
    while found := _STATEMENT.search(text, at):
        if _in_comment(text, found.start()):
            parts.append(text[at : found.end()])
            at = found.end()
            continue
        end = _closing(text, found.end() - 1)
        inner = text[found.end() : end]
        parts += [text[at : found.start()], _translated(inner), "\n" * inner.count("\n")]
        at = end + 1
    return "".join((*parts, text[at:]))


def _in_comment(text: str, at: int) -> bool:
    """Return whether what is at this place follows ``//`` on its line."""
    return "//" in text[text.rfind("\n", 0, at) + 1 : at]


def _closing(text: str, opening: int) -> int:
    """The place of the parenthesis that closes the one at `opening`."""
    depth, at = 0, opening
    while at < len(text):
        if text[at] == '"':
            literal = _LITERAL.match(text, at)
            if literal:
                at = literal.end()
                continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
        at += 1
    raise Unsupported(f"inline PTX without an end: {text[opening : opening + 60]!r}")


def _sections(inner: str) -> list[str]:
    """Template, outputs, inputs, clobbers: what colons outside of parentheses and strings part."""
    found, depth, start, at = [], 0, 0, 0
    while at < len(inner):
        literal = _LITERAL.match(inner, at) if inner[at] == '"' else None
        if literal:
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(inner[at], 0)
        if inner[at] == ":" and not depth:
            if inner[at + 1 : at + 2] == ":" and (inner[at - 1].isalnum()):
                at += 2  # a name with its namespace
                continue
            found.append(inner[start:at])
            start = at + 1
        at += 1
    return [*found, inner[start:]]


def _operands(section: str) -> Iterator[str]:
    """The expressions of a list of operands."""
    at = 0
    while found := _OPERAND.search(section, at):
        end = _closing(section, found.end() - 1)
        yield f"({section[found.end() : end]})"
        at = end + 1


def _translated(inner: str) -> str:
    sections = [*_sections(inner), "", ""]
    template = " ".join(_LITERAL.findall(sections[0]))
    template = template.replace("\\n", " ").replace("\\t", " ").replace("%%", "%")
    operands = [*_operands(sections[1]), *_operands(sections[2])]
    return "{ " + " ".join(_Block(template, operands).statements()) + " }"


def _split(instructions: str) -> Iterator[str]:
    """Instructions one by one; braces around operands are kept, those of a scope are not."""
    for piece in instructions.split(";"):
        text = piece.strip()
        while text[:1] in {"{", "}"} and not re.match(r"\{[^}]*\}\s*,", text):
            text = text[1:].strip()
        if text:
            yield text


class _Block:
    """One statement of inline PTX: its instructions, and the C++ operands behind %0, %1..."""

    def __init__(self, template: str, operands: list[str]) -> None:
        self.template, self.operands = template, operands

    def statements(self) -> Iterator[str]:
        for instruction in _split(self.template):
            guard, text = "", instruction
            if text.startswith("@"):
                predicate, text = text[1:].split(None, 1)
                negated = predicate.startswith("!")
                guard = f"if ({'!' * negated}{predicate.lstrip('!')}) "
            opcode, _, rest = text.partition(" ")
            call = self._call(opcode, self._arguments(rest), instruction)
            # What is declared has to be there for the instructions that follow.
            yield call if opcode == ".reg" else f"{guard}{{ {call} }}"

    def _arguments(self, rest: str) -> list[str]:
        """Operands as C++, in order; those in braces one by one."""
        flat = re.sub(r"[{}\[\]]", "", rest)
        return [self._argument(item.strip()) for item in flat.split(",") if item.strip()]

    def _argument(self, name: str) -> str:
        def operand(found: re.Match[str]) -> str:
            number = int(found[1])
            if number >= len(self.operands):
                raise Unsupported(f"inline PTX names operand %{number}, of {len(self.operands)}")
            return self.operands[number]

        return re.sub(r"%(\d+)", operand, name)

    def _call(self, opcode: str, given: list[str], instruction: str) -> str:
        for pattern, write in _INSTRUCTIONS:
            found = re.fullmatch(pattern, opcode)
            if found:
                try:
                    return write(found, given)
                except (IndexError, ValueError) as error:
                    raise Unsupported(f"inline PTX with other operands: {instruction}") from error
        raise Unsupported(f"inline PTX: {instruction}")


_Writer = Callable[["re.Match[str]", "list[str]"], str]


def _words(name: str, kind: str, given: list[str]) -> str:
    values = ", ".join(f"emu_bits<{kind}>({value})" for value in given)
    return f"{kind} {name}[] = {{{values}}};"


def _mma(found: re.Match[str], given: list[str]) -> str:
    kind = _MATRIX_KINDS.get(found[0])
    if kind is None:
        raise Unsupported(f"inline PTX: {found[0]}")
    suffix, sums, count, signs = kind
    if len(given) != 2 * count + 6:
        raise ValueError("count of operands")
    results, a, b = given[:count], given[count : count + 4], given[count + 4 : count + 6]
    stores = " ".join(f"emu_set({value}, emu_d[{i}]);" for i, value in enumerate(results))
    return (
        f"{_words('emu_d', sums, given[count + 6 :])} {_words('emu_a', 'unsigned', a)} "
        f"{_words('emu_b', 'unsigned', b)} "
        f"emu_mma_{suffix}(emu_d, emu_a, emu_b, {signs}__LINE__); {stores}"
    )


def _ldmatrix(found: re.Match[str], given: list[str]) -> str:
    count = int(found[1])
    if len(given) != count + 1:
        raise ValueError("count of operands")
    stores = " ".join(f"emu_set({value}, emu_r[{i}]);" for i, value in enumerate(given[:count]))
    address = f"(unsigned)({given[count]})"
    transposed = int(bool(found[2]))
    return (
        f"unsigned emu_r[{count}]; "
        f"emu_ldmatrix(emu_r, {address}, {count}, {transposed}, __LINE__); {stores}"
    )


def _copy_async(found: re.Match[str], given: list[str]) -> str:
    to, source, size, *taken = given
    # Past the first cache only whole quarters of a line are copied.
    sizes = {"16"} if found[1] == "g" else {"4", "8", "16"}
    if len(taken) > 1 or size.strip("() ") not in sizes:
        raise ValueError("a policy of caches, or another size")
    return (
        f"emu_copy_async((unsigned)({to}), (const void*)({source}), {size}, "
        f"(int)({taken[0] if taken else size}));"
    )


def _dp4a(found: re.Match[str], given: list[str]) -> str:
    result, a, b, total = given
    kinds = [{"s32": "int8_t", "u32": "uint8_t"}[kind] for kind in found.groups()]
    whole = "unsigned" if found[1] == found[2] == "u32" else "int"
    product = (
        f"emu_dot4<{kinds[0]}, {kinds[1]}>((unsigned)({a}), (unsigned)({b}), ({whole})({total}))"
    )
    return f"emu_set({result}, {product});"


def _declare(found: re.Match[str], given: list[str]) -> str:
    kind = {"pred": "bool", "u64": "uint64_t", "b64": "uint64_t"}.get(found[1], "uint32_t")
    return f"{kind} {', '.join(given)};"


_INSTRUCTIONS: tuple[tuple[str, _Writer], ...] = (
    (r"mma\.sync\.\S+", _mma),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"ldmatrix\.sync\.aligned\.x([124])(\.trans)?\.m8n8\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"cp\.async\.c([ag])\.shared(?:::cta)?\.global(?:\.L2::\d+B)?", _copy_async),
    (r"cp\.async\.commit_group", lambda _, __: "emu_copy_commit();"),
    (r"cp\.async\.wait_group", lambda _, given: f"emu_copy_wait({given[0]});"),
    (r"cp\.async\.wait_all", lambda _, __: "emu_copy_wait(-1);"),
    (r"cvt\.rna\.tf32\.f32", lambda _, g: f"emu_set({g[0]}, emu_to_tf32({g[1]}));"),
    (r"dp4a\.([su]32)\.([su]32)", _dp4a),
    (r"bar\.sync|barrier\.sync(?:\.aligned)?", lambda _, __: "emu_block_barrier(__LINE__);"),
    # What TVM's own helpers need besides: a predicate, and the number of a shared address.
    (r"\.reg", lambda _, given: _declare_words(given)),
    (r"setp\.ne\.[bsu]32", lambda _, g: f"{g[0]} = ({g[1]}) != ({g[2]});"),
    (r"cvta\.to\.shared\.u64", lambda _, g: f"{g[0]} = emu_to_shared((const void*)({g[1]}));"),
    (r"cvt\.u32\.u64", lambda _, g: f"{g[0]} = (uint32_t)({g[1]});"),
)


def _declare_words(given: list[str]) -> str:
    kind, name = given[0].split(None, 1)
    found = re.fullmatch(r"\.(\w+)", kind)
    if found is None:
        raise ValueError(kind)
    return _declare(found, [name, *given[1:]])
