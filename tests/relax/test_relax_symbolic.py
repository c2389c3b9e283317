# SPDX-License-Identifier: Apache-2.0
"""One compiled function, many run-time sizes: symbolic batch and symbolic spatial sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import relax_ext
from helpers import build
from helpers.cases import SPATIAL, Case
from helpers.profile import FUZZ
from relax_ext.op import legalize
from topi_ext.compat import tir

T, C = "conv_transpose", "conv"

# Sizes are those of the first run; strides, dilation and groups make every formula count.
CASES = {
    "conv_transpose1d": Case(T, (6,), (4,), stride=(3,), padding=(1, 2), output_padding=(2,)),
    "conv_transpose2d": Case(
        T, (5, 4), (3, 2), ins=4, outs=6, groups=2, stride=(2, 3), padding=(1, 0, 0, 2),
        dilation=(2, 1), output_padding=(1, 2),
    ),
    "conv_transpose2d NHWC": Case(
        T, (5, 4), (4, 4), ins=16, outs=8, stride=(2, 2), padding=(1,) * 4, data_layout="NHWC",
        kernel_layout="HWOI",
    ),
    "conv_transpose2d depthwise": Case(T, (5, 4), (3, 3), ins=8, outs=8, groups=8, stride=(2, 2)),
    "conv_transpose2d k < s": Case(T, (5, 4), (2, 1), stride=(3, 2)),
    "conv_transpose3d": Case(T, (3, 2, 3), (2, 3, 2), stride=(2, 1, 2), padding=(0, 1, 0) * 2),
    "conv1d": Case(C, (20,), (5,), stride=(3,), padding=(2, 1), dilation=(2,)),
    "conv2d": Case(
        C, (9, 8), (3, 2), ins=4, outs=6, groups=2, stride=(2, 3), padding=(1, 0, 2, 1),
        dilation=(2, 1),
    ),
    "conv2d NHWC": Case(
        C, (9, 8), (3, 3), ins=16, outs=8, stride=(2, 2), padding=(1,) * 4, data_layout="NHWC",
        kernel_layout="HWIO", out_layout="NCHW",
    ),
    "conv3d": Case(C, (4, 5, 4), (2, 2, 3), stride=(2, 1, 2), padding=(0, 1, 0) * 2),
}  # fmt: skip


def symbols(case: Case, spatial: bool) -> dict[str, object]:
    """Variables for the batch, and for every spatial axis if wanted."""
    names = "N" + SPATIAL[case.rank] * spatial
    return {name: tir.Var(name.lower(), "int64") for name in names}


def grown(case: Case, by: tuple[int, ...], n: int) -> Case:
    return case.with_(size=tuple(i + b for i, b in zip(case.size, by)), n=n)


def module(make, spatial: bool, some: dict[str, Case] = CASES) -> tvm.IRModule:
    """One module of all cases, each with variables of its own."""
    whole = {}
    for number, case in enumerate(some.values()):
        for gv, f in make([case], symbols(case, spatial)).functions_items():
            name = gv.name_hint.replace("f0", f"f{number}")
            whole[name] = f.with_attr("global_symbol", name)
    return tvm.IRModule(whole)


BATCHES = [(0, 2), (0, 1), (0, 5)]
SIZES = [(0, 2), (1, 1), (2, 3), (5, 1), (6, 2), (19, 1), (150, 1)]
"""Added to the first axis, one more to each further one, and the batch."""


def runs(spatial: bool, some: dict[str, Case] = CASES):
    for number, case in enumerate(some.values()):
        for add, n in SIZES if spatial else BATCHES:
            if add > 100 and case.rank == 3:
                continue
            by = tuple(add + axis for axis in range(case.rank)) if add else (0,) * case.rank
            yield number, grown(case, by, n)


@pytest.mark.parametrize("spatial", [False, True], ids=["batch", "batch and sizes"])
def test_forward(spatial: bool, rng: np.random.Generator) -> None:
    vm = build.compiled(module(build.forward_module, spatial))
    for number, case in runs(spatial):
        build.run_forward(vm, f"f{number}", case, rng)


@pytest.mark.parametrize("spatial", [False, True], ids=["batch", "batch and sizes"])
def test_gradients(spatial: bool, rng: np.random.Generator) -> None:
    """With a stride, the gradient's size is none that an output padding can state."""
    # Kernels with three symbolic sizes take long to build; the forward test has them.
    some = {k: v for k, v in CASES.items() if FUZZ or not spatial or v.rank < 3}
    vm = build.compiled(module(build.gradient_module, spatial, some))
    for number, case in runs(spatial, some):
        build.run_gradients(vm, f"f{number}_adjoint", case, rng)


def test_without_a_target_the_definition_is_emitted(rng: np.random.Generator) -> None:
    """``LegalizeOps`` alone knows no target: the TE definition, with the caller's variables."""
    for spatial in (False, True):
        mod = module(build.forward_module, spatial)
        mod = relax.transform.LegalizeOps()(mod)
        assert "T.parallel" not in str(mod)
        vm = build.compiled(mod)
        for number, case in runs(spatial):
            build.run_forward(vm, f"f{number}", case, rng)


def test_inserted_zeros_where_rules_of_gpus_need_them(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition of odd rows on GPUs, run by a processor."""
    monkeypatch.setattr(legalize, "is_gpu", lambda _: True)
    monkeypatch.setattr(legalize.backend, "build", lambda *_: None)
    some = {name: case for name, case in CASES.items() if case.op == T and case.groups == 1}
    mod = module(build.forward_module, True, some)
    with build.target():
        mod = relax.transform.LegalizeOps()(mod)
    assert "spread" in str(mod)
    vm = build.compiled(mod)
    for number, case in runs(True, some):
        build.run_forward(vm, f"f{number}", case, rng)


@pytest.mark.parametrize("spatial", [False, True], ids=["batch", "batch and sizes"])
def test_long_dilations(spatial: bool, rng: np.random.Generator) -> None:
    """Images within reach of one tap alone, of most taps, and so large that few meet padding."""
    pad = dict(padding=(12,) * 4, dilation=(12, 12))
    cases = {
        "conv2d": Case(C, (15, 14), (3, 3), ins=32, outs=48, **pad),
        "conv2d_transpose": Case(T, (15, 14), (3, 3), ins=48, outs=32, **pad),
    }
    vm = build.compiled(module(build.forward_module, spatial, cases))
    for number, case in enumerate(cases.values()):
        for by, n in (((0, 0), 2), ((-9, -8), 1), ((30, 17), 1), ((120, 121), 1)):
            if spatial or not any(by):
                build.run_forward(vm, f"f{number}", grown(case, by, n), rng)


@pytest.mark.parametrize("spatial", [False, True], ids=["batch", "batch and sizes"])
def test_long_strides(spatial: bool, rng: np.random.Generator) -> None:
    """Test strides with more phases than a table has, most without taps, along rows and across
    them."""
    cases = {
        "across": Case(T, (3, 2), (3, 2), ins=3, outs=2, stride=(70, 1), padding=(2, 0, 75, 0)),
        "across, dilated": Case(
            T, (3, 2), (3, 1), ins=3, outs=2, stride=(90, 2), dilation=(4, 1), padding=(4, 1, 0, 0)
        ),
        "along": Case(T, (2, 3), (1, 3), ins=3, outs=2, stride=(1, 5000)),
        "conv": Case(C, (150, 9), (2, 3), ins=3, outs=2, stride=(70, 1), dilation=(75, 1)),
    }  # fmt: skip
    vm = build.compiled(module(build.forward_module, spatial, cases))
    for number, case in enumerate(cases.values()):
        for by, n in (((0, 0), 2), ((2, 1), 1), ((100, 40), 1)):  # the last beyond small images
            if (spatial or not any(by)) and (case.stride[1] < 100 or max(by) < 100):
                build.run_forward(vm, f"f{number}", grown(case, by, n), rng)


def test_single_positions(rng: np.random.Generator) -> None:
    """Columns are written directly if an image turns out to have one position; otherwise they are
    added up."""
    cases = {
        "cut off": Case(T, (1, 1), (4, 4), ins=6, outs=10, groups=2, padding=(1, 0, 1, 1)),
        "dilated": Case(T, (1, 1), (3, 2), ins=3, outs=4, dilation=(2, 1)),
        "beyond": Case(
            T, (1, 1), (2, 2), ins=3, outs=4, stride=(3, 3), output_padding=(1, 1)
        ),
    }  # fmt: skip
    vm = build.compiled(module(build.forward_module, True, cases))
    for number, case in enumerate(cases.values()):
        for by, n in (((0, 0), 3), ((0, 0), 1), ((1, 0), 2), ((0, 2), 1), ((2, 2), 2)):
            build.run_forward(vm, f"f{number}", grown(case, by, n), rng)


@pytest.mark.parametrize("name", ["conv_transpose2d", "conv2d"])
def test_empty_batch_at_run_time(name: str, rng: np.random.Generator) -> None:
    """An empty result; a weight gradient of nothing is zero."""
    case = CASES[name]
    vm = build.compiled(build.forward_module([case], symbols(case, False)))
    build.run_forward(vm, "f0", case.with_(n=0), rng)
    vm = build.compiled(build.gradient_module([case], symbols(case, False)))
    build.run_gradients(vm, "f0_adjoint", case.with_(n=0), rng)


@pytest.mark.parametrize("name", list(CASES))
def test_inferred_shape_is_symbolic(name: str) -> None:
    """Not a tensor of unknown shape: what follows can still be planned."""
    case = CASES[name]
    f = build.forward_module([case], symbols(case, True))["f0"]
    batch = f.params[0].ty.shape[0] if case.layouts[0][0] == "N" else None
    assert len(f.ret_ty.shape) == case.rank + 2
    assert batch is None or f.ret_ty.shape[0].same_as(batch)


@pytest.mark.parametrize(
    ("name", "spatial"),
    [("conv_transpose2d", True), ("conv2d", False), ("conv_transpose2d NHWC", False)],
)
def test_wrong_sizes_at_run_time_are_refused(name: str, spatial: bool, rng) -> None:
    """An error, not memory damage: constant axes, the weight, and axes that must agree."""
    case = CASES[name]
    vm = build.compiled(build.gradient_module([case], symbols(case, spatial)))
    data, weight = case.arrays(rng)
    seed = np.zeros(case.out_shape, "float32")
    stored = [case.stored(a, which) for which, a in enumerate((data, weight, seed))]
    build.run(vm, "f0_adjoint", *stored)
    channel = case.layouts[0].index("C")

    def wrong(which: int, change) -> list[np.ndarray]:
        return [change(a) if i == which else a for i, a in enumerate(stored)]

    def longer(axis: int):
        return lambda a: np.concatenate([a, a], axis)

    bad = {
        "channels": wrong(0, longer(channel)),
        "weight": wrong(1, longer(3)),
        "batch of the seed": wrong(2, longer(case.layouts[2].index("N"))),
        "size of the seed": wrong(2, longer(case.layouts[2].index("H"))),
        "rank": wrong(0, lambda a: a[0]),
        "dtype": wrong(0, lambda a: a.astype("float64")),
    }
    if not spatial:
        bad["size"] = wrong(0, longer(case.layouts[0].index("H")))
    for what, arrays in bad.items():
        with pytest.raises(Exception) as caught:
            build.run(vm, "f0_adjoint", *arrays)
        assert not isinstance(caught.value, AssertionError), what


def test_window_that_does_not_fit_at_run_time_is_refused(rng: np.random.Generator) -> None:
    """A size so small that the output would be negative."""
    case = Case(C, (9, 8), (5, 5))
    vm = build.compiled(build.forward_module([case], symbols(case, True)))
    build.run_forward(vm, "f0", case, rng)
    small = case.with_(size=(2, 3))
    with pytest.raises(Exception):  # noqa: B017
        build.run(vm, "f0", *small.arrays(rng))
    cropped = Case(T, (5, 5), (3, 3), padding=(4, 4, 4, 4))
    vm = build.compiled(build.forward_module([cropped], symbols(cropped, True)))
    build.run_forward(vm, "f0", cropped.with_(size=(9, 8)), rng)
    with pytest.raises(Exception):  # noqa: B017
        build.run(vm, "f0", *cropped.with_(size=(2, 3)).arrays(rng))


def test_own_conv_transpose_takes_a_symbolic_size(rng: np.random.Generator) -> None:
    """The size is an argument: one function for every size that belongs to the stride."""
    case = Case(T, (5, 4), (3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    n, h, w, p, q = (tir.Var(name, "int64") for name in "nhwpq")
    mod = build.module(
        lambda y, k, _: relax_ext.conv_transpose(y, k, (h, w), strides=2, padding=1),
        *((n, 2, p, q), case.weight_shape, (n, 3, h, w)),
    )
    vm = build.compiled(mod)
    for extra in ((0, 0), (1, 0), (1, 1)):
        run = case.with_(output_padding=extra, n=3)
        arrays = run.arrays(rng)
        (got,) = build.run(vm, "main", *arrays, np.zeros(run.out_shape, "float32"))
        run.check(got, *arrays)


def test_own_conv_transpose_with_a_size_that_does_not_belong(rng: np.random.Generator) -> None:
    """Refused at run time, or right: what no y reaches is zero, and nothing else is read."""
    case = Case(T, (5, 4), (3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    h, w, p, q = (tir.Var(name, "int64") for name in "hwpq")
    mod = build.module(
        lambda y, k, _: relax_ext.conv_transpose(y, k, (h, w), strides=2, padding=1),
        *((2, 2, p, q), case.weight_shape, (2, 3, h, w)),
    )
    vm = build.compiled(mod)
    for extra in ((40, 0), (0, 100), (-7, -6), (-2, 0)):
        run = case.with_(output_padding=extra)
        arrays = run.arrays(rng)
        try:
            (got,) = build.run(vm, "main", *arrays, np.zeros(run.out_shape, "float32"))
        except Exception:
            continue
        run.check(got, *arrays)
