# SPDX-License-Identifier: Apache-2.0
"""Short builds of Relay: code that is kept, types and small functions that are remembered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.ir.instrument import PassTimingInstrument
from tvm.relay.backend import Executor, Runtime, te_compiler

import relay_ext
from helpers.relay import target
from relay_ext.build_time import is_of_relay
from relay_ext.cli import main
from relay_ext.structural_cache import StructuralCache
from topi_ext.code_cache import disk as disk_cache
from topi_ext.code_cache import llvm_modules
from topi_ext.code_cache.fingerprint import fingerprint
from topi_ext.compat import build_of_llvm, function_text

DATA = np.random.default_rng(0).standard_normal((1, 4, 12, 12), np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 4, 3, 3), np.float32)


@pytest.fixture(autouse=True)
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that records cache hits, one bool for each module, with an empty cache."""
    monkeypatch.setenv("TVM_CONV_CACHE", str(tmp_path / "kept"))
    found: list[bool] = []
    read = llvm_modules._read

    def asked(*arguments: Any) -> Any:
        module = read(*arguments)
        found.append(module is not None)
        return module

    monkeypatch.setattr(llvm_modules, "_read", asked)
    te_compiler.get().clear()
    return found


def model(weight: np.ndarray | None = WEIGHT) -> tvm.IRModule:
    """Two convolutions, the second transposed, and pooling between them; without a weight, of a
    parameter, for which no constant is computed."""
    x, w = relay.var("x", shape=DATA.shape), relay.var("w", shape=WEIGHT.shape)
    w = w if weight is None else relay.const(weight)
    sizes = {"channels": 4, "kernel_size": (3, 3)}
    y = relay.nn.relu(relay.nn.conv2d(x, w, padding=(1, 1), **sizes))
    y = relay.nn.max_pool2d(y, (2, 2), (2, 2))
    y = relay.tanh(relay.nn.conv2d_transpose(y, w, strides=(2, 2), **sizes))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))


def built(weight: np.ndarray = WEIGHT, on: Any = None, **options: Any) -> Any:
    with tvm.transform.PassContext(opt_level=3):
        return relay.build(model(weight), on or target(), **options)


def ran(library: Any) -> np.ndarray:
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.run(x=DATA)
    return executor.get_output(0).numpy()


def test_the_second_build_compiles_nothing(compiled: list[bool]) -> None:
    first = ran(built())
    assert compiled and not any(compiled)
    compiled.clear()
    second = built()
    assert compiled and all(compiled)
    assert ran(second).tobytes() == first.tobytes()
    assert re.findall(r"define .*@(\w*conv2d\w*)\(", second.lib.get_source("ll"))


def test_kept_code_is_exported(tmp_path: Path, compiled: list[bool]) -> None:
    first = ran(built())
    built().export_library(str(tmp_path / "model.so"))
    assert compiled[-1]
    assert ran(tvm.runtime.load_module(str(tmp_path / "model.so"))).tobytes() == first.tobytes()


def test_a_python_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second build neither finds nor keeps code; the results are the same."""
    first = ran(built())
    before = disk_cache.size()
    monkeypatch.delattr(os, "memfd_create")
    assert ran(built()).tobytes() == first.tobytes()
    assert disk_cache.size() == before


def test_weights_are_no_code(compiled: list[bool]) -> None:
    first = ran(built())
    compiled.clear()
    assert not np.array_equal(ran(built(2 * WEIGHT)), first)
    assert all(compiled)


def test_another_process_finds_it(tmp_path: Path) -> None:
    """Both are new: this one may remember functions that other tests have built."""
    code = f"import numpy, test_relay_build_cache as t; numpy.save({str(tmp_path / 'y')!r}, "
    path = ":".join([str(Path(__file__).parent), *sys.path])

    def in_another() -> tuple[bytes, dict[str, bytes]]:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"{code}t.ran(t.built()))"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert child.returncode == 0, child.stderr
        kept = {path.name: path.read_bytes() for path in (tmp_path / "kept").glob("??/*")}
        return np.load(tmp_path / "y.npy").tobytes(), kept

    first, kept = in_another()
    again, found = in_another()
    assert again == first and kept
    added = {
        name: content.decode(errors="replace") for name, content in found.items() - kept.items()
    }
    assert not added, f"of {len(kept)} files: {added}"


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe", b"define i32 @f() {"])
def test_what_llvm_cannot_read_is_built_again(
    content: bytes, tmp_path: Path, compiled: list[bool]
) -> None:
    first = ran(built())
    for path in (tmp_path / "kept").glob("??/*"):
        disk_cache.write(path.stem, content)
    compiled.clear()
    assert ran(built()).tobytes() == first.tobytes()
    assert not any(compiled)


@pytest.mark.parametrize("how", ["instrument", "stock", "off", "aot", "crt", "tuner"])
def test_what_is_not_kept(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "instrument":
        with tvm.transform.PassContext(opt_level=0, instruments=[PassTimingInstrument()]):
            relay.build(model(), target())
    elif how == "stock":
        with relay_ext.stock(), tvm.transform.PassContext(opt_level=0):
            mod = tvm.IRModule.from_expr(
                relay.Function([x := relay.var("x", shape=(4,))], relay.exp(x))
            )
            relay.build(mod, target())
    elif how == "off":
        monkeypatch.setenv("TVM_CONV_CACHE", "0")
        ran(built())
        monkeypatch.undo()
    elif how == "tuner":
        x = tvm.te.placeholder((4,), name="x")
        y = tvm.te.compute((4,), lambda i: x[i] + 1.0)
        tvm.build(tvm.te.create_schedule(y.op), [x, y], target())
    else:
        options = {"executor": Executor("aot", {"interface-api": "packed"})}
        if how == "crt":
            options = {"runtime": Runtime("crt", {"system-lib": True})}
        with tvm.transform.PassContext(opt_level=1):
            relay.build(model(None), target(), **options)
    assert disk_cache.size()[0] == 0


def test_other_settings_have_other_code(compiled: list[bool]) -> None:
    built()
    for on in (target(), tvm.target.Target("llvm -mcpu=core-avx2")):
        compiled.clear()
        with tvm.transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
            relay.build(model(), on)
        assert not any(compiled)


def test_registration_puts_back_what_was_replaced() -> None:
    def handles() -> list[Any]:
        build = tvm.get_global_func("relay.backend.build")
        return [build_of_llvm().handle.value, build.handle.value, te_compiler.libinfo]

    ours = handles()
    with relay_ext.stock():
        stock = handles()
        assert all(one != other for one, other in zip(ours, stock))
    assert all(one != other for one, other in zip(handles(), stock))
    relay_ext.unregister()
    assert handles() == stock


def test_what_another_package_set_after_ours_stays() -> None:
    ours = build_of_llvm()
    tvm.register_func("target.build.llvm", lambda mod, on: ours(mod, on), override=True)
    theirs = build_of_llvm().handle.value
    with pytest.warns(UserWarning, match=r"leaves what was set after ours: target\.build\.llvm"):
        relay_ext.unregister()
    assert build_of_llvm().handle.value == theirs
    tvm.register_func("target.build.llvm", ours, override=True)


def _lowered(scale: int) -> str:
    x, y = (tvm.tir.decl_buffer((64,), "int32", name=name) for name in "xy")
    i = tvm.tir.Var("i", "int32")
    a, b = (tvm.tir.Var(f"cse_var_{n}", "int32") for n in (1, 2))

    def func(outer: Any, inner: Any, values: dict[Any, Any]) -> Any:
        store = tvm.tir.BufferStore(y, x[a] + x[b] + a * scale, [b])
        body = tvm.tir.LetStmt(inner, values[inner], store)
        body = tvm.tir.LetStmt(outer, values[outer], body)
        loop = tvm.tir.For(i, 0, 8, tvm.tir.ForKind.SERIAL, body)
        return tvm.tir.PrimFunc([x, y], loop)

    values = {a: i * 3 + 1, b: i * 5 + 2}
    one, other = (function_text(func(*order, values)) for order in ((a, b), (b, a)))
    assert one != other
    assert fingerprint(one) == fingerprint(other)
    return fingerprint(one)


def eliminates(build: Any, **config: Any) -> set[bool]:
    """Return whether TVM looked for common subexpressions, as contexts within a build say it."""
    found: set[bool] = set()

    @tvm.tir.transform.prim_func_pass(opt_level=0)
    def note(function: Any, *_: Any) -> Any:
        now = dict(tvm.transform.PassContext.current().config.items())
        found.add(not now.get("tir.disable_cse_tir", False))
        return function

    te_compiler.get().clear()
    with tvm.transform.PassContext(3, config={"tir.add_lower_pass": [(1, note)], **config}):
        build(model(None), target())
    return found


@pytest.mark.parametrize("build", [relay.build, relay.vm.compile])
def test_common_subexpressions_are_left_to_llvm(build: Any) -> None:
    """TVM's pass does not end in minutes on a convolution 5 x 5 x 5 of a volume of 24."""
    assert eliminates(build) == {False}
    assert eliminates(build, **{"tir.disable_cse_tir": False}) == {True}
    with relay_ext.stock():
        assert eliminates(build) == {True}


def test_large_kernels_are_built() -> None:
    x = relay.var("x", shape=(1, 1, 24, 24, 24))
    w = relay.const(np.zeros((16, 1, 5, 5, 5), "float32"))
    y = relay.nn.relu(relay.nn.conv3d(x, w, padding=(2,) * 6))
    relay.build(tvm.IRModule.from_expr(relay.Function([x], y)), target())


def test_fingerprints_do_not_depend_on_the_order_of_common_terms() -> None:
    """They do depend on everything else, here on a constant."""
    assert len({_lowered(scale) for scale in (2, 3)}) == 2


def test_fingerprints_tell_variables_apart() -> None:
    """Variables of one name that are used in another order."""
    x, y = tvm.tir.Var("v", "int32"), tvm.tir.Var("v", "int32")
    bodies = (
        tvm.tir.Evaluate(tvm.tir.call_extern("int32", "f", *pair)) for pair in ((x, y), (y, x))
    )
    texts = [function_text(tvm.tir.PrimFunc([x, y], body)) for body in bodies]
    assert len({fingerprint(text) for text in texts}) == 2


def test_fingerprints_do_not_depend_on_the_order_of_attributes() -> None:
    """Names that meet in TVM's hash table are written in the order in which they were added."""
    body = tvm.tir.Evaluate(tvm.tir.const(0))
    function = tvm.tir.PrimFunc([], body).with_attr({"a": 1, "b": 2, "c": 3})
    graph = json.loads(function_text(function))
    (attributes,) = (node for node in graph["nodes"] if set(node.get("keys", ())) >= {"a", "b"})
    texts = [json.dumps(graph)]
    for name in ("keys", "data"):
        attributes[name].reverse()
    texts.append(json.dumps(graph))
    attributes["data"].reverse()
    texts.append(json.dumps(graph))
    one, same, other = map(fingerprint, texts)
    assert one == same != other


def test_answers_are_bounded_and_compared() -> None:
    cache = StructuralCache(2)
    types = [relay.TensorType((n,)) for n in (1, 2, 3)]
    for number, one in enumerate(types):
        cache.put("op", (one,), number)
    assert [cache.get("op", (relay.TensorType((n,)),)) for n in (1, 2, 3)] == [None, 1, 2]
    assert cache.get("other", (types[2],)) is None


def test_modules_of_relay_are_known() -> None:
    assert not is_of_relay(tvm.IRModule({}, attrs={"runtime": Runtime("crt")}))
    assert is_of_relay(tvm.IRModule({}, attrs={"external_mods": []}))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(built())
    assert main(["cache"]) == 0
    assert main(["cache", "--clear"]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path / 'kept'}: " in said and "nothing is kept" not in said
    assert disk_cache.size() == (0, 0)
