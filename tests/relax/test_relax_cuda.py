# SPDX-License-Identifier: Apache-2.0
"""Targets that are GPUs, through what users call: whose kernels are in the source.

What the kernels compute is tested where they are emulated; nothing here runs on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import cuda_emulator
import relax_ext
from helpers import build, cuda
from helpers.cases import Case
from helpers.cuda import DEPTHWISE, GEMM, RANKS, UP, WIDE
from relax_ext.fusion.channels_last import channels_last
from topi_ext import backend
from topi_ext.compat import tir
from topi_ext.schedules.gpu import on_gpu

T, C = "conv_transpose", "conv"


def compiled(mod: tvm.IRModule, on: tvm.target.Target | None = None, **how: object) -> str:
    """The CUDA that ``tvm.compile`` makes of it."""
    return cuda.source(tvm.compile(mod, on or cuda.target(), **how).mod)


def names(cases: Sequence[Case]) -> set[str]:
    return {f"{case.name}_kernel" for case in cases}


@pytest.mark.smoke
def test_every_rank_is_ours(tmp_path: Path) -> None:
    text = compiled(build.forward_module(RANKS))
    cuda.check_ours(text, *names(RANKS))
    cuda.check_compiles(text, tmp_path)


@pytest.mark.smoke
def test_gradients_are_ours(tmp_path: Path) -> None:
    cases = [GEMM, UP, DEPTHWISE, *RANKS]
    text = compiled(build.gradient_module(cases))
    cuda.check_ours(text, "conv_weight_grad_kernel")
    cuda.check_compiles(text, tmp_path)


def test_the_default_schedule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper of the tests above recognizes a target without kernels of ours."""
    nothing = backend.Unsupported("a test says so")
    monkeypatch.setattr(backend, "of_target", lambda target: nothing)
    for case in (GEMM, UP, DEPTHWISE):
        text = compiled(build.forward_module([case]))
        with pytest.raises(AssertionError):
            cuda.check_ours(text, f"{case.name}_kernel")


DTYPES = [
    ("float16", ""), ("float16", "float32"), ("bfloat16", ""), ("bfloat16", "float32"),
    ("float64", ""), ("float32", ""), ("float64", "float32"), ("float32", "float16"),
    ("int8", ""), ("int8", "int32"), ("uint8", "int32"), ("int16", "int32"), ("int32", ""),
    ("int32", "int64"), ("int64", ""),
]  # fmt: skip


def typed(dtypes: Sequence[tuple[str, str]]) -> list[Case]:
    return [
        case.with_(dtype=dtype, out_dtype=out)
        for dtype, out in dtypes
        for case in ((WIDE, UP) if "16" in dtype else (GEMM, UP, DEPTHWISE))
    ]


@pytest.mark.parametrize(
    "dtypes", [DTYPES[:2], DTYPES[2:4], DTYPES[4:8], DTYPES[8:10], DTYPES[10:]]
)
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
def test_every_dtype_is_ours(arch: str, dtypes: list[tuple[str, str]], tmp_path: Path) -> None:
    cases = typed(dtypes)
    text = compiled(build.forward_module(cases), cuda.target(arch))
    cuda.check_ours(text, *names(cases))
    if dtypes[0][0].endswith("float16"):
        assert ("mma.sync" in text) == (arch == "sm_90")
    if arch == "sm_90":
        cuda.check_compiles(text, tmp_path)


@pytest.mark.parametrize("dtypes", [[("int8", ""), ("uint8", "int32")], DTYPES[1:3]])
def test_dtypes_share_a_module(dtypes: list[tuple[str, str]], tmp_path: Path) -> None:
    """Helper functions in CUDA have another name for each dtype."""
    text = compiled(build.forward_module(typed(dtypes)))
    definitions = re.findall(r"^static __device__ .*?(topi_\w+)\(", text, re.MULTILINE)
    kept = re.sub(r"#ifndef (TOPI_EXT_\w+)\n.*?#endif\n", "", text, flags=re.DOTALL)
    assert definitions and "static __device__ __forceinline__" not in kept
    cuda.check_compiles(text, tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gradients_of_other_dtypes_are_ours(dtype: str) -> None:
    cases = [case.with_(dtype=dtype) for case in (GEMM, UP, DEPTHWISE)]
    cuda.check_ours(compiled(build.gradient_module(cases)), "conv_weight_grad_kernel")


LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWCN"),
    ("NCHW", "OHWI", "WNHC"), ("HCNW", "WOHI", "NHWC"), ("NHWC", "HWOI", ""),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_layout_is_ours(dtype: str) -> None:
    cases = [
        case.with_(data_layout=data, kernel_layout=kernel, out_layout=out, dtype=dtype)
        for data, kernel, out in LAYOUTS
        for case in (GEMM, UP, DEPTHWISE)
    ]
    cuda.check_ours(compiled(build.forward_module(cases)), *names(cases))


@pytest.mark.smoke
def test_blocked_layouts_are_ours() -> None:
    layouts = dict(data_layout="NCHW4c", kernel_layout="OIHW4i4o")
    mod = build.module(
        lambda data, weight: relax.op.nn.conv2d(data, weight, padding=1, **layouts),
        *((1, 4, 8, 8, 4), (3, 4, 3, 3, 4, 4)),
    )
    cuda.check_ours(compiled(mod), "conv2d_kernel")


@pytest.mark.parametrize(
    ("letters", "dtype"), [("N", "float32"), ("HW", "float32"), ("NHW", "float16")]
)
def test_symbolic_sizes_are_ours(letters: str, dtype: str, tmp_path: Path) -> None:
    some = {name: tir.Var(name.lower(), "int64") for name in letters}
    for case in (UP, DEPTHWISE, RANKS[4]):
        typed = case.with_(dtype=dtype)
        text = compiled(build.forward_module([typed], some))
        cuda.check_ours(text, f"{case.name}_kernel")
        text = compiled(build.gradient_module([typed], some))
        cuda.check_ours(text, "conv_weight_grad_kernel")
    cuda.check_compiles(text, tmp_path)


@pytest.mark.parametrize("case", [GEMM.with_(n=0), UP.with_(n=0)], ids=[C, T])
def test_an_empty_batch_needs_no_kernel(case: Case) -> None:
    executable = tvm.compile(build.forward_module([case]), cuda.target())
    assert "conv" not in executable.as_text()


# ---------------------------------------------------------------- relax_ext.pipeline


def layer(case: Case, weight: np.ndarray) -> tvm.IRModule:
    """``main(data)``: a constant weight, a bias and a relu."""
    data, _ = build.parameters(case)
    bias = np.ones([case.outs if a == "C" else 1 for a in case.layouts[2]], weight.dtype)

    def body(data: relax.Expr) -> relax.Expr:
        value = build.call(case, data, relax.const(weight))
        return relax.op.nn.relu(relax.op.add(value, relax.const(bias)))

    return build.module(body, data)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "case", [GEMM, UP, WIDE, DEPTHWISE], ids=["gemm", "up", "wide", "depthwise"]
)
def test_pipeline_fuses_and_packs(case: Case, dtype: str, rng: np.random.Generator) -> None:
    """One kernel of ours for all steps, and nothing that packs weights when the model runs."""
    case, on = case.with_(dtype=dtype), cuda.target()
    mod = layer(case, case.stored(case.arrays(rng)[1], 1))
    executable = tvm.compile(mod, on, relax_pipeline=relax_ext.pipeline(on))
    text = cuda.source(executable.mod)
    fused = f"{case.name}_add_relu_kernel"
    cuda.check_ours(text, fused)
    assert all(launch.name.startswith(fused) for launch in cuda.launches(text))
    assert f"{case.name}_pack" not in executable.as_text()


def unet(dtype: str, rng: np.random.Generator) -> tvm.IRModule:
    """``main(data)``: convolutions, a pool, a transposed convolution, a skip connection."""

    def weight(*shape: int) -> relax.Constant:
        return relax.const((rng.standard_normal(shape) * 0.04).astype(dtype))

    nn = relax.op.nn

    def body(first: relax.Expr) -> relax.Expr:
        for _ in range(4):
            first = build.emit(nn.relu(nn.conv2d(first, weight(64, 64, 3, 3), padding=1)))
        small = nn.max_pool2d(first, (2, 2), (2, 2))
        up = nn.conv2d_transpose(small, weight(64, 64, 2, 2), strides=2)
        both = relax.op.concat([first, build.emit(up)], axis=1)
        return nn.conv2d(both, weight(32, 128, 1, 1))

    return build.module(body, (4, 64, 24, 24), dtype=dtype)


def test_halves_are_transposed_once(rng: np.random.Generator) -> None:
    """Halves are transposed at the first and last layer of the model; values stay the same."""
    mod = unet("float16", rng)
    with cuda.target():
        changed = channels_last(mod)
    lines = [line for line in str(changed["main"]).splitlines() if "permute_dims" in line]
    assert len(lines) == 2 and "NCHW" not in str(changed)
    data = rng.standard_normal((4, 64, 24, 24)).astype("float16")
    (want,), (got,) = (build.run(build.compiled(one), "main", data) for one in (mod, changed))
    # Both round the results of each operator to halves.
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-3 * np.abs(want).max())


def test_parameters_of_load_count_as_packed() -> None:
    """Their kernels take the time of those with constants, so here transposes pay."""
    shapes = [(1, 128, 8, 8), *[(128, 128, 3, 3)] * 3]

    def body(out: relax.Expr, *weights: relax.Expr) -> relax.Expr:
        for weight in weights:
            out = relax.op.nn.relu(relax.op.nn.conv2d(out, weight, padding=1))
        return out

    mod = build.module(body, *shapes, dtype="float16", attrs={"num_input": 1})
    with cuda.target():
        assert "NHWC" in str(channels_last(mod, packs_parameters=True))
        assert channels_last(mod).same_as(mod)


def test_transposes_that_do_not_pay_are_left_out(rng: np.random.Generator) -> None:
    """One layer of one channel, and float32, which no tensor core multiplies."""
    case = Case(C, (64, 64), (1, 1), n=8, ins=1, outs=1, dtype="float16")
    mod = layer(case, case.stored(case.arrays(rng)[1], 1))
    for one in (mod, unet("float32", rng)):
        with cuda.target():
            assert channels_last(one).same_as(one)


def loss_module(op: str) -> tvm.IRModule:
    """Loss and gradients of a layer, as in README.md."""
    options = dict(strides=2, padding=1, data_layout="NHWC", kernel_layout="HWIO")

    def loss(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
        image = build.emit(relax.op.nn.conv2d_transpose(data, weight, **options))
        return getattr(relax.op, op)(relax.op.multiply(image, image))

    return relax.transform.Gradient("main")(build.module(loss, (1, 16, 16, 32), (4, 4, 32, 16)))


@pytest.mark.smoke
def test_pipeline_compiles_a_training_step(tmp_path: Path) -> None:
    on = cuda.target()
    text = compiled(loss_module("mean"), relax_pipeline=relax_ext.pipeline(on))
    cuda.check_ours(text, "conv2d_transpose_kernel", "conv2d_kernel", "conv_weight_grad_kernel")
    assert any("mean" in launch.name for launch in cuda.launches(text))
    cuda.check_compiles(text, tmp_path)


def test_stock_fails_at_a_mean_over_all_axes() -> None:
    """Why the pipeline has a schedule of its own; when this passes, it may go."""
    with relax_ext.stock(), pytest.raises(tvm.error.InternalError, match="block_realize"):
        compiled(scalar(lambda x: relax.op.mean(x), (2, 3)))


def scalar(of: Callable[[relax.Expr], relax.Expr], shape: Sequence[object]) -> tvm.IRModule:
    return build.module(lambda x: of(relax.op.multiply(x, x)), shape)


SCALARS = {"mean": np.mean, "variance": np.var, "std": np.std}


@pytest.mark.smoke
@pytest.mark.parametrize("batches", [(1,), (40,), (333,), ("n", 1, 40, 333)], ids=str)
@pytest.mark.parametrize("op", SCALARS)
def test_pipeline_binds_scalars_to_threads(
    op: str, batches: tuple, rng: np.random.Generator
) -> None:
    """Every statement of such an operator is in a kernel, and no two threads meet in them."""
    n = tir.Var("n", "int64") if batches[0] == "n" else batches[0]
    on = cuda.target()
    mod = scalar(lambda x: getattr(relax.op, op)(x), (n, 3, 50))
    with on:
        mod = relax.transform.LegalizeOps()(mod)
    (func,) = (f for gv, f in mod.functions_items() if op in gv.name_hint)
    bound = on_gpu(func)
    assert unbound(bound.body) == []
    run = cuda_emulator.build(bound, "sm_90", mode="watch")
    for batch in batches[-3:]:
        values, out = rng.standard_normal((batch, 3, 50)).astype("float32"), np.zeros((), "float32")
        run(values, out)
        np.testing.assert_allclose(out, SCALARS[op](values.astype("float64")), rtol=2e-6, atol=2e-7)
    text = compiled(mod, relax_pipeline=relax_ext.pipeline(on))
    assert sum(op in launch.name for launch in cuda.launches(text)) == len(run.kernels)


def unbound(body: tir.Stmt) -> list[tir.Stmt]:
    """Blocks, the root apart, that no loop around them binds to a thread."""
    found = []

    def visit(stmt: object, is_bound: bool) -> None:
        if type(stmt).__name__.endswith("BlockRealize"):
            if stmt.block.name_hint != "root" and not is_bound:
                found.append(stmt)
            visit(stmt.block.body, is_bound)
        elif isinstance(stmt, tir.For):
            visit(stmt.body, is_bound or stmt.thread_binding is not None)
        elif isinstance(stmt, tir.SeqStmt):
            for part in stmt.seq:
                visit(part, is_bound)

    visit(body, False)
    return found


# ---------------------------------------------------------------- GPUs without kernels of ours

WRITES = {"opencl": "__kernel", "metal": "kernel void", "webgpu": "@compute"}
"""First word of kernels for these targets; those of vulkan and rocm are not text."""

RULED = {"metal": [DEPTHWISE]}
"""TVM's rule for dense convolutions on metal takes most of a minute to load."""

KINDS = [kind for kind in WRITES if tvm.get_global_func(f"target.build.{kind}", True)]


def test_this_tvm_writes_for_other_gpus() -> None:
    assert KINDS


@pytest.mark.parametrize("how", ["plain", "pipeline"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_gpus_are_scheduled_by_tvm(kind: str, how: str) -> None:
    on = tvm.target.Target({"kind": kind}, host={"kind": "llvm"})
    given = {"relax_pipeline": relax_ext.pipeline(on)} if how == "pipeline" else {}
    cases = RULED.get(kind, RANKS)
    executable = tvm.compile(build.forward_module(cases), on, **given)
    (host,) = executable.mod.imports
    (device,) = host.imports
    text = device.inspect_source()
    assert all(name in text for name in names(cases))
    assert WRITES[kind] in text and "topi_" not in text


@pytest.mark.parametrize("kind", ["vulkan", "rocm", *KINDS])
def test_definitions_are_bound_to_threads(kind: str) -> None:
    """TVM's rules bind every loop to threads, as far as that needs no code generator."""
    on = tvm.target.Target({"kind": kind}, host={"kind": "llvm"})
    cases = RULED.get(kind, RANKS)
    mod = relax.get_default_pipeline(on)(build.gradient_module(cases))
    funcs = [f for _, f in mod.functions_items() if isinstance(f, tir.PrimFunc)]
    computed = [f for f in funcs if "tirx.is_scheduled" in (f.attrs or {})]
    assert len(computed) > len(cases)
    assert [unbound(f.body) for f in computed if unbound(f.body)] == []


SYMBOLIC = {
    "even": UP,
    "odd": Case(T, (16, 16), (3, 3), n=1, ins=64, outs=32, stride=(2, 2), padding=(1,) * 4),
    "groups": Case(T, (16, 16), (4, 4), ins=8, outs=8, groups=4, stride=(2, 2), padding=(1,) * 4),
    "one channel": Case(T, (16, 16), (2, 2), ins=8, outs=1, stride=(2, 2)),
}
"""Twice as many rows, one less, no matrix product, and one position for each product."""


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_definitions_are_bound_to_threads(name: str) -> None:
    """TVM's rules divide loops over symbolic rows where one variable says how many there are."""
    on = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})
    letters = "H" if name == "odd" else "NH"
    sizes = {letter: tir.Var(letter.lower(), "int64") for letter in letters}
    mod = relax.get_default_pipeline(on)(build.forward_module([SYMBOLIC[name]], sizes))
    funcs = [f for _, f in mod.functions_items() if isinstance(f, tir.PrimFunc)]
    computed = [f for f in funcs if "tirx.is_scheduled" in (f.attrs or {})]
    assert computed and [unbound(f.body) for f in computed if unbound(f.body)] == []
    if name in ("even", "odd"):  # as TVM's rule for matrix products makes it
        assert any('scope="shared"' in f.script() for f in computed)
