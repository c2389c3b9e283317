# SPDX-License-Identifier: Apache-2.0
"""The house of docs/developer/design.md: which room may import which, read from the source.

``gather, geometry <- gradients, reference, compute, problem <- emit, schedule <- cpu <- backend
<- cli <- relax_ext, relay_ext``. Only ``compat`` knows one TVM release from another,
and rooms without TVM stay importable without it.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

PYTHON = Path(__file__).parents[2] / "python"

# A module may import modules of rooms on lower floors and on its own, as long as no circle closes.
FLOOR = {
    "topi_ext.gather": 0,
    "topi_ext.geometry": 0,
    "topi_ext.notices": 0,
    "topi_ext.about": 0,
    "topi_ext.interrupts": 0,
    "topi_ext.race": 0,
    "topi_ext.kernel_info": 0,
    "topi_ext.kernel_selection": 0,
    "topi_ext.disk_cache": 0,
    "topi_ext.filtering": 1,
    "topi_ext.layout": 1,
    "topi_ext.dtypes": 1,
    "topi_ext.epilogue": 1,
    "topi_ext.gradients": 1,
    "topi_ext.reference": 1,
    "topi_ext.conv_transpose": 1,
    "topi_ext.compute": 1,
    "topi_ext.spec": 1,
    "topi_ext.sizes": 1,
    "topi_ext.kernel_registry": 1,
    "topi_ext.problem": 1,
    "topi_ext.product": 1,
    "topi_ext.resize": 1,
    "topi_ext.rowwise": 1,
    "topi_ext.transposition": 1,
    "topi_ext.precision": 1,
    "topi_ext.padding": 1,
    "topi_ext.plan_database": 2,
    "topi_ext.choice": 2,
    "topi_ext.nominal": 2,
    "topi_ext.emit": 2,
    "topi_ext.call": 2,
    "topi_ext.schedule": 2,
    "topi_ext.vector_math": 2,
    "topi_ext.float_semantics": 2,
    "topi_ext.target": 2,
    "topi_ext.registration": 2,
    "topi_ext.import_hooks": 2,
    "topi_ext.tflite_node": 2,
    "topi_ext.machine_code": 2,
    "topi_ext.code_cache": 2,
    "topi_ext.cpu.machine": 3,
    "topi_ext.cpu.plan": 3,
    "topi_ext.cpu.registry": 3,
    "topi_ext.cpu.measured": 3,
    "topi_ext.cpu.emit": 3,
    "topi_ext.cpu.isa": 3,
    "topi_ext.cpu.parts": 3,
    "topi_ext.cpu.kernels": 3,
    "topi_ext.cpu.backend": 3,
    "topi_ext.cpu": 3,
    "topi_ext.cuda.machine": 3,
    "topi_ext.cuda.plan": 3,
    "topi_ext.cuda.registry": 3,
    "topi_ext.cuda.emit": 3,
    "topi_ext.cuda.isa": 3,
    "topi_ext.cuda.parts": 3,
    "topi_ext.cuda.kernels": 3,
    "topi_ext.cuda.backend": 3,
    "topi_ext.cuda": 3,
    "topi_ext.backend": 4,
    "topi_ext.deploy": 5,
    "topi_ext.emit.__main__": 5,  # a command: what it runs stands above its package
    "topi_ext": 5,  # the façade: __init__.py
    "conv_cli": 5,
    "relax_ext": 6,
    "relay_ext": 6,
    "cuda_emulator": -1,  # beside the house: it stands on TVM alone, and no room imports it
}
COMPAT = "topi_ext.compat"
WITHOUT_TVM = {
    "topi_ext.choice",
    "topi_ext.kernel_info",
    "topi_ext.kernel_selection",
    "topi_ext.about",
    "topi_ext.disk_cache",
    "topi_ext.interrupts",
    "topi_ext.notices",
    "topi_ext.race",
    "topi_ext.plan_database",
    "topi_ext.cpu.measured",
    "topi_ext.gather",
    "topi_ext.geometry",
    "topi_ext.filtering",
    "topi_ext.layout",
    "topi_ext.dtypes",
    "topi_ext.epilogue",
    "topi_ext.gradients",
    "topi_ext.reference",
    "topi_ext.spec",
    "topi_ext.sizes",
    "topi_ext.kernel_registry",
    "topi_ext.problem",
    "topi_ext.product",
    "topi_ext.resize",
    "topi_ext.rowwise",
    "topi_ext.transposition",
    "topi_ext.cpu.machine",
    "topi_ext.cpu.plan",
    "topi_ext.cpu.registry",
    "topi_ext.cuda.machine",
    "topi_ext.cuda.plan",
    "topi_ext.cuda.registry",
    "topi_ext.nominal",
    "topi_ext.precision",
    "topi_ext.padding",
}
STDLIB_ONLY = {
    "topi_ext.about",
    "topi_ext.disk_cache",
    "topi_ext.interrupts",
    "topi_ext.gather",
    "topi_ext.geometry",
    "topi_ext.notices",
    "topi_ext.race",
}
ABOVE = {"benchmarks", "tools", "tests", "examples"}
BENCHMARKS, TOOLS = (
    {path.stem for path in (PYTHON.parent / folder).glob("*") if path.name != "cases"}
    for folder in ("benchmarks", "tools")
)
"""What these two put on the path."""
TARGETS = {"topi_ext.cpu", "topi_ext.cuda"}
ADAPTERS = {"relax_ext": "relax", "relay_ext": "relay"}
EMULATOR = "cuda_emulator"
VERSION_QUERIES = {"version", "distribution"}


def room_of(module: str) -> str:
    """Return the room that a dotted module lives in: adapters are one room, topi_ext has many,
    and so has each target of it."""
    parts = module.split(".")
    if parts[0] != "topi_ext":
        return parts[0]
    if parts[-1] == "__main__":
        return module
    return ".".join(parts[: 3 if parts[1:2] in (["cpu"], ["cuda"]) else 2])


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
    """Return the lines below ``if TYPE_CHECKING``, which never run: they close no circle."""
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
    for name, text in sorted(sources.items()):
        tree = ast.parse(text)
        room, typing = room_of(name.removesuffix(".__init__")), lines_for_types(tree)
        if room not in FLOOR and room != COMPAT:
            found.append(f"{name}: {room} is no room of docs/developer/design.md")
            continue
        for line, target in imported(tree, name.rpartition(".")[0], modules):
            where = f"{name}:{line}: {room} must not import {target}"
            top = target.split(".")[0]
            known = {*sys.stdlib_module_names, "__future__"}
            if room in STDLIB_ONLY and top not in known and room_of(target) not in STDLIB_ONLY:
                found.append(f"{where}: standard library only")
            elif is_tvm(target) and room in WITHOUT_TVM:
                found.append(f"{where}: this room is without TVM")
            elif target.split(".")[:2] in (["tvm", "relax"], ["tvm", "relay"]) and room != COMPAT:
                if ADAPTERS.get(room) != target.split(".")[1]:
                    found.append(f"{where}: only the adapter of that IR does")
            elif top in ABOVE | BENCHMARKS | TOOLS:
                found.append(f"{where}: it stands above the packages")
            elif top == EMULATOR and room != EMULATOR:
                found.append(f"{where}: only benchmarks, tools and tests do")
            elif top in {"topi_ext", "conv_cli", "relax_ext", "relay_ext"}:
                other = room_of(target)
                if line not in typing:
                    arrows.setdefault(name.removesuffix(".__init__"), set()).add(target)
                if other == room:
                    continue
                if other == COMPAT:
                    if room in WITHOUT_TVM:
                        found.append(f"{where}: this room is without TVM")
                elif room == COMPAT:
                    found.append(f"{where}: compat stands on TVM alone")
                elif other not in FLOOR:
                    found.append(f"{where}: no room of docs/developer/design.md")
                elif {room, other} == set(ADAPTERS):
                    found.append(f"{where}: the adapters never meet")
                elif {".".join(one.split(".")[:2]) for one in (room, other)} == TARGETS:
                    found.append(f"{where}: targets never meet")
                elif room in WITHOUT_TVM and other == "topi_ext.compute":
                    found.append(f"{where}: this room is without TVM")
                elif FLOOR[other] > FLOOR[room]:
                    found.append(f"{where}: the arrow runs back")
        if room != COMPAT:
            found += [
                f"{name}:{line}: {text} belongs in compat" for line, text in version_probes(tree)
            ]
        if room.startswith("topi_ext") and room != COMPAT:
            found += [
                f"{name}:{node.lineno}: {ast.unparse(node)}: topi_ext knows no IR"
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "tvm"
                and node.attr in ADAPTERS.values()
            ]
    return found + circles(arrows)


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Return the modules that can reach themselves."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for room in arrows.get(todo.pop(), ()):
                if room not in seen:
                    seen.add(room)
                    todo.append(room)
        return seen

    return [f"{room}: imports itself in a circle" for room in arrows if room in reachable(room)]


def sources() -> dict[str, str]:
    return {
        ".".join(path.relative_to(PYTHON).with_suffix("").parts): path.read_text()
        for path in PYTHON.rglob("*.py")
    }


def test_arrows_run_one_way() -> None:
    house = sources()
    assert house, f"no module under {PYTHON}"
    assert violations(house) == []


def test_benchmarks_import_no_tools() -> None:
    """Tools take what they need from the benchmarks, so the other way would be a circle."""
    folder = PYTHON.parent / "benchmarks"
    files = list(folder.rglob("*.py"))
    assert files
    for path in files:
        package = ".".join(path.relative_to(folder).parent.parts)
        for line, target in imported(ast.parse(path.read_text()), package, set()):
            assert target.split(".")[0] not in TOOLS, f"{path.name}:{line}: {target} is a tool"


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("topi_ext.geometry", "import numpy", "standard library only"),
        ("topi_ext.geometry", "from . import gradients", "standard library only"),
        ("topi_ext.gradients", "import tvm.te", "without TVM"),
        ("topi_ext.reference", "def f():\n    from tvm import te", "without TVM"),
        ("topi_ext.cpu.plan.choose", "from ...compat import Target", "without TVM"),
        ("topi_ext.cpu.plan.choose", "from topi_ext import compat", "without TVM"),
        ("topi_ext.reference", "from .compute import conv", "without TVM"),
        ("topi_ext.compute", "from .cpu.kernels.phase import phase", "runs back"),
        ("topi_ext.cpu.kernels.phase", "from ...backend import prim_func", "runs back"),
        ("topi_ext.cpu.kernels.phase", "import topi_ext", "runs back"),
        ("topi_ext.backend", "import relax_ext", "runs back"),
        ("topi_ext.schedule", "from tvm import relax", "adapter of that IR"),
        ("topi_ext.schedule", "import tvm\n\nf = tvm.relax.const", "knows no IR"),
        ("topi_ext.compat", "from .geometry import Geometry", "stands on TVM alone"),
        ("topi_ext.helpers", "", "no room"),
        ("torch_ext.ops", "", "no room"),
        ("relax_ext.ops", "from topi_ext.helpers import f", "no room"),
        ("relax_ext.ops", "import relay_ext", "never meet"),
        ("relay_ext.ops", "from relax_ext.ops import f", "never meet"),
        ("topi_ext.cuda.plan.direct", "from ...cpu.machine import Machine", "never meet"),
        ("relax_ext.ops", "from tvm import relay", "adapter of that IR"),
        ("relax_ext.ops", "from benchmarks import bench", "stands above"),
        ("relax_ext.ops", "from benchmark.timing import timed", "stands above"),
        ("relax_ext.ops", "import dump_kernels", "stands above"),
        ("topi_ext.backend", "import cuda_emulator", "only benchmarks, tools and tests do"),
        ("cuda_emulator.host", "from topi_ext import geometry", "runs back"),
        ("relax_ext.ops", "import tvm\n\nold = tvm.__version__ < '0.26'", "belongs in compat"),
        ("relax_ext.ops", "from tvm import ir\n\nf = hasattr(ir, 'Op')", "belongs in compat"),
        ("relax_ext.ops", "import tvm\n\nf = getattr(tvm.ir, 'X', 0)", "belongs in compat"),
        ("relax_ext.ops", "v = metadata.version('apache-tvm')", "belongs in compat"),
    ],
)
def test_a_broken_rule_is_seen(module: str, text: str, said: str) -> None:
    rooms = {f"{room}.__init__": "" for room in FLOOR} | {f"{COMPAT}.__init__": ""}
    rooms["topi_ext.helpers"] = ""
    if module != "topi_ext.helpers" and "helpers" not in text:
        del rooms["topi_ext.helpers"]
    rooms.pop(f"{module}.__init__", None)
    found = violations(rooms | {module: text})
    assert [line for line in found if line.startswith(f"{module}:") and said in line], found


def test_a_circle_of_neighbours_is_seen() -> None:
    found = violations(
        {
            "topi_ext.gradients": "from . import reference",
            "topi_ext.reference": "from .gradients import Ops",
        }
    )
    assert any("circle" in line for line in found), found


def test_a_circle_in_one_room_is_seen_but_for_types() -> None:
    there = {"topi_ext.cpu.plan.a": "from .b import f"}
    back = "from .a import g"
    assert any("circle" in line for line in violations(there | {"topi_ext.cpu.plan.b": back}))
    types = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {back}"
    assert violations(there | {"topi_ext.cpu.plan.b": types}) == []


def test_allowed_arrows_pass() -> None:
    house = {
        "topi_ext.__init__": "from .geometry import Geometry",
        "topi_ext.geometry": "from __future__ import annotations\nimport math",
        "topi_ext.reference": "import numpy as np\nfrom .gradients import Ops",
        "topi_ext.gradients": "from .geometry import Geometry",
        "topi_ext.compute": "from tvm import te\nfrom . import compat",
        "topi_ext.compat": "import tvm\n\nnew = hasattr(tvm, 'sym')\nfrom tvm import relax",
        "relax_ext.ops": "from tvm import relax\nfrom topi_ext import reference\nimport topi_ext",
    }
    assert violations(house) == []


@pytest.mark.parametrize("room", sorted(WITHOUT_TVM & {room_of(name) for name in sources()}))
def test_rooms_without_tvm_import_without_tvm(room: str) -> None:
    """The imports above are read; these are run, façade included."""
    code = f"import sys; sys.modules['tvm'] = None; import {room}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rooms_without_tvm_are_typed() -> None:
    """Mypy's list in pyproject.toml is neither short of a room nor ahead of one."""
    project = tomllib.loads((PYTHON.parent / "pyproject.toml").read_text())
    listed = {Path(name).with_suffix("").parts[1:] for name in project["tool"]["mypy"]["files"]}
    standing = WITHOUT_TVM & {room_of(name) for name in sources()}
    assert {".".join(parts) for parts in listed} == standing
