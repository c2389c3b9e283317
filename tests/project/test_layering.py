# SPDX-License-Identifier: Apache-2.0
"""Allowed imports between modules, read from the source: docs/developer/design.md.

Layers are folders: ``spec <- kernel, emit, te, fusion <- cpu, cuda <- backend <- conv_cli <-
relax_ext, relay_ext``, and in relax_ext ``ir <- op <- fusion <- legalizations, gradients <- aten <-
importers, torch <- training_step <- cli``.  No folder imports itself by way of another one.  Only
``compat`` knows one TVM release from another, and folders without TVM stay importable without it.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from helpers.process import in_new_process

PYTHON = Path(__file__).parents[2] / "python"

# By folder, or by module where one differs from its folder: a module may import modules of lower
# layers, and of its own as long as no circle closes.
LAYER = {
    "topi_ext.about": 0,
    "topi_ext.interrupts": 0,
    "topi_ext.notices": 0,
    "topi_ext.processors": 0,
    "topi_ext.spec": 1,
    "topi_ext.padding": 1,
    "topi_ext.precision": 1,
    "topi_ext.kernel": 2,
    "topi_ext.emit": 2,
    "topi_ext.te": 2,
    "topi_ext.schedules": 2,
    "topi_ext.code_cache": 2,
    "topi_ext.fusion": 2,
    "topi_ext.adapters": 2,
    "topi_ext.target": 2,
    "topi_ext.cpu": 3,
    "topi_ext.cuda": 3,
    "topi_ext.backend": 4,
    "topi_ext.tuning": 5,
    "topi_ext.deploy": 5,
    "topi_ext.emit.__main__": 5,  # a command: what it runs stands above its package
    "topi_ext.__init__": 5,
    "conv_cli": 5,
    "relax_ext.ir": 6,
    "relax_ext.target": 6,
    "relax_ext.op": 7,
    "relax_ext.fusion": 8,
    "relax_ext.legalizations": 9,
    "relax_ext.gradients": 9,
    "relax_ext.aten": 10,
    "relax_ext.pipeline": 10,
    "relax_ext.importers": 11,
    "relax_ext.registry": 11,
    "relax_ext.executable_cache": 12,
    "relax_ext.torch": 12,
    "relax_ext.tune": 12,
    "relax_ext.training_step": 13,
    "relax_ext.optimizers": 13,
    "relax_ext.__init__": 14,
    "relax_ext.cli": 15,
    "relax_ext.__main__": 15,
    "relay_ext": 6,
    "relay_ext.__init__": 7,
    "relay_ext.cli": 8,
    "relay_ext.__main__": 8,
    "cuda_emulator": -1,  # beside the others: it stands on TVM alone, and no module imports it
}
COMPAT = "topi_ext.compat"
WITHOUT_TVM = {
    "topi_ext.about",
    "topi_ext.interrupts",
    "topi_ext.notices",
    "topi_ext.processors",
    "topi_ext.spec",
    "topi_ext.padding",
    "topi_ext.precision",
    "topi_ext.kernel",
    "topi_ext.adapters.onnx_activations",
    "topi_ext.code_cache.disk",
    "topi_ext.fusion.chain",
    "topi_ext.fusion.post_ops",
    "topi_ext.tuning.interleaved",
    *(
        f"topi_ext.{target}.{part}"
        for target in ("cpu", "cuda")
        for part in ("machine", "plan", "registry", "select")
    ),
    "topi_ext.cpu.products",
}
STDLIB_ONLY = {
    "topi_ext.about",
    "topi_ext.interrupts",
    "topi_ext.notices",
    "topi_ext.processors",
    "topi_ext.adapters.onnx_activations",
    "topi_ext.code_cache.disk",
    "topi_ext.spec.axis_access",
    "topi_ext.spec.geometry",
    "topi_ext.tuning.interleaved",
}
ABOVE = {"scripts", "tests", "examples"}
SCRIPTS = {path.stem for path in (PYTHON.parent / "scripts").glob("*") if path.name != "cases"}
"""Modules that this folder puts on the path."""
TARGETS = {"topi_ext.cpu", "topi_ext.cuda"}
PACKAGES = {"topi_ext", "conv_cli", "relax_ext", "relay_ext"}
ADAPTERS = {"relax_ext": "relax", "relay_ext": "relay"}
COMMAND_LINE = {"cli", "__main__"}  # of an adapter: only these know conv_cli
EMULATOR = "cuda_emulator"
VERSION_QUERIES = {"version", "distribution"}


def layer_of(module: str) -> str | None:
    """Return the entry of `LAYER` that a dotted module belongs to, or `COMPAT`; None of neither."""
    if within(module, {COMPAT}):
        return COMPAT
    if f"{module}.__init__" in LAYER:
        return f"{module}.__init__"
    parts = module.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LAYER), None)


def within(module: str, names: set[str]) -> bool:
    """Return whether a module is one of these, or inside a package of them."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def imported(tree: ast.Module, package: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and absolute name of everything imported anywhere in a module of ``package``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                # `from topi_ext import geometry` names a room; a class from a room does not.
                is_module = full in modules or base.split(".")[0] == "tvm"
                yield node.lineno, full if is_module else base


def is_tvm(module: str) -> bool:
    return module.split(".")[0] in {"tvm", "tvm_ffi"}


def version_probes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of what asks TVM for its release, or whether it has some name."""
    names = {"tvm"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.split(".")[0] for a in node.names if is_tvm(a.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and is_tvm(node.module or ""):
            names |= {a.asname or a.name for a in node.names}

    def from_tvm(node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in names

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "__version__" and from_tvm(node.value):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            probes = called == "hasattr" or (called == "getattr" and len(node.args) == 3)
            asks_package = (
                called in VERSION_QUERIES
                and isinstance(first, ast.Constant)
                and str(first.value).startswith("apache-tvm")
            )
            if (probes and from_tvm(first)) or asks_package:
                yield node.lineno, ast.unparse(node)


def lines_for_types(tree: ast.Module) -> set[int]:
    """Return the lines below ``if TYPE_CHECKING``, which never run: they close no circle of
    folders.
    """
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def violations(sources: dict[str, str]) -> list[str]:
    """Return one line per broken rule in ``sources``, a map from dotted module to its text.

    A package's ``__init__`` is named by the package plus ``.__init__``.
    """
    modules = {name.removesuffix(".__init__") for name in sources}
    found: list[str] = []
    arrows: dict[str, set[str]] = {}
    running: dict[str, set[str]] = {}
    for name, text in sorted(sources.items()):
        tree, module = ast.parse(text), name.removesuffix(".__init__")
        if layer_of(module) is None:
            found.append(f"{name}: {module} is in no layer")
            continue
        for_types = lines_for_types(tree)
        for line, target in imported(tree, name.rpartition(".")[0], modules):
            rule = broken_rule(module, target)
            if rule:
                found.append(f"{name}:{line}: {module} must not import {target}: {rule}")
            if within(target, PACKAGES):
                arrows.setdefault(module, set()).add(target)
                if line not in for_types and not module.endswith(".__main__"):
                    running.setdefault(module, set()).add(target)
        if not within(module, {COMPAT}):
            found += [
                f"{name}:{line}: {text} belongs in compat" for line, text in version_probes(tree)
            ]
            if within(module, {"topi_ext"}):
                found += [
                    f"{name}:{line}: {text}: topi_ext knows no IR" for line, text in irs(tree)
                ]
    both = circles(arrows) + circles(between_folders(running))
    return found + list(dict.fromkeys(both))


def irs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of ``tvm.relax`` and ``tvm.relay``."""
    for node in ast.walk(tree):
        is_ir = isinstance(node, ast.Attribute) and node.attr in ADAPTERS.values()
        if is_ir and isinstance(node.value, ast.Name) and node.value.id == "tvm":
            yield node.lineno, ast.unparse(node)


def broken_rule(module: str, target: str) -> str:
    """Return the rule that an import of `target` by `module` breaks; nothing where it may."""
    top, package = target.split(".")[0], module.split(".")[0]
    known = {*sys.stdlib_module_names, "__future__"}
    if module in STDLIB_ONLY and top not in known and not within(target, STDLIB_ONLY):
        return "standard library only"
    uses_tvm = is_tvm(target) or within(target, {COMPAT, "topi_ext.te"})
    if uses_tvm and within(module, WITHOUT_TVM):
        return "this module is without TVM"
    if within(target, {"tvm.relax", "tvm.relay"}) and not within(module, {COMPAT}):
        is_its_own = ADAPTERS.get(package) == target.split(".")[1]
        return "" if is_its_own else "only the adapter of that IR does"
    if top in ABOVE | SCRIPTS:
        return "it stands above the packages"
    if top == EMULATOR and package != EMULATOR:
        return "only scripts and tests do"
    if not within(target, PACKAGES) or within(target, {COMPAT}) == within(module, {COMPAT}) is True:
        return ""
    return broken_layer(module, target)


def broken_layer(module: str, target: str) -> str:
    """Return what is wrong with an import between two modules of our packages."""
    package, top = module.split(".")[0], target.split(".")[0]
    if within(target, {COMPAT}):
        return ""
    if within(module, {COMPAT}):
        return "compat stands on TVM alone"
    if {package, top} == set(ADAPTERS):
        return "the adapters never meet"
    targets = [name for one in (module, target) for name in TARGETS if within(one, {name})]
    if set(targets) == TARGETS:
        return "targets never meet"
    if package in ADAPTERS and top == "conv_cli" and module.split(".")[1] not in COMMAND_LINE:
        return "a library does not know its command line"
    here, there = layer_of(module), layer_of(target)
    if there is None:
        return "it is in no layer"
    if package == EMULATOR and top != EMULATOR:
        return "the arrow runs back"
    return "the arrow runs back" if LAYER[there] > LAYER[here or there] else ""


def between_folders(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows between the folders and modules of each folder.

    Those of a program, ``__main__``, are left out: it stands above its package.
    """
    found: dict[str, set[str]] = {}
    for module, targets in arrows.items():
        for target in targets:
            parts, others = module.split("."), target.split(".")
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(parts, others))
            depth = len(list(shared)) + 1
            if min(len(parts), len(others)) >= depth:
                here, there = (".".join(one[:depth]) for one in (parts, others))
                found.setdefault(here, set()).add(there)
    return found


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Return the shortest circle through each room that can reach itself, every circle once."""
    found: dict[frozenset[str], str] = {}
    for start in sorted(arrows):
        if circle := circle_through(start, arrows):
            found.setdefault(frozenset(circle), f"a circle: {' -> '.join(circle)}")
    return list(found.values())


def circle_through(start: str, arrows: dict[str, set[str]]) -> list[str]:
    """Return a shortest way from a room to itself, nothing where there is none."""
    before: dict[str, str] = {}
    todo = [start]
    for room in todo:
        for other in sorted(arrows.get(room, ())):
            if other not in before:
                before[other] = room
                todo.append(other)
    way = [start] if start in before else []
    while way and (len(way) == 1 or way[-1] != start):
        way.append(before[way[-1]])
    return way[::-1]


def sources(folder: Path = PYTHON, *inner: str) -> dict[str, str]:
    """Return the texts of the modules in a folder, or deeper inside, by their dotted names."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text()
        for path in folder.joinpath(*inner).rglob("*.py")
    }


def test_arrows_run_one_way() -> None:
    house = sources()
    assert house, f"no module under {PYTHON}"
    assert violations(house) == []


def test_what_scripts_share_imports_no_script() -> None:
    """Scripts take what they need from the package, so the other way would be a circle."""
    house = sources(PYTHON.parent / "scripts", "support")
    assert house
    modules = {name.removesuffix(".__init__") for name in house}
    arrows: dict[str, set[str]] = {}
    for name, text in house.items():
        found = imported(ast.parse(text), name.rpartition(".")[0], modules)
        arrows[name.removesuffix(".__init__")] = {target for _, target in found}
    for name, targets in arrows.items():
        for target in targets:
            assert not within(target, SCRIPTS - {"support"}), f"{name}: {target} is a script"
    assert circles(arrows) == []


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("topi_ext.spec.geometry", "import numpy", "standard library only"),
        ("topi_ext.spec.geometry", "from . import gradients", "standard library only"),
        ("topi_ext.spec.gradients", "import tvm.te", "without TVM"),
        ("topi_ext.spec.reference", "def f():\n    from tvm import te", "without TVM"),
        ("topi_ext.cpu.select.choose", "from ...compat import Target", "without TVM"),
        ("topi_ext.spec.reference", "from ..te.definitions import conv", "without TVM"),
        ("topi_ext.te.definitions", "from ..cpu.kernels import phase", "runs back"),
        ("topi_ext.cpu.kernels.phase", "from ...backend import build", "runs back"),
        ("topi_ext.schedules.loops", "from tvm import relax", "adapter of that IR"),
        ("topi_ext.schedules.loops", "import tvm\n\nf = tvm.relax.const", "knows no IR"),
        ("topi_ext.compat.ir", "from ..spec.geometry import Geometry", "stands on TVM alone"),
        ("topi_ext.helpers", "", "no layer"),
        ("relax_ext.op.ops", "from topi_ext.helpers import f", "no layer"),
        ("relax_ext.op.ops", "import relay_ext", "never meet"),
        ("topi_ext.cuda.plan.direct", "from ...cpu.machine import CpuMachine", "never meet"),
        ("relax_ext.op.ops", "from tvm import relay", "adapter of that IR"),
        ("relax_ext.op.ops", "from scripts import bench", "stands above"),
        (
            "relax_ext.tune",
            "def f():\n    import conv_cli.report",
            "does not know its command line",
        ),
        ("topi_ext.backend", "from conv_cli.errors import CliError", "runs back"),
        ("relax_ext.gradients.norms", "from ..aten import norms", "runs back"),
        ("relax_ext.importers.torch", "def f():\n    from ..torch import part", "runs back"),
        ("relay_ext.strategy", "from .cli import operators", "runs back"),
        ("topi_ext.backend", "import cuda_emulator", "only scripts and tests do"),
        ("cuda_emulator.host", "from topi_ext.spec import geometry", "runs back"),
        ("relax_ext.op.ops", "import tvm\n\nold = tvm.__version__ < '0.26'", "belongs in compat"),
        ("relax_ext.op.ops", "from tvm import ir\n\nf = hasattr(ir, 'Op')", "belongs in compat"),
        ("relax_ext.op.ops", "import tvm\n\nf = getattr(tvm.ir, 'X', 0)", "belongs in compat"),
        ("relax_ext.op.ops", "v = metadata.version('apache-tvm')", "belongs in compat"),
    ],
)
def test_a_broken_rule_is_seen(module: str, text: str, said: str) -> None:
    others = ["topi_ext.spec.gradients", "topi_ext.te.definitions", "topi_ext.backend", COMPAT]
    others += ["topi_ext.cpu.kernels", "topi_ext.cpu.machine", "topi_ext", "relay_ext"]
    others += ["relax_ext.aten", "relax_ext.torch", "relay_ext.cli"]
    others += ["topi_ext.helpers"] if "helpers" in text else []
    house = {f"{name}.__init__": "" for name in others if name != module}
    found = violations(house | {module: text})
    assert [line for line in found if line.startswith(f"{module}:") and said in line], found


def test_a_circle_is_seen() -> None:
    """Imports for types alone close one too, of modules."""
    there = {"topi_ext.cpu.plan.a": "from . import b"}
    back = "from .a import g"
    circle = "a circle: topi_ext.cpu.plan.a -> topi_ext.cpu.plan.b -> topi_ext.cpu.plan.a"
    assert violations(there | {"topi_ext.cpu.plan.b": back}) == [circle]
    types = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {back}"
    assert violations(there | {"topi_ext.cpu.plan.b": types}) == [circle]


def test_a_circle_of_folders_is_seen() -> None:
    """Inside of a function too, but neither of types nor of what a program imports."""
    modules = {"topi_ext.cpu.isa.a": "from ..parts import b", "topi_ext.cpu.parts.b": ""}
    assert violations(modules) == []
    back = "from ..isa import d"
    rest = {"topi_ext.cpu.isa.d": ""}
    circle = "a circle: topi_ext.cpu.isa -> topi_ext.cpu.parts -> topi_ext.cpu.isa"
    lazy = f"def f():\n    {back}"
    types = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {back}"
    assert violations(modules | rest | {"topi_ext.cpu.parts.c": lazy}) == [circle]
    assert violations(modules | rest | {"topi_ext.cpu.parts.c": types}) == []
    assert violations(modules | rest | {"topi_ext.cpu.parts.__main__": back}) == []


def test_importing_the_library_does_not_import_its_command_line() -> None:
    """The imports above are read; those by name are not."""
    in_new_process(
        "import sys, relax_ext; sys.exit(any(one.startswith('conv_cli') for one in sys.modules))"
    )


def test_modules_without_tvm_import_without_tvm() -> None:
    """The imports above are read; these are run, façade included."""
    names = ", ".join(sorted(WITHOUT_TVM))
    in_new_process(f"import sys; sys.modules['tvm'] = None; import {names}")
