# SPDX-License-Identifier: Apache-2.0
"""Code that is kept: found by what it follows from alone, and the same as compiled anew."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.instrument import PassTimingInstrument

import relax_ext
from helpers.build import module as module_of
from relax_ext import executable_cache
from relax_ext.cli import main
from topi_ext.code_cache import build as code_cache
from topi_ext.code_cache import disk as disk_cache
from topi_ext.code_cache.assembly import _with_own_names
from topi_ext.code_cache.build import CachedBuild, keeping, why_nothing_is_kept
from topi_ext.compat import builds, tir
from topi_ext.kernel import database

REASON = why_nothing_is_kept(relax_ext.host_target())
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

TARGET = relax_ext.host_target(num_cores=2)
DATA = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((8, 8, 3, 3), np.float32)


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The functions of each module that TVM builds, with an empty cache."""
    monkeypatch.setenv("TVM_CONV_CACHE", str(tmp_path / "kept"))
    executable_cache._in_use.clear()
    cached = tvm.tirx.build
    assert isinstance(cached, CachedBuild)
    found: list[list[str]] = []

    def build(mod: Any, *arguments: Any, **options: Any) -> Any:
        functions = mod.functions if isinstance(mod, tvm.IRModule) else {}
        found.append([variable.name_hint for variable in functions])
        return stock(mod, *arguments, **options)

    stock = cached.stock
    monkeypatch.setattr(cached, "stock", build)
    return found


def model(weight: np.ndarray = WEIGHT) -> tvm.IRModule:
    """A convolution of constant weights, a sum that is an operator of its own, and tanh."""

    def body(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.conv2d(x, relax.const(weight), padding=(1, 1))
        y = relax.op.tanh(relax.op.add(y, relax.op.nn.max_pool2d(x, (1, 1))))
        return relax.op.cumsum(y, axis=1)

    return module_of(body, DATA)


def compiled(mod: tvm.IRModule | None = None, **options: Any) -> Any:
    pipeline = relax_ext.pipeline(TARGET)
    return tvm.compile(mod or model(), TARGET, relax_pipeline=pipeline, **options)


def ran(executable: Any) -> np.ndarray:
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(DATA)).numpy()


def test_the_second_time_nothing_is_built(
    built: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ran(compiled())
    assert len(built) > 2 and all(len(functions) == 1 for functions in built)
    built.clear()
    second = ran(compiled())
    assert built == []
    monkeypatch.setenv("TVM_CONV_CACHE", "0")
    assert first.tobytes() == second.tobytes() == ran(compiled()).tobytes()
    assert any(len(functions) > 1 for functions in built)


def test_another_model_finds_what_is_equal(built: list[list[str]]) -> None:
    compiled()
    built.clear()
    other = ran(compiled(model(2 * WEIGHT)))
    assert built == []  # constants are no code
    assert not np.array_equal(other, ran(compiled()))


def test_what_is_damaged_is_built_again(built: list[list[str]], tmp_path: Path) -> None:
    first = ran(compiled())
    kept = sorted((tmp_path / "kept").glob("??/*"))
    for path in kept:
        path.write_bytes(path.read_bytes()[:-2] + b"}}")
    count = len(built)
    built.clear()
    assert ran(compiled()).tobytes() == first.tobytes()
    assert len(built) == count == len(kept)


def _changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda entry: {**entry, **fields}


DAMAGES: list[Callable[[Any], Any] | bytes] = [
    lambda entry: None,
    lambda entry: [],
    lambda entry: {},
    lambda entry: {name: value for name, value in entry.items() if name != "text"},
    _changed(more=1),
    _changed(functions=[]),
    _changed(functions=None),
    _changed(functions=["__tvm_ffi_other"]),
    _changed(pointers=['a"']),
    _changed(text=""),
    _changed(text="garbage"),
    _changed(text=None),
    _changed(head="garbage"),
    _changed(flag="garbage"),
    lambda entry: {**entry, "text": entry["text"].replace(":\\0A", ":\n")},
    lambda entry: {**entry, "text": entry["text"] + "\ud800"},
    *(b"", b"garbage", b"{", b"[" * 10**5, b"\xff\xfe", b"NaN"),
]
"""Changes of what a file holds, and other contents."""


def test_what_is_no_whole_function_is_built_again(built: list[list[str]], tmp_path: Path) -> None:
    """Files that were written as they should be, but for what they hold."""
    first = ran(compiled())
    names = [path.stem for path in (tmp_path / "kept").glob("??/*")]
    kept = {name: disk_cache.read(name) for name in names}
    for number, damage in enumerate(DAMAGES):
        for name, content in kept.items():
            changed = damage
            if callable(damage):
                changed = json.dumps(damage(json.loads(content))).encode()
            disk_cache.write(name, changed)
        built.clear()
        assert ran(compiled()).tobytes() == first.tobytes(), number
        assert len(built) == len(names), number
        assert {name: disk_cache.read(name) for name in names} == kept, number


def test_files_that_were_swapped_are_built_again(built: list[list[str]], tmp_path: Path) -> None:
    """Each is whole, and another function's."""
    first = ran(compiled())
    kept = sorted((tmp_path / "kept").glob("??/*"))
    contents = [path.read_bytes() for path in kept]
    for path, content in zip(kept, contents[1:] + contents[:1]):
        path.write_bytes(content)
    built.clear()
    assert ran(compiled()).tobytes() == first.tobytes()
    assert len(built) == len(kept)


def test_no_temporary_folder_is_needed(
    built: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    first = ran(compiled())
    built.clear()
    assert ran(compiled()).tobytes() == first.tobytes()
    assert built == []


def _ran_elsewhere(folder: Path, before: str = "") -> np.ndarray:
    """The model's result in a process of its own."""
    code = f"""
import numpy as np
import resource
import test_code_cache as t
{before}
result = t.ran(t.compiled())
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
np.save({str(folder / "result.npy")!r}, result)
"""
    here = Path(__file__)
    path = os.pathsep.join([*map(str, (here.parent, here.parents[1])), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=environment)
    return np.load(folder / "result.npy")


def test_full_disks_do_not_matter(tmp_path: Path) -> None:
    """No file may have more than 4 KiB: LLVM ends the process that asks it to write one."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))"
    assert _ran_elsewhere(tmp_path, limit).tobytes() == ran(compiled()).tobytes()


@pytest.mark.parametrize("lacking", ["Linux", "Python"])
def test_nothing_is_kept_without_files_in_memory(
    lacking: str, built: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, "not implemented")

    first = ran(compiled())
    if lacking == "Linux":
        monkeypatch.setattr(os, "memfd_create", refuse)
    else:
        monkeypatch.delattr(os, "memfd_create")
    assert ran(compiled()).tobytes() == first.tobytes()
    disk_cache.clear()
    assert ran(compiled()).tobytes() == first.tobytes()
    assert disk_cache.size() == (0, 0)
    assert any(len(functions) > 1 for functions in built)


def test_kept_code_is_exported(tmp_path: Path) -> None:
    first = ran(compiled())
    compiled().export_library(str(tmp_path / "model.so"))
    library = tvm.runtime.load_module(str(tmp_path / "model.so"))
    assert ran(library).tobytes() == first.tobytes()


def test_kept_code_refuses_what_compiled_code_refuses() -> None:
    """A function's own checks, whose messages and calls of TVM's runtime are kept with it."""
    lowered = relax_ext.pipeline(TARGET)(model())
    functions = {v: f for v, f in lowered.functions.items() if isinstance(f, tir.PrimFunc)}
    said = []
    for where in (nullcontext, keeping, keeping):
        with where():
            library = tvm.tirx.build(tvm.IRModule(functions), TARGET)
        for variable in functions:
            with pytest.raises(Exception, match=variable.name_hint) as refused:
                library[variable.name_hint](tvm.runtime.tensor(DATA[0]))
            said.append(str(refused.value))
    assert said[: len(functions)] * 3 == said


def test_another_process_finds_it(tmp_path: Path) -> None:
    ran(compiled())
    before = disk_cache.size()
    _ran_elsewhere(tmp_path)
    assert disk_cache.size() == before


def test_other_settings_have_other_code(built: list[list[str]]) -> None:
    compiled()
    for context in (
        tvm.transform.PassContext(config={"tirx.disable_vectorize": True}),
        tvm.transform.PassContext(disabled_pass=["tirx.UnrollLoop"]),
        tvm.transform.PassContext(opt_level=0),
    ):
        built.clear()
        with context:
            compiled()
        assert built


@pytest.mark.parametrize("how", ["instrument", "plain", "stock", "unregistered"])
def test_what_is_not_kept(how: str, built: list[list[str]]) -> None:
    if how == "instrument":
        with tvm.transform.PassContext(instruments=[PassTimingInstrument()]):
            compiled()
    elif how == "plain":
        tvm.compile(model(), TARGET)
    elif how == "stock":
        with relax_ext.stock():
            assert not isinstance(tvm.tirx.build, CachedBuild)
            compiled()
    else:
        relax_ext.unregister()
        assert tvm.get_global_func("tirx.build") is not None
        assert not isinstance(tvm.tirx.build, CachedBuild)
        compiled()
        relax_ext.register()
    assert disk_cache.size()[0] == 0
    assert isinstance(tvm.tirx.build, CachedBuild)


def test_a_build_that_somebody_set_after_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tvm.tirx.build
    monkeypatch.setattr(tvm.tirx, "build", lambda *arguments: ours(*arguments))
    theirs = tvm.tirx.build
    code_cache.remove()
    assert tvm.tirx.build is theirs


def test_names_of_assembly() -> None:
    code = """\
\t.text
\t.globl\tf
f:
\tleaq\t.LCPI0_0(%rip), %rax
\tcallq\tg@PLT
\tmovq\tf.1@GOTPCREL(%rip), %rcx
\tjmp\tff
.LCPI0_0:
\t.asciz\t"f .LCPI0_0"
f.1:
\t.size\tf.1, .-f.1
"""
    assert (
        _with_own_names(code, "k")
        == """\
\t.text
k.f:
\tleaq\t.LkCPI0_0(%rip), %rax
\tcallq\tg@PLT
\tmovq\tk.f.1@GOTPCREL(%rip), %rcx
\tjmp\tff
.LkCPI0_0:
\t.asciz\t"f .LCPI0_0"
k.f.1:
\t.size\tk.f.1, .-k.f.1
"""
    )


@pytest.mark.parametrize(
    "line", ["\t.set\tg, f", "\tmovl\t$f, %eax", "\tmovl\t$.LCPI0_0, %eax", '"a b":', "\tf\t%eax"]
)
def test_assembly_that_is_not_kept(line: str) -> None:
    assert _with_own_names(f"\t.text\nf:\n.LCPI0_0:\n{line}\n", "k") is None


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    compiled()
    count, _ = disk_cache.size()
    assert main(["cache"]) == 0
    assert f"{tmp_path / 'kept'}: {count} functions" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert f"removed {count} functions" in capsys.readouterr().out
    assert disk_cache.size()[0] == 0
    assert "nothing is kept" not in capsys.readouterr().out
    (tmp_path / "kept").chmod(0o777)
    assert main(["cache"]) == 2
    said = f"cache: {tmp_path / 'kept'} cannot be used: others may write to it: chmod go-w\n"
    assert capsys.readouterr().err == f"relax_ext: {said}"
    assert main(["cache", "--clean"]) == 2
    assert "takes nothing but --clear" in capsys.readouterr().err


def test_an_ffi_that_cannot_write_functions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "_ffi_version", lambda: "0.1.15.post2")
    compiled()
    assert disk_cache.size() == (0, 0)
    assert main(["cache"]) == 0
    assert "nothing is kept or used: apache-tvm-ffi 0.1.15.post2" in capsys.readouterr().out


def with_arguments(axis: int = 1) -> tvm.IRModule:
    """A convolution whose weight is an argument, and a softmax."""

    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        y = relax.op.nn.conv2d(x, w, padding=(1, 1))
        return relax.op.nn.softmax(relax.op.add(y, relax.const(np.float32(0.5))), axis)

    return module_of(body, DATA, WEIGHT, attrs={"num_input": 1})


def result_of(executable: Any, is_packed: bool = False) -> np.ndarray:
    """Return the result of an executable of :func:`with_arguments`."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    data, weight = map(tvm.runtime.tensor, (DATA, WEIGHT))
    weights = machine["main_transform_params"]([weight]) if is_packed else [weight]
    return machine["main"](data, *weights).numpy()


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_second_time_an_executable_is_loaded(
    is_packed: bool, built: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass runs over a module whose executable is kept; the results are bit for bit the same."""

    def compiled_by(module: Any) -> Any:
        return executable_cache.compiled(module, TARGET, packs_parameters=is_packed)

    first = result_of(compiled_by(with_arguments()), is_packed)
    before = len(built)
    with monkeypatch.context() as patch:
        patch.setattr(executable_cache, "pipeline", refused)
        patch.setattr(executable_cache, "with_packed_parameters", refused)
        assert np.array_equal(result_of(compiled_by(with_arguments()), is_packed), first)
        assert len(built) == before
        with pytest.raises(AssertionError, match="must not run"):
            compiled_by(with_arguments(axis=2))


def refused(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("must not run")


@pytest.mark.parametrize(
    "other", ["verbose", "kernel", "plans", "stock", "instrument", "another source", "no function"]
)
def test_executables_that_are_compiled_again(
    other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compile again where more than the module matters, or a function is missing."""
    first = result_of(executable_cache.compiled(with_arguments(), TARGET))
    scope: Any = nullcontext()
    if other == "verbose":
        monkeypatch.setenv("TVM_CONV_VERBOSE", "1")
    elif other == "kernel":
        monkeypatch.setenv("TVM_CONV_KERNEL", "-winograd")
    elif other == "plans":
        monkeypatch.setenv("TVM_CONV_PLANS", str(plans(tmp_path)))
    elif other == "stock":
        scope = relax_ext.stock()
    elif other == "instrument":
        scope = tvm.transform.PassContext(instruments=[PassTimingInstrument()])
    elif other == "another source":
        monkeypatch.setattr(executable_cache, "_source", lambda: "another")
    else:
        files = sorted((tmp_path / "kept").rglob("*.*"), key=lambda file: file.stat().st_size)
        files[-1].unlink()
    runs: list[int] = []
    pipeline = executable_cache.pipeline
    monkeypatch.setattr(
        executable_cache, "pipeline", lambda *given: runs.append(1) or pipeline(*given)
    )
    with scope:
        again = result_of(executable_cache.compiled(with_arguments(), TARGET))
    assert runs == [1]
    np.testing.assert_allclose(again, first, rtol=0, atol=1e-6)  # float32, 72 products


def plans(folder: Path) -> Path:
    """Return a file of measured plans without any."""
    path = folder / "plans.json"
    path.write_text(
        json.dumps({"format": database.FORMAT, "version": database.VERSION, "plans": {}})
    )
    return path
