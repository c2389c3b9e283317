# SPDX-License-Identifier: Apache-2.0
"""Names that are looked up in TVM, and would be left out silently: each release has them."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tvm
from tvm import relax, te
from tvm.ir.instrument import pass_instrument

import relax_ext
from helpers.foreign import PYTHON
from relax_ext.op.attrs import STOCK
from topi_ext import notices
from topi_ext.compat import builds, has_op, infer_key, op_attr, tensor_type
from topi_ext.compat.targets import knows_triple
from topi_ext.emit.lowering import NEEDLESS

TARGETS = {
    "llvm": tvm.target.Target("llvm"),
    "cuda": tvm.target.Target({"kind": "cuda", "arch": "sm_80"}),
}
PLACES = {
    "llvm": ("tvm.relax.backend.cpu_generic.pipeline", "LegalizeOps"),
    "cuda": ("tvm.relax.backend.cuda.pipeline", "ApplyDefaultSchedule"),
}
"""TVM's passes, and the one beside which ours are placed."""
OTHERS = {"relax.frontend.nn", "relax.ExecutableLoadFromFile"}
"""A module, and a global function, whose lookup fails if it is missing."""


def warned(kind: str) -> list[str]:
    """Return the warnings of the pipeline for a model of one operator."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", tensor_type(relax.ShapeExpr([2, 3]), "float32", 2))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.nn.relu(x)))
    notices.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            relax_ext.pipeline(TARGETS[kind])(bb.get())
    return [str(one.message) for one in caught if "has no pass" in str(one.message)]


@pytest.mark.smoke
@pytest.mark.parametrize("kind", TARGETS)
def test_passes_are_placed_beside_those_of_tvm(kind: str) -> None:
    assert warned(kind) == []


@pytest.mark.parametrize("kind", TARGETS)
def test_a_renamed_pass_is_told_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the model is compiled by TVM's passes alone."""
    place, name = PLACES[kind]
    module = importlib.import_module(place)
    stock = module.legalize_passes

    def renamed(one: Any) -> Any:
        @tvm.transform.module_pass(opt_level=0, name="Renamed")
        def run(module: Any, _: Any) -> Any:
            return one(module)

        return run if one.info.name == name else one

    monkeypatch.setattr(module, "legalize_passes", lambda target: [*map(renamed, stock(target))])
    said = f"relax_ext.pipeline: this TVM has no pass {name} for {kind}: ours are left out"
    assert warned(kind) == [said]


@pytest.mark.smoke
def test_needless_passes_are_passes_of_the_default_pipeline() -> None:
    """TVM ignores names of disabled passes that it does not know."""
    seen = set()

    @pass_instrument
    class Names:
        def run_before_pass(self, _: Any, info: Any) -> None:
            seen.add(str(info.name))

    x = te.placeholder((8,), name="x")
    func = te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1.0)])
    with tvm.transform.PassContext(instruments=[Names()]):
        tvm.compile(func, TARGETS["llvm"])
    assert not set(NEEDLESS) - seen


def named_in_source() -> Iterator[str]:
    """Yield strings that are names of Relax, and not the beginning of one."""
    for path in (*PYTHON.glob("relax_ext/**/*.py"), *PYTHON.glob("topi_ext/**/*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        parts = [one for one in nodes if isinstance(one, ast.JoinedStr)]
        calls = (one for one in nodes if isinstance(one, ast.Call))
        parts += [one for one in calls if ast.unparse(one.func).endswith(".startswith")]
        begun = {id(inner) for one in parts for inner in ast.walk(one)}
        for node in nodes:
            if isinstance(node, ast.Constant) and id(node) not in begun:
                yield str(node.value)


def named_in_tables() -> Iterator[str]:
    """Yield strings of the tables of modules."""
    modules = [module for name, module in sys.modules.items() if name.startswith("relax_ext.")]
    for module in modules:
        for table in vars(module).values():
            if isinstance(table, (dict, frozenset, set, tuple)):
                yield from (name for name in table if isinstance(name, str))


@pytest.mark.smoke
def test_operators_that_are_named_exist() -> None:
    """Rules and patterns of operators that do not exist would never match."""
    named = {*named_in_source(), *named_in_tables()} - OTHERS
    operators = {name for name in named if re.fullmatch(r"relax(\.\w+)+", name)}
    assert len(operators) > 100 and not {name for name in operators if not has_op(name)}


@pytest.mark.smoke
def test_operators_have_the_rules_that_ours_take_the_place_of() -> None:
    with relax_ext.stock():
        lacking = [(op, key) for op in STOCK for key in (infer_key(), "FLegalize")
                   if op_attr(op, key) is None]  # fmt: skip
    assert not lacking


@pytest.mark.smoke
def test_libraries_of_tvm_are_known() -> None:
    """Cached code is that of another TVM, if they have been built anew."""
    names = {library._name for library in builds._libraries()}
    assert names and all(map(os.path.isabs, names))


@pytest.mark.smoke
def test_unknown_processors_are_refused_before_llvm_ends_the_process() -> None:
    assert knows_triple("x86_64-linux-gnu") and not knows_triple("none-of-the-known-ones")
