# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that no linter knows, read from the files that git tracks."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LICENCE = "# SPDX-License-Identifier: Apache-2.0"
# Directories of one person's machine; a path in the project is relative to its root.
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(home|root|Users|work|opt|tmp)/\w+")
MOST_LINES = 60
"""Maximum lines of a function, from its `def` to its end, docstring included."""
MOST_PARAMETERS = 7
"""Maximum parameters of a function besides self and cls; fields of a dataclass or NamedTuple are
not parameters."""
EMITTERS = ("topi_ext/cpu/kernels/", "topi_ext/cpu/parts/", "topi_ext/cpu/winograd/")
"""Modules whose objects hold no state while they emit: attributes are set in __init__, which emits
none."""
EMITTING = {
    f"emit.{verb}"
    for verb in (
        *("fill", "grid", "let", "loop", "only_if", "opaque_base", "opaque_value"),
        *("registers", "scratch", "share_of", "sides", "store", "table", "tasks", "tiles"),
        *("tiles_or_ones", "tiles_then_ones", "via_memory"),
    )
}
"""Verbs of `emit` that leave statements behind."""
LOOP_MODULES = (
    "topi_ext/emit/",
    *(f"topi_ext/cpu/{folder}" for folder in ("emit", "isa/", "kernels/", "parts/")),
    *(f"topi_ext/cuda/{folder}" for folder in ("emit", "kernels/", "parts/")),
)
"""Modules that emit kernels: a loop of Python may stand for a loop or a branch that is emitted."""
EMITTED_LOOPS = {
    *("grid", "loop", "only_if", "share_of", "sides", "tiles", "tiles_or_ones", "tiles_then_ones"),
}
"""Generators of `emit` that emit loops and branches; emitters add their own."""
CACHED = {"cached_property", "functools.cached_property"}
"""Decorators that set an attribute when it is first read."""
EXCEPTIONS = {
    "topi_ext/te/conv_transpose.py: conv_transpose: 11 parameters": "as TOPI has them",
    "topi_ext/te/conv_transpose.py: of: 10 parameters": "an operator's attributes, by name",
    "topi_ext/spec/geometry.py: of_conv_transpose: 8 parameters": "attributes, by name",
    "topi_ext/spec/geometry.py: of_sizes: 9 parameters": "an operator's attributes, by name",
    "topi_ext/spec/geometry.py: _checked: 11 parameters": "all attributes, for one check",
}
"""Functions that break the rules, and the reason."""
UNCLEAR_OPENING = re.compile(r"(Of|What|Whether|Those)\b")
"""First words of docstrings that are no sentence: functions start with a verb, data with a noun."""
SUPPRESSION = re.compile(r"^\s*#\s*(ruff|flake8|mypy|pylint):\s*(noqa|ignore-errors|disable)", re.M)


def tracked(*patterns: str) -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: the list of tracked files is unknown")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [ROOT / name for name in names.stdout.split("\0") if name]
    return [path for path in found if path.is_file()]


def test_every_module_starts_with_the_licence() -> None:
    modules = tracked("*.py")
    assert modules
    unlicensed = [
        str(path.relative_to(ROOT))
        for path in modules
        if path.read_text().removeprefix("#!/usr/bin/env python3\n").split("\n", 1)[0] != LICENCE
    ]
    assert unlicensed == []


def test_no_file_silences_a_linter_as_a_whole() -> None:
    assert [str(p) for p in tracked("*.py") if SUPPRESSION.search(p.read_text())] == []


def test_no_path_of_one_machine() -> None:
    texts = tracked("*.py", "*.md", "*.toml", "*.yaml", "*.json", "Makefile", ".ci/*")
    others = [path for path in texts if path != Path(__file__)]
    assert [str(p) for p in others if MACHINE_PATH.search(p.read_text())] == []


def test_nothing_large_or_generated_is_tracked() -> None:
    assert [str(p) for p in tracked() if p.stat().st_size > 500_000] == []


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, its classes and functions, and its documented variables."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def unclear_openings(text: str) -> Iterator[str]:
    """Yield line number and first word of each docstring that starts with an unclear word."""
    for found in docstrings(ast.parse(text)):
        if opening := UNCLEAR_OPENING.match(str(found.value).lstrip()):
            yield f"{found.lineno}: {opening[0]}"


def test_docstrings_start_with_a_verb_or_a_noun() -> None:
    modules = tracked("python/*.py", "scripts/*.py", "examples/*.py", "tests/*.py")
    assert modules
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules
        for line in unclear_openings(path.read_text())
    ]
    assert found == []


def code_violations(name: str, text: str) -> Iterator[str]:
    """One line per broken rule of functions and classes in a module of this name."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            listed = (*given.posonlyargs, *given.args, *given.kwonlyargs)
            parameters = [arg.arg for arg in listed if arg.arg not in {"self", "cls"}]
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_LINES:
                yield f"{name}: {node.name}: {lines} lines"
            if len(parameters) > MOST_PARAMETERS:
                yield f"{name}: {node.name}: {len(parameters)} parameters"
        elif isinstance(node, ast.ClassDef) and name.startswith(EMITTERS):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield from (f"{name}: {node.name}: {what}" for what in state(method))


def state(method: ast.FunctionDef) -> Iterator[str]:
    """Yield changes of its object's state that only a constructor may make, and statements that a
    constructor emits."""
    is_constructor = method.name == "__init__"
    if any(ast.unparse(decorator) in CACHED for decorator in method.decorator_list):
        yield f"{method.name} is cached"
    for node in ast.walk(method):
        verb = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if is_constructor and verb in EMITTING:
            yield f"__init__ emits: {verb}"
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and not is_constructor and ast.unparse(node.value) == "self":
            yield f"{method.name} sets {node.attr}"


def generators(tree: ast.AST) -> set[str]:
    """Return the names of the functions of a module that are generators, not context managers."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and not any("contextmanager" in ast.unparse(d) for d in node.decorator_list)
        and any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
    }


def early_exits(name: str, tree: ast.AST, loops: set[str]) -> Iterator[str]:
    """Yield a line for each statement that leaves the body of an emitted loop or branch early.

    Such a generator emits the end of the loop when Python asks for its next item.  Statements of an
    inner function, and ``break`` and ``continue`` of an inner loop of Python, leave something else.
    """

    def visit(node: ast.AST, loop: str, returns: bool) -> Iterator[str]:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            loop, returns = "", False
        elif isinstance(node, (ast.Break, ast.Continue)) and loop:
            yield f"{name}:{node.lineno}: {type(node).__name__.lower()} inside {loop}"
        elif isinstance(node, ast.Return) and returns:
            yield f"{name}:{node.lineno}: return inside an emitted loop"
        elif isinstance(node, ast.While):
            loop = ""
        elif isinstance(node, ast.For):
            called = ast.unparse(node.iter.func) if isinstance(node.iter, ast.Call) else ""
            loop = called if called.rpartition(".")[2] in loops else ""
            returns = returns or bool(loop)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, loop, returns)

    yield from visit(tree, "", False)


def test_no_emitted_loop_is_left_early() -> None:
    python = ROOT / "python"
    trees = {
        path.relative_to(python).as_posix(): ast.parse(path.read_text())
        for path in tracked("python/topi_ext/*.py")
    }
    trees = {name: tree for name, tree in trees.items() if name.startswith(LOOP_MODULES)}
    assert trees
    loops = EMITTED_LOOPS.union(*map(generators, trees.values()))
    assert [line for name, tree in trees.items() for line in early_exits(name, tree, loops)] == []


def test_an_early_exit_is_seen() -> None:
    text = """
class A:
    def tiles_of(self):
        for i in emit.loop(2):
            yield i
    @contextmanager
    def task(self):
        yield 1
def f():
    for i in emit.loop(n):
        break
    for block, i in self.splits.tiles_of(s):
        if i: continue
        for a in b:
            return a
"""
    tree = ast.parse(text)
    assert generators(tree) == {"tiles_of"}
    assert list(early_exits("a.py", tree, {*EMITTED_LOOPS, *generators(tree)})) == [
        "a.py:11: break inside emit.loop",
        "a.py:13: continue inside self.splits.tiles_of",
        "a.py:15: return inside an emitted loop",
    ]


def test_every_command_of_make_has_one_rule() -> None:
    """A name that is phony and has no rule does nothing, and says so to nobody."""
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    rules = re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE)
    assert sorted(rules) == sorted(phony.split())


def test_functions_are_short_and_hold_no_state() -> None:
    python = ROOT / "python"
    modules = tracked("python/topi_ext/*.py")
    assert modules
    found = {
        line
        for path in modules
        for line in code_violations(path.relative_to(python).as_posix(), path.read_text())
    }
    assert found - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - found == set(), "no exceptions any more: take them off the list"


def test_only_its_own_modules_ask_for_the_class_of_a_plan() -> None:
    """A kernel that is added tomorrow must not be forgotten by an isinstance elsewhere."""
    asking = [
        f"{path.relative_to(ROOT)}: {call}"
        for path in tracked(
            "python/topi_ext/*.py", "python/relax_ext/*.py", "python/relay_ext/*.py"
        )
        for call in re.findall(r"isinstance\([^()]*Plan\b[^()]*\)", path.read_text())
    ]
    assert asking == []


def test_a_broken_rule_of_functions_is_seen() -> None:
    text = """
class A:
    def __init__(self):
        self.x = emit.let(1)
    def g(self, a, b, c, d, /, e, f, *, h, i):
        self.x, b = 1, 2
        def h():
            self.y += 1
    @cached_property
    def k(self):
"""
    found = code_violations("topi_ext/cpu/kernels/a.py", text + "        pass\n" * MOST_LINES)
    assert sorted(line.partition(": ")[2] for line in found) == [
        "A: __init__ emits: emit.let",
        "A: g sets x",
        "A: g sets y",
        "A: k is cached",
        "g: 8 parameters",
        "k: 61 lines",
    ]


def test_kernels_say_what_their_product_is() -> None:
    """The loop nest, and M, N and K of the matrix product."""
    kernels = [p for p in tracked("python/topi_ext/cpu/kernels/*.py") if p.stem != "__init__"]
    assert kernels
    for path in kernels:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert "::\n" in said, f"{path.name} draws no loop nest"
        assert "product" in said, f"{path.name} names no product"
        if "no matrix product" not in said:
            assert re.search(r"\bK\b", said), f"{path.name} does not say what K is"
