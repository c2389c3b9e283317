# SPDX-License-Identifier: Apache-2.0
"""Registering, unregistering and ``stock()``: whose rules TVM's operators follow, and when.

Whose rules they are is asked by what they do: see :func:`whose`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

import relax_ext
from helpers import build
from helpers.cases import Case
from helpers.process import in_new_process
from relax_ext.cli import main
from relax_ext.op import legalize as legalize_room
from topi_ext.compat import tir

CASE = Case("conv_transpose", (4, 5), (3, 2), stride=(2, 1), padding=(1, 0, 0, 1))
NHWC = CASE.with_(data_layout="NHWC", kernel_layout="HWOI")


@pytest.fixture(autouse=True)
def _registered_again() -> Iterator[None]:
    yield
    relax_ext.register()


def whose() -> str:
    """``"ours"`` or ``"stock"``, by what inference, lowering and gradient do; all must agree."""
    answers = {_accepts_output_padding_below_dilation(), _lowers_nhwc(), _differentiates_conv1d()}
    assert len(answers) == 1, "rules of both"
    return "ours" if answers.pop() else "stock"


def _accepts_output_padding_below_dilation() -> bool:
    data = relax.Var("x", R.Tensor((2, 3, 8, 8), "float32"))
    weight = relax.Var("w", R.Tensor((3, 2, 3, 3), "float32"))
    call = relax.op.nn.conv2d_transpose(data, weight, dilation=2, output_padding=1)
    try:
        relax.BlockBuilder().normalize(call)
    except Exception:
        return False
    return True


def _lowers_nhwc() -> bool:
    lowered = relax.transform.LegalizeOps()(build.forward_module([NHWC]))
    return "conv2d_transpose(" not in lowered["f0"].script().replace("call_tir", "")


def _differentiates_conv1d() -> bool:
    try:
        build.gradient_module([Case("conv", (6,), (3,))])
    except Exception:
        return False
    return True


def prim_funcs(mod: tvm.IRModule) -> list[tvm.ir.GlobalVar]:
    return [gv for gv, f in mod.functions_items() if isinstance(f, tir.PrimFunc)]


# ---------------------------------------------------------------- in one process


@pytest.mark.parametrize(
    "steps",
    [
        ("register", "register", "unregister", "unregister", "register"),
        ("unregister", "register", "unregister", "register", "register"),
    ],
)
def test_both_orders_and_twice(steps: tuple[str, ...]) -> None:
    assert whose() == "ours"  # the import has registered
    for step in steps:
        getattr(relax_ext, step)()
        assert whose() == {"register": "ours", "unregister": "stock"}[step]


def test_stock_is_nested_and_ends() -> None:
    with relax_ext.stock():
        assert whose() == "stock"
        with relax_ext.stock():
            assert whose() == "stock"
        assert whose() == "stock"
    assert whose() == "ours"


def test_stock_without_registration() -> None:
    relax_ext.unregister()
    with relax_ext.stock():
        assert whose() == "stock"
    assert whose() == "stock"


@pytest.mark.parametrize(("step", "after"), [("register", "ours"), ("unregister", "stock")])
def test_steps_inside_stock_act_when_it_ends(step: str, after: str) -> None:
    relax_ext.unregister() if step == "register" else relax_ext.register()
    with relax_ext.stock():
        getattr(relax_ext, step)()
        assert whose() == "stock"
    assert whose() == after


def test_stock_ends_with_an_error() -> None:
    with pytest.raises(KeyError), relax_ext.stock():
        raise KeyError
    assert whose() == "ours"


def test_after_a_failed_compile(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    mod = build.forward_module([NHWC])
    with relax_ext.stock(), pytest.raises(Exception):  # noqa: B017
        build.compiled(mod)
    assert whose() == "ours"
    with monkeypatch.context() as patch:
        patch.setattr(legalize_room, "read", None)
        with pytest.raises(TypeError):
            build.compiled(mod)
    with relax_ext.stock():
        assert whose() == "stock"
    assert whose() == "ours"
    build.run_forward(build.compiled(mod), "f0", NHWC, rng)


def test_compiled_by_either_runs_under_the_other(rng: np.random.Generator) -> None:
    ours = build.compiled(build.forward_module([CASE]))
    with relax_ext.stock():
        theirs = build.compiled(build.forward_module([CASE]))
        build.run_forward(ours, "f0", CASE, rng)
    build.run_forward(theirs, "f0", CASE, rng)


def test_own_operators_refuse_while_unregistered() -> None:
    mod = build.gradient_module([CASE])
    assert "relax_ext.conv_weight_grad" in mod.script()
    relax_ext.unregister()
    with pytest.raises(Exception, match=r"conv_weight_grad: relax_ext is unregistered"):
        build.compiled(mod)
    relax_ext.register()
    build.compiled(mod)


def test_printed_gradients_can_be_parsed() -> None:
    mod = build.gradient_module([CASE])
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


# ---------------------------------------------------------------- what is built


@pytest.mark.parametrize("scheduled", [True, False])
def test_identical_geometries_are_built_once(scheduled: bool) -> None:
    mod = build.forward_module([CASE, CASE, CASE.with_(n=CASE.n), CASE.with_(outs=5)])
    with build.target() if scheduled else tvm.transform.PassContext():
        lowered = relax.transform.LegalizeOps()(mod)
    # Without a target there is no kernel: the definition has two steps, each a function.
    assert len(prim_funcs(lowered)) == (2 if scheduled else 4)


def test_exported_library_runs_without_this_package(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    library = tmp_path / "model.so"
    mod = build.gradient_module([CASE])
    tvm.compile(mod, build.target()).export_library(str(library))
    arrays = [*CASE.arrays(rng), rng.standard_normal(CASE.out_shape, "float32")]
    np.savez(tmp_path / "in.npz", *arrays)
    in_new_process(
        f"""
        import sys
        import numpy as np, tvm
        from tvm import relax
        for package in ("relax_ext", "topi_ext"):
            sys.modules[package] = None
        arrays = np.load({str(tmp_path / "in.npz")!r})
        vm = relax.VirtualMachine(tvm.runtime.load_module({str(library)!r}), tvm.cpu())
        loss, grads = vm["f0_adjoint"](*(tvm.runtime.tensor(a) for a in arrays.values()))
        np.savez({str(tmp_path / "out.npz")!r}, *(g.numpy() for g in grads))
        """
    )
    got = np.load(tmp_path / "out.npz")
    for one, want in zip(got.values(), build.gradients(CASE, *arrays)):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-4)


def test_no_mcpu_is_said_once() -> None:
    said = in_new_process(
        """
        import warnings, tvm, relax_ext
        from tvm import relax
        from tvm.script import relax as R

        def lower(target):
            bb = relax.BlockBuilder()
            x = relax.Var("x", R.Tensor((1, 3, 8, 8), "float32"))
            with bb.function("main", [x]):
                bb.emit_func_output(bb.emit(relax.op.nn.conv2d(x, x)))
            with warnings.catch_warnings(record=True) as caught, tvm.target.Target(target):
                warnings.simplefilter("always")
                relax.transform.LegalizeOps()(bb.get())
            # of mcpu alone: where TVM leaves cores idle, that is said too
            return [m for w in caught if "mcpu" in (m := str(w.message))]

        plain = {"kind": "llvm"}
        other = "x86_64" if tvm.target.codegen.llvm_get_system_triple()[0] == "a" else "aarch64"
        print(len(lower(dict(relax_ext.host_target().export()))))
        print(len(lower({**plain, "mtriple": other + "-linux-gnu"})))
        print(*lower(plain))
        print(len(lower(plain)))
        """
    ).splitlines()
    assert (said[0], said[1], said[3]) == ("0", "0", "0")
    assert said[2].startswith("relax_ext: the llvm target names no mcpu")


def test_host_target_names_this_processor() -> None:
    target = relax_ext.host_target(3)
    assert target.kind.name == "llvm" and target.attrs["mcpu"] and target.attrs["num-cores"] == 3


# ---------------------------------------------------------------- exactly as before


PROBE = """
import tvm
from tvm import relax
from tvm.script import relax as R

NAMES = [f"conv{rank}d{end}" for rank in (1, 2, 3) for end in ("", "_transpose")]
KEYS = ("FInferType", "FInferStructInfo", "FLegalize", "FPrimalGradient", "FPurity",
        "FInferMixedPrecision", "TMixedPrecisionPolicy", "FRelaxInferLayout")

def attributes():
    found = {}
    for name in NAMES:
        for key in KEYS:
            try:
                found[name, key] = tvm.ir.Op.get("relax.nn." + name).get_attr(key)
            except tvm.error.InternalError:
                pass
    return found

def same(first, second):
    def equal(a, b):
        return a.same_as(b) if hasattr(a, "same_as") else a == b
    return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)

def lowered():
    bb = relax.BlockBuilder()
    for name in NAMES:
        rank = int(name[4])
        x = relax.Var("x", R.Tensor((1, 4, *(7, 6, 5)[:rank]), "float32"))
        w = relax.Var("w", R.Tensor((4, 4, *(3, 2, 2)[:rank]), "float32"))
        with bb.function(name, [x, w]):
            y = bb.emit(getattr(relax.op.nn, name)(x, w, strides=2))
            bb.emit_func_output(y)
    return relax.transform.LegalizeOps()(bb.get())

def like_before():
    same_text = lowered().script() == text
    assert same(attributes(), before) == same_text
    return same_text

before, text = attributes(), lowered().script()
assert before["conv1d", "FPrimalGradient"] is None
import relax_ext
"""
"""Imports the package; afterwards ``like_before()`` is whether TVM's operators are as before."""


@pytest.mark.parametrize(
    "again",
    [
        "",
        "import importlib; importlib.reload(relax_ext.registry)",
        """
import importlib
for name in sorted(name for name in sys.modules if name.startswith("relax_ext")):
    importlib.reload(sys.modules[name])
""",
        """
for name in [name for name in sys.modules if name.split(".")[0] in ("relax_ext", "topi_ext")]:
    del sys.modules[name]
import relax_ext
""",
        """
first = relax_ext
for name in [name for name in sys.modules if name.split(".")[0] in ("relax_ext", "topi_ext")]:
    del sys.modules[name]
import relax_ext
relax_ext = first
""",
    ],
    ids=["once", "registry reloaded", "all reloaded", "imported again", "by the first import"],
)
def test_every_attribute_and_every_lowering_as_before_the_import(again: str) -> None:
    """Nor does a second import take the rules of the first one for TVM's own."""
    in_new_process(
        "import sys"
        + PROBE
        + again
        + """
assert not like_before()
with relax_ext.stock():
    assert like_before()
assert not like_before()
relax_ext.unregister()
assert like_before()
relax_ext.register()
assert not like_before()
relax_ext.unregister()
assert like_before()
"""
    )


def test_what_another_package_set_after_ours_stays() -> None:
    said = in_new_process(
        PROBE
        + """
import warnings

def theirs(bb, call):
    return relax.op.negative(call.args[0])

op = tvm.ir.Op.get("relax.nn.conv2d")
op.reset_attr("FLegalize")
op.set_attr("FLegalize", theirs, 10)
rule = op.get_attr("FLegalize")
with relax_ext.stock():
    assert op.get_attr("FLegalize").same_as(rule)
assert op.get_attr("FLegalize").same_as(rule)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    relax_ext.unregister()
    relax_ext.unregister()
print(*(warning.message for warning in caught), sep="\\n")
assert op.get_attr("FLegalize").same_as(rule)
op.reset_attr("FLegalize")
op.set_attr("FLegalize", before["conv2d", "FLegalize"], 10)
assert like_before()
"""
    )
    assert said == (
        "relax_ext: unregister() leaves what was set after ours: FLegalize of relax.nn.conv2d\n"
    )


def test_doctor_says_whether_rules_are_registered(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    assert "rules      relax_ext is registered" in capsys.readouterr().out
    relax_ext.unregister()
    main(["doctor"])
    said = capsys.readouterr().out
    assert "rules      relax_ext is not registered" in said
    assert (
        "-> relax_ext.register() before you compile modules that were built with its rules" in said
    )


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("sys.modules['tvm'] = None", "topi_ext: needs TVM"),
        (
            "import tvm; sys.modules['tvm.relax'] = None; del tvm.relax",
            "relax_ext: needs apache-tvm",
        ),
    ],
    ids=["no TVM", "no Relax"],
)
def test_import_without_relax_is_refused_in_one_line(prepare: str, said: str) -> None:
    last = in_new_process(
        f"""
        import sys
        {prepare}
        try:
            import relax_ext
        except ImportError as error:
            print(error)
        """
    )
    assert last.startswith(said) and last.count("\n") == 1
