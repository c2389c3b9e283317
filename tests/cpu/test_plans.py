# SPDX-License-Identifier: Apache-2.0
"""Chosen plans, for cases in which another plan would be much slower."""

from __future__ import annotations

from cProfile import Profile
from dataclasses import replace
from math import log
from time import process_time

import pytest

from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from helpers.kernels import free, problem_of
from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.plan.direct import DirectPlan
from topi_ext.cpu.plan.dot_product import DotProductPlan
from topi_ext.cpu.plan.estimate import cheapest, register_tile
from topi_ext.cpu.plan.gemm import GemmPlan
from topi_ext.cpu.plan.gemm_col2im import GemmCol2imPlan, gemm_col2im_candidates
from topi_ext.cpu.plan.phase_lanes import PhaseLanesPlan
from topi_ext.cpu.plan.runtime_dispatch import RuntimeDispatchPlan
from topi_ext.cpu.plan.step_costs import FAMILIES, ZEN4
from topi_ext.cpu.plan.valid_taps import ValidTapsPlan
from topi_ext.cpu.plan.wgrad_channels import WgradChannelsPlan
from topi_ext.cpu.plan.wgrad_im2col import WgradIm2colPlan
from topi_ext.cpu.plan.wgrad_winograd import WgradWinogradPlan, wgrad_winograd_candidates
from topi_ext.cpu.plan.window import Window
from topi_ext.cpu.plan.winograd import WinogradPlan, winograd_candidates
from topi_ext.cpu.plan.winograd_rows import WinogradRows
from topi_ext.cpu.plan.winograd_tiles import candidate_tiles
from topi_ext.cpu.select.choose import choose, rated
from topi_ext.cpu.select.dynamic_shapes import Split, either
from topi_ext.kernel.registry import Refused
from topi_ext.spec.conv import OPERANDS, Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.spec.matmul import MatMul

MACHINE = CpuMachine(vector_bytes=64, registers=32, fmas=1, threads=2, l2=1 << 20, streams=True)

AVX2 = CpuMachine(vector_bytes=32, registers=16, fmas=2, threads=2)

UP = Case("conv_transpose", (14, 14), (2, 2), stride=(2, 2))
"""Doubles a small image."""


def problem_for(size: tuple[int, ...], kernel: tuple[int, ...], **case: object) -> Convolution:
    """A transposed convolution of one image."""
    geometry = geometry_of(Case("conv_transpose", size, kernel, **case))
    return problem_of(FaceCase("conv_transpose", geometry, 1))


def test_one_channel_of_one_image_is_shared_by_its_phases() -> None:
    """An inverse Fourier transform: neither images nor channels are enough tasks."""
    problem = problem_for((100,), (1024,), ins=1026, outs=1, stride=(256,), padding=(384, 384))
    plan = choose(problem, MACHINE)
    assert isinstance(plan, PhaseLanesPlan) and plan.phase_splits >= MACHINE.threads


def test_rows_of_several_tasks_are_not_streamed() -> None:
    """Each would write all of them."""
    problem = problem_for((40_000,), (256,), ins=2, outs=1, stride=(256,))
    plan = choose(problem, MACHINE)
    assert isinstance(plan, PhaseLanesPlan) and plan.phase_splits > 1 and not plan.streamed


@pytest.mark.parametrize(
    ("size", "ins", "is_asked_for"),
    [((4, 4), 512, True), ((8, 6), 2048, True), ((1, 1), 512, False), ((4, 4), 64, False)],
)
def test_weights_of_small_images(size: tuple, ins: int, is_asked_for: bool) -> None:
    """They are copied by chunks for the first cache, and asked for ahead where products take longer
    than to ask, and weights come from further away than the second cache."""
    problem = problem_for(size, (4, 4), ins=ins, outs=256, stride=(2, 2), padding=(1,) * 4)
    plan = cheapest(gemm_col2im_candidates(problem, MACHINE))[1]
    chunk = plan.k_block * plan.row_vectors(problem.geometry) * MACHINE.vector_bytes
    assert chunk <= MACHINE.l2 // 8
    assert (plan.ahead > 0) == is_asked_for


def test_rows_of_columns_are_no_power_of_two_apart() -> None:
    """Twelve of them would share the eight places of one set of a cache."""
    problem = problem_for((8, 6), (4, 4), ins=2048, outs=256, stride=(2, 2))
    plan = replace(cheapest(gemm_col2im_candidates(problem, MACHINE))[1], c_block=64)
    assert plan.pitch(problem.geometry) == (plan.row_vectors(problem.geometry) + 1) * plan.lanes


@pytest.mark.parametrize("kernel", [1, 4])
def test_few_positions_run_along_their_weights(kernel: int) -> None:
    """A 4 x 4 image would use one or four positions of a vector of sixteen."""
    case = Case("conv", (4, 4), (kernel, kernel), 1, ins=512, outs=100, stride=(4, 4))
    problem = problem_of(FaceCase("conv", geometry_of(case), 1))
    assert isinstance(choose(problem, MACHINE), DotProductPlan)
    channels_last = Layouts("NHWC", "HWIO", "NHWC")
    assert not isinstance(choose(replace(problem, layouts=channels_last), MACHINE), DotProductPlan)


@pytest.mark.parametrize(
    ("case", "plan"),
    [
        (UP.with_(n=32, ins=32, outs=1, kernel=(4, 4), padding=(1,) * 4), DirectPlan),
        (Case("conv_transpose", (128,), (3,), 16, ins=64, outs=3), DirectPlan),
        (UP.with_(n=1, ins=768, outs=3, kernel=(16, 16), stride=(16, 16)), PhaseLanesPlan),
        (Case("conv", (4, 4), (4, 4), 16, ins=512, outs=1), DotProductPlan),
    ],
    ids=lambda value: f"{value.op}{value.kernel}" if isinstance(value, Case) else value.__name__,
)
def test_few_output_channels(case: Case, plan: type) -> None:
    """Others took 1.4 to 2.4 times as long, and were chosen: packing small windows was rated too
    high, packing the weights of many phases too low, and inner products were refused the room that
    they have."""
    assert isinstance(
        choose(problem_of(FaceCase(case.op, geometry_of(case), case.n)), MACHINE), plan
    )


@pytest.mark.parametrize(("l3_line", "stays"), [(0.0, False), (7.0, True)])
def test_panels_that_are_read_often_stay_near(
    monkeypatch: pytest.MonkeyPatch, l3_line: float, *, stays: bool
) -> None:
    """Every block of output channels and every phase reads all of a U-Net's first upsampling: from
    Intel's third cache that took 2.2 times as long as from the second one.  In a larger second
    cache than this one, panels stay by other costs."""
    table = replace(ZEN4, common=replace(ZEN4.common, l3_line=l3_line))
    monkeypatch.setitem(FAMILIES, f"{l3_line}", table)
    problem = problem_for((28, 28), (2, 2), ins=1024, outs=512, stride=(2, 2))
    machine = replace(MACHINE, fmas=2, l2=1 << 18, family=f"{l3_line}")
    plan = choose(problem, machine)
    assert isinstance(plan, DirectPlan)
    panel = 4 * plan.depth * plan.window.pitch(plan.lanes)
    assert (panel <= machine.l2) == stays


@pytest.mark.parametrize("face", OPERANDS)
@pytest.mark.parametrize(
    ("size", "ins", "dilation", "is_clipped"), [(33, 256, 12, True), (33, 256, 1, False)]
)
def test_taps_that_meet_padding(
    size: int, ins: int, dilation: int, face: str, *, is_clipped: bool
) -> None:
    """In an atrous spatial pyramid, five or six of nine taps meet data on average."""
    pad = (dilation,) * 4
    case = Case("conv", (size, size), (3, 3), 1, ins=ins, outs=ins, padding=pad, dilation=dilation)
    problem = problem_of(FaceCase(face, geometry_of(case), 1))
    plan = choose(problem, MACHINE)
    assert choose(problem, CpuMachine(registers=6))
    found = isinstance(plan, ValidTapsPlan) or (
        isinstance(plan, WgradChannelsPlan) and plan.clipped
    )
    assert found == is_clipped


@pytest.mark.parametrize(
    ("kernel", "stride", "tile"),
    [
        ((3, 3, 3), (1, 1, 1), (2, 2, 2)),
        ((4, 4, 4), (2, 2, 2), (2, 2, 2)),
        ((1, 3, 3), (1, 1, 1), (1, 2, 2)),
        ((3, 3, 1), (1, 1, 1), (2, 2, 1)),
    ],
)
def test_tiles_along_depth(kernel: tuple, stride: tuple, tile: tuple) -> None:
    """Tiles along depth are used where they save products."""
    problem = problem_for((16, 16, 16), kernel, ins=48, outs=48, stride=stride)
    assert tile in candidate_tiles(problem)
    plan = choose(problem, MACHINE)
    assert isinstance(plan, WinogradPlan) and plan.tile == tile


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "tile"),
    [
        ((2000,), 11, 1, (1, 1, 4)),
        ((2000,), 4, 1, (1, 1, 4)),
        ((2000,), 3, 1, (1, 1, 2)),
        ((2000,), 4, 2, (1, 1, 2)),
        ((64, 64), 4, 1, (1, 2, 4)),
    ],
)
def test_tiles_along_a_row(size: tuple, kernel: int, stride: int, tile: tuple) -> None:
    """Tiles of four outputs are used where four taps are neighbours."""
    shape = (kernel,) * len(size)
    problem = problem_for(size, shape, ins=96, outs=96, stride=(stride,) * len(size))
    plan = choose(problem, MACHINE)
    assert isinstance(plan, WinogradPlan) and plan.tile == tile


def test_rows_are_direct_where_tiles_along_both_axes_have_too_many_terms() -> None:
    """The first layer of AlexNet: 15 x 15 terms, or 15 x 11 of which those of a row are taps."""
    case = Case("conv", (224, 224), (11, 11), 1, ins=3, outs=64, stride=(4, 4), padding=(2,) * 4)
    plan = choose(problem_of(FaceCase("conv", geometry_of(case), 1)), MACHINE)
    assert isinstance(plan, WinogradPlan) and plan.tile == (1, 2, 1)


@pytest.mark.parametrize("channels", [1, 2])
def test_products_of_one_channel_are_not_saved(channels: int) -> None:
    """Errors of tiles are relative to the neighbours of an element, and nothing is gained."""
    problem = problem_for((40, 40), (3, 3), ins=8 * channels, outs=8 * channels, groups=8)
    assert bool(cheapest(winograd_candidates(problem, MACHINE))) == (channels > 1)


def test_no_tile_has_more_terms_than_are_written_out() -> None:
    """A 7 x 7 x 4 kernel with tiles of two outputs has no plan, though it would be the fastest."""
    problem = problem_for((24, 24, 24), (3, 5, 5), ins=48, outs=48)
    assert cheapest(winograd_candidates(problem, MACHINE, [(2, 2, 2)])) is None
    assert cheapest(winograd_candidates(problem, MACHINE, [(2, 2, 1)])) is not None


@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 6, 8, 9, 12, 16])
def test_rounds_of_register_tiles_are_full(vectors: int) -> None:
    """A smaller last register tile has no code of its own, so its empty lanes would waste
    products."""
    _, width = register_tile(128, vectors, MACHINE, kinds=0)
    assert vectors % width == 0


@pytest.mark.parametrize(("ins", "chunks"), [(256, True), (250, False)])
def test_whole_images_by_chunks_of_channels(ins: int, *, chunks: bool) -> None:
    """A row of ten tiles fills no vector; of a whole image, inputs of all channels are far away."""
    geometry = geometry_of(Case("conv", (20, 20), (3, 3), ins=ins, outs=256, padding=(1,) * 4))
    plan = choose(problem_of(FaceCase("conv", geometry, 1)), MACHINE)
    assert isinstance(plan, WinogradPlan)
    assert (plan.chunks > 1) == chunks
    assert not chunks or plan.block == (1, 1, 10, 10)


@pytest.mark.parametrize("by_slice", [False, True])
@pytest.mark.parametrize("per_task", [1, 2])
def test_rows_that_are_held(by_slice: bool, per_task: int) -> None:
    """Their number by kinds of phases is the sum, or the maximum, over slices of the kernel."""
    for kernel, stride in (((3, 3), (2, 2)), ((5, 4), (3, 2)), ((64, 64), (32, 32))):
        problem = problem_for((8, 8), kernel, ins=5, outs=4, stride=stride)
        direct = DirectPlan(Window.of((1, 1, 8, 8), problem.accesses), 8, 2, 1, 1, 5)
        plan = WinogradPlan(
            (1, 2, 2), (1, 1, 4, 4), 8, 2, 1, 1, 1, direct,
            position_splits=1, channel_parts=per_task, per_task=per_task, by_slice=by_slice,
        )  # fmt: skip
        rows = WinogradRows(problem, plan)
        assert len(rows.slices) == plan.slices(problem) == stride[0]
        together = max if by_slice else sum
        taps = together(rows.taps_before(one.pair)[-1] for one in rows.slices)
        inputs = [len(one.phases) * rows.inputs_before(one.pair)[-1] for one in rows.slices]
        assert rows.taps_held == taps
        assert rows.inputs_held == (together(inputs) if per_task > 1 else rows.most_of_phase)
        assert rows.first_inputs == [0 if by_slice else sum(inputs[:i]) for i in range(len(inputs))]


@pytest.mark.parametrize(
    ("size", "ins", "outs", "stride"), [((27, 27), 96, 4, 3), ((24, 24), 64, 8, 3)]
)
def test_weight_gradients_of_few_channels_by_columns(
    size: tuple[int, int], ins: int, outs: int, stride: int
) -> None:
    """Copying columns costs less than adding up sums over lanes for each weight."""
    case = Case("conv", size, (3, 3), 8, ins=ins, outs=outs, stride=(stride, stride))
    problem = problem_of(FaceCase("conv_weight_grad", geometry_of(case), 8))
    assert isinstance(choose(problem, MACHINE), WgradIm2colPlan)


@pytest.mark.parametrize(
    ("size", "kernel", "n", "ins", "outs"),
    [(16, 5, 4, 24, 192), (20, 9, 1, 48, 192), (20, 9, 1, 72, 192), (28, 7, 1, 72, 512)],
)
def test_no_part_of_a_weight_gradient_is_empty(
    size: int, kernel: int, n: int, ins: int, outs: int
) -> None:
    """Parts have equally many blocks of channels: of six, two each, so that four are too many."""
    padding = (kernel // 2,) * 4
    case = Case("conv", (size, size), (kernel, kernel), n, ins=ins, outs=outs, padding=padding)
    problem = problem_of(FaceCase("conv_weight_grad", geometry_of(case), n))
    found = cheapest(wgrad_winograd_candidates(problem, MACHINE))
    assert found is not None
    blocks, parts = -(-ins // found[1].c_block), found[1].channel_parts
    assert (parts - 1) * -(-blocks // parts) < blocks


@pytest.mark.parametrize("channels", [1, 6, 16])
@pytest.mark.parametrize("lanes", [4, 16])
def test_terms_of_weight_gradients_lie_in_different_sets_of_a_cache(
    channels: int, lanes: int
) -> None:
    """Rows of them, written together, are an odd number of vectors apart, whatever the block."""
    for positions in (1, 16, 64, 1024, 1000):
        plan = WgradWinogradPlan((1, 2, 2), (1, 1, 1, positions), lanes, channels, 1, 1, None)
        assert plan.rows >= channels and plan.pitch >= positions
        assert plan.rows * plan.pitch // lanes % 2 == 1


# ------------------------------------------------------------------------------ symbolic sizes


@pytest.mark.parametrize(
    ("face", "case", "small", "large"),
    [
        (
            "conv_weight_grad",
            Case("conv", (28, 28), (3, 3), ins=64, outs=64, padding=(1,) * 4),
            WgradIm2colPlan,
            WgradWinogradPlan,
        ),
        (
            "conv_transpose",
            Case("conv_transpose", (8, 8), (4, 4), ins=256, outs=128, stride=(2, 2)),
            GemmCol2imPlan,
            WinogradPlan,
        ),
        (
            "conv",
            Case("conv", (1, 1), (1, 1), ins=576, outs=144),
            DotProductPlan,
            DirectPlan,
        ),
        (
            "conv_transpose",
            Case("conv_transpose", (99,), (256,), ins=258, outs=1, stride=(128,)),
            GemmCol2imPlan,
            PhaseLanesPlan,
        ),
    ],
)
def test_any_size_has_the_kernels_of_known_ones(
    face: str, case: Case, small: type, large: type
) -> None:
    """Dynamic shapes get the kernel of few positions, and the one that known sizes of many
    positions choose."""
    plan = choose(free(FaceCase(face, geometry_of(case), 1)), MACHINE)
    assert isinstance(plan, RuntimeDispatchPlan)
    assert isinstance(plan.small, small) and (plan.most is None or plan.most >= 4)
    assert isinstance(plan.large, large)


def test_sizes_that_are_expected_need_one_kernel() -> None:
    """Images of many positions need no kernel for a few, which would take as long to build."""
    case = Case("conv", (8, 8), (3, 3), ins=64, outs=64, padding=(1,) * 4)
    problem = free(FaceCase("conv", geometry_of(case), 1))
    assert isinstance(choose(problem, MACHINE), RuntimeDispatchPlan)
    assert isinstance(choose(problem.expecting(lambda _: 4), MACHINE), RuntimeDispatchPlan)
    assert problem.expecting(lambda _: None) == problem
    large = problem.expecting(lambda size: size if isinstance(size, int) else 96)
    assert isinstance(choose(large, MACHINE), WinogradPlan)


@pytest.mark.parametrize("face", ["conv", "conv_transpose"])
@pytest.mark.parametrize(("dilation", "is_clipped"), [(12, True), (1, False)])
def test_padding_of_any_size_is_left_out(face: str, dilation: int, *, is_clipped: bool) -> None:
    """With dynamic sizes, taps in the padding are skipped for images not much larger than the
    dilation; known sizes need no second kernel."""
    pad = (dilation,) * 4
    case = Case("conv", (33, 33), (3, 3), ins=256, outs=256, padding=pad, dilation=dilation)
    one = FaceCase(face, geometry_of(case), 1)
    plan: object = choose(free(one), MACHINE)
    small = []
    while isinstance(plan, RuntimeDispatchPlan):
        small.append(plan)
        plan = plan.large
    assert isinstance(plan, WinogradPlan)
    clipped = [one for one in small if isinstance(one.small, ValidTapsPlan)]
    assert len(clipped) == is_clipped
    assert all(33**2 <= one.most_of_image < 128**2 for one in clipped)
    for prepacked in (False, True):
        known = replace(problem_of(one), n=free(one).n, prepacked=prepacked)
        assert isinstance(choose(known, MACHINE), ValidTapsPlan) == is_clipped


@pytest.mark.parametrize(("dilation", "is_clipped"), [(12, True), (1, False)])
def test_gradients_of_any_size_leave_out_padding(dilation: int, *, is_clipped: bool) -> None:
    pad = (dilation,) * 4
    case = Case("conv", (33, 33), (3, 3), ins=256, outs=64, padding=pad, dilation=dilation)
    one = FaceCase("conv_weight_grad", geometry_of(case), 1)
    for problem in (free(one), replace(problem_of(one), n=free(one).n)):
        plan = choose(problem, MACHINE)
        large = plan.large if isinstance(plan, RuntimeDispatchPlan) else plan
        assert (isinstance(large, WgradChannelsPlan) and large.clipped) == is_clipped


def test_tasks_of_any_size_combine_taps_for_themselves() -> None:
    """Lines that another core has written are slow to write again."""
    case = Case("conv", (14, 14), (3, 3), ins=256, outs=256, padding=(1,) * 4)
    plan = choose(free(FaceCase("conv", geometry_of(case), 1)), MACHINE).large
    assert isinstance(plan, WinogradPlan) and plan.position_splits > 0
    assert plan.position_splits * plan.channel_parts >= MACHINE.threads and plan.least <= 196


def test_a_plan_of_few_positions_serves_some() -> None:
    """A plan that serves no position is not kept, though logarithms are added in another order."""
    case = Case("conv", (1, 1), (1, 1), ins=16, outs=16)
    known = [problem_of(FaceCase("conv", geometry_of(case), n)) for n in (4, 1, 2)]
    small, large = DotProductPlan(16, 8, 4, 1, room=8), choose(known[0], MACHINE)
    cycles = [3.0, 3.0, 2.0]
    assert sum(map(log, cycles)) > sum(map(log, [*cycles[1:], cycles[0]]))
    assert either([(small, [99.0] * 3)], large, cycles, known)[0] is large
    held, _ = either([(small, [99.0, 1.0, 99.0])], large, cycles, known)
    assert isinstance(held, RuntimeDispatchPlan) and held.most == 1


@pytest.mark.parametrize(("dilation", "has_two"), [(1, True), (5, False)])
def test_two_kernels_are_built_where_that_pays(dilation: int, *, has_two: bool) -> None:
    """By a tenth in geometric mean, or by half for some size: fewer products of a dilated kernel
    pay for long rows only, and take three times as long to build."""
    row = Case("conv", (64,), (3,), ins=128, outs=128, padding=(dilation,) * 2, dilation=dilation)
    plan = choose(free(FaceCase("conv", geometry_of(row), 1)), AVX2)
    assert isinstance(plan.large, WinogradPlan) == has_two


def test_small_images_of_any_batch() -> None:
    """Vectors of positions have the halo of each image: of a classifier's last kernel, inner
    products serve batches of one position each that they do not serve of one image."""
    case = Case("conv", (4, 4), (4, 4), ins=512, outs=1)
    plan = choose(free(FaceCase("conv", geometry_of(case), 1)), MACHINE)
    assert isinstance(plan, RuntimeDispatchPlan) and isinstance(plan.small, DotProductPlan)
    assert plan.most is None or plan.most >= 64
    assert plan.most_of_image is not None and plan.most_of_image < 16


def test_few_positions_of_many_weights() -> None:
    """More than there is room for are taken in parts."""
    case = Case("conv", (4, 4, 4), (4, 4, 4), ins=768, outs=12, stride=(4,) * 3)
    plan = choose(free(FaceCase("conv", geometry_of(case), 8)), MACHINE)
    assert isinstance(plan, RuntimeDispatchPlan) and isinstance(plan.small, DotProductPlan)
    assert plan.small.room * 768 * 64 * 4 <= MACHINE.l2 // 2
    assert plan.most is None or plan.most > 2 * plan.small.room


def test_weight_gradients_of_small_images_and_large() -> None:
    """Small images use kernels of their own where these are faster."""
    case = Case("conv", (33, 33), (3, 3), ins=256, outs=64, padding=(2,) * 4, dilation=(2, 2))
    plan = choose(free(FaceCase("conv_weight_grad", geometry_of(case), 1)), MACHINE)
    kinds = []
    while isinstance(plan, RuntimeDispatchPlan):
        kinds.append(type(plan.small))
        plan = plan.large
    assert WgradChannelsPlan in kinds and not isinstance(plan, WgradChannelsPlan)


def test_where_one_plan_takes_over() -> None:
    """Between the sizes where it is faster and those where it is not; equal ones stay together."""
    split = Split.of([16, 1, 4, 16], [9.0, 1.0, 1.0, 3.0], [3.0, 2.0, 2.0, 4.0])
    assert split.most == 7 and list(split.cycles) == [3.0, 1.0, 1.0, 4.0]
    together = Split.of([4, 4], [1.0, 9.0], [9.0, 1.0])
    assert list(together.cycles) in ([1.0, 9.0], [9.0, 1.0])
    assert Split.of([1, 4], [1.0, 1.0], [2.0, 2.0]).most is None
    assert Split.of([1, 4], [2.0, 2.0], [1.0, 1.0]).most == 0


PLANNING_SECONDS = 5
"""Limit for one thread; it takes a tenth of that."""


def in_time(problem: Convolution) -> object:
    begun = process_time()
    plan = choose(problem, MACHINE)
    assert process_time() - begun < PLANNING_SECONDS
    return plan


def test_inverse_fourier_transforms_are_planned_at_once() -> None:
    """A kernel as long as the inverse Fourier transform's is planned quickly: time was kernel times
    stride, 8 s, and 18 s for symbolic sizes."""
    case = Case("conv_transpose", (20,), (8192,), ins=64, outs=1, stride=(2048,))
    plan = in_time(problem_of(FaceCase("conv_transpose", geometry_of(case), 1)))
    assert isinstance(plan, PhaseLanesPlan)
    case = case.with_(kernel=(4096,), stride=(1024,))
    in_time(free(FaceCase("conv_transpose", geometry_of(case), 1)))


@pytest.mark.parametrize("face", OPERANDS)
def test_long_steps_are_planned_at_once(face: str) -> None:
    """Nothing is asked of each phase; tiles have tables of them, and are for few."""
    for case in (
        Case("conv", (9, 9), (3, 1), stride=(1 << 20, 1), padding=(1 << 20, 0) * 2),
        Case("conv", (9, 9), (3, 1), dilation=(1 << 20, 1 << 30), padding=(1 << 20, 0) * 2),
        Case("conv", (9, 9), (3, 3), stride=(1 << 30, 1 << 30)),
    ):
        for made in (problem_of, free):
            problem = made(FaceCase(face, geometry_of(case), 2))
            in_time(problem)
            if max(*problem.geometry.stride, *problem.geometry.dilation) > 1 << 12:
                with pytest.raises(Refused):
                    candidate_tiles(problem)


def test_of_many_phases_a_task_has_room_for_one_position() -> None:
    """Each holds a result for every phase: of 65,536 of them 64 positions would be gigabytes."""
    case = Case("conv_transpose", (3,), (2,), stride=(1 << 16,))
    plan = in_time(free(FaceCase("conv_transpose", geometry_of(case), 1)))
    while isinstance(plan, RuntimeDispatchPlan):
        plan = plan.large
    assert isinstance(plan, DirectPlan) and plan.window.block == (1, 1, 1, 1)


def test_estimates_are_never_less_than_nothing() -> None:
    """Long kernels with a stride on AVX2 have an estimate: it was the logarithm of a negative
    number."""
    machine = CpuMachine(vector_bytes=32, registers=16, threads=4, streams=True)
    pad = dict(stride=(8, 8), padding=(4,) * 4)
    case = Case("conv_transpose", (40, 30), (16, 16), ins=21, outs=21, **pad)
    choose(free(FaceCase("conv_transpose", geometry_of(case), 1)), machine)


@pytest.mark.parametrize("face", ["conv", "conv_transpose", "conv_weight_grad"])
def test_equal_problems_of_any_size_are_planned_once(face: str) -> None:
    """Their symbolic sizes are other variables each time, as of a kernel and of what packs its
    weights."""
    case = FaceCase(face, geometry_of(Case("conv", (9, 9), (3, 3), ins=8, outs=8)), 1)
    backend = CpuBackend(MACHINE)
    first = backend.choice(free(case))
    before = rated.cache_info().misses
    assert backend.choice(free(case)) == first
    assert rated.cache_info().misses == before


@pytest.mark.parametrize("face", ["conv", "conv_transpose", "conv_weight_grad"])
def test_what_sizes_share_is_estimated_once(face: str) -> None:
    """Calls of functions, Python's own included, that it takes to plan symbolic sizes: 220,000 to
    320,000, and twice as many are allowed; 2.3 to 2.5 million when each size was estimated from
    scratch."""
    case = Case("conv", (64,), (3,), ins=128, outs=128, padding=(1, 1))
    problem = free(FaceCase(face, geometry_of(case), 2))
    profile = Profile()
    profile.runcall(choose, problem, MACHINE)
    assert sum(one.callcount for one in profile.getstats()) < 640_000


@pytest.mark.parametrize(("family", "vectors"), [("zen4", 2), ("emerald_rapids", 3)])
def test_loads_cost_where_threads_share_a_core(family: str, vectors: int) -> None:
    """On Intel, a register tile of more vectors and fewer rows reads fewer values."""
    machine = CpuMachine(
        64, 32, fmas=2, threads=2, l1=48 << 10, l2=2 << 20, family=family, streams=True
    )
    sizes = (("m", 192), ("k", 768), ("n", 768))
    plan = choose(MatMul(sizes, "mk", "kn", "mn", ("float32",) * 3, prepacked=True), machine)
    assert isinstance(plan, GemmPlan) and plan.vectors == vectors
