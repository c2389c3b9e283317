# SPDX-License-Identifier: Apache-2.0
"""Costs of a processor's steps: the numbers of all estimates, a table per processor family.

Units are cycles of one core, unless a field says "times": then it multiplies cycles.  "Near" and
"far" are where data lies: in the cache that the planner compares its size with, or behind it.

No number here is read from a data sheet but by its name; ``source`` says how a table came about.
To see how far a table is off on some processor, and which kernel it wrongs, run there::

    python scripts/evaluate_cost_model.py --json out/rate.json --plot out/rate.png

A changed number changes plans: `scripts/dump_kernels.py` says of which kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..machine import CACHE_LINE, CpuMachine


@dataclass(frozen=True)
class CommonCosts:
    """Costs of steps that kernels have in common."""

    load: float = 0.78
    """Cycles of a load of a vector from the first cache: four of them in three cycles."""
    load_beside: float = 0.0
    """More of a load beside products: cycles that the thread of another machine on the same core
    takes."""
    sum_ready: float = 4.0
    """Until a sum is ready to be added to: the least that a tap of a register tile takes."""
    tap: float = 0.4
    """Cycles of a tap of a register tile beside that."""
    broad_tile: float = 0.1
    """Cycles of a tap, for each vector that a register tile has above four: their lines are
    apart.
    """
    odd_tile: float = 0.005
    """Times 1 + this, per kind of phases, for a smaller last register tile: code of its own."""
    l3_line: float = 2.5
    """Until a cache line is there that comes, one of many in order, from behind both caches."""
    pack_row: float = 10.0
    """To begin a row of a window that is packed."""
    pack_row_wide: float = 6.0
    """The same, for rows whose neighbours are copied by vectors that fill cache lines."""
    pack_element: float = 0.6
    """Cycles of an element beside its neighbours."""
    pack_element_wide: float = 0.3
    """The same by vectors that fill cache lines."""
    pack_step: float = 0.25
    """Cycles of an element of rows with a short step, of which each residue has a plane."""
    pack_tap: float = 0.6
    """The same where each tap has a plane."""
    pack_apart: float = 3.0
    """The same with a long step: each takes a cache line."""
    pack_again: float = 0.6
    """Times, of rows that the taps read one after the other: but for the first, they are near."""
    widen_float16: float = 3.0
    """To widen an element of float16 that is not beside its neighbours."""
    widen_other: float = 1.5
    """The same for other dtypes."""


@dataclass(frozen=True)
class DirectCosts:
    """Costs of `direct`, and of the steps that other kernels share with it."""

    task: float = 1000.0
    """To begin a task."""
    panel_far: float = 3.0
    """Times, to pack a panel that takes more than half of the second cache."""
    panel_near: float = 0.6
    """Times, to pack one that stays in the first cache, by vectors that fill cache lines."""
    half_full: float = 1.15
    """Times, of products whose panel takes more than half of the second cache, which vary by up to
    1.4 from run to run."""
    full: float = 1.3
    """The same, for more than three quarters of it."""
    planes: float = 0.94
    """Times, of products where each tap reads a plane of its own: in order."""
    planes_far: float = 1.03
    """The same where weights push planes out of the second cache."""
    line: float = 1.0
    """Cycles of a line of the panel that comes from the second cache."""
    line_hidden: float = 0.25
    """The same where lines come in order."""
    out_row: float = 6.0
    """To begin a row of the result."""
    out_element: float = 0.6
    """To write an element of the result."""
    out_element_alone: float = 1.5
    """The same for phases of long strides, which are put together one by one."""
    out_narrowed: float = 25.0
    """More, where such an element is narrowed."""
    sum_again: float = 2.0
    """To take up a vector of sums again."""
    sums_far: float = 4.0
    """Times, of sums, and of writing results, that take more than half of the second cache."""
    weight: float = 0.25
    """To read a weight once for a block of positions."""
    weight_far: float = 0.6
    """The same from behind the second cache."""
    whole_rows: float = 1.05
    """Times, of products of all phases of a row together, against those in tiles of one phase."""
    pack_weight: float = 2.5
    """To pack a weight before tasks begin."""
    pack_weight_far: float = 6.0
    """The same where weights do not fit the second cache."""
    pack_weight_apart: float = 8.0
    """The same where weights that follow each other are written far apart, for many phases."""
    turn_weight: float = 0.8
    """To pack a weight by squares that are transposed in registers."""
    turn_weight_far: float = 2.0
    """The same where weights do not fit the second caches of all cores."""
    turn_weight_memory: float = 3.0
    """The same from memory."""


@dataclass(frozen=True)
class TileCosts:
    """Costs of transforming the inputs of tiles in `winograd` and `wgrad_winograd`."""

    row: float = 1.5
    """To begin a row of data that is copied."""
    element: float = 0.2
    """To copy an element beside its neighbours."""
    element_step: float = 0.4
    """The same with a short step."""
    element_apart: float = 1.2
    """The same with a long step."""
    first_rows: float = 40.0
    """By the number of rows: few are read before they have reached the first cache."""
    load: float = 1.5
    """Steps to load a vector of a combined row, of which `full` to `single` say the cycles."""
    term: float = 2.0
    """Steps to combine and store a vector of a term."""
    many: float = 1.4
    """Times, of steps with more terms than stay in registers."""
    most: float = 1.8
    """The same with many more."""
    full: float = 0.75
    """Cycles of a step of a full vector."""
    half: float = 0.45
    """Cycles of a step of a vector of more than four lanes."""
    quarter: float = 0.3
    """Cycles of a step of four lanes."""
    narrow: float = 0.13
    """Cycles of a step of one or two lanes."""
    single: float = 0.2
    """Cycles of a step of a row that is too short for the vectors that a kernel has."""


@dataclass(frozen=True)
class WinogradCosts:
    """Costs of `winograd`, except for transforming inputs."""

    task: float = 1000.0
    """To begin a task."""
    near: float = 1.03
    """Times, of products whose combined inputs take up to three eighths of the second cache."""
    half_full: float = 1.06
    """The same, for up to three quarters of it."""
    far: float = 1.15
    """The same, for more."""
    taps_near: float = 1.05
    """Times, of products whose combined taps stay in what cores share behind their caches."""
    taps_far: float = 0.6
    """Times 1 + this by how often a tap that was read is used, from memory."""
    chunk: float = 1.15
    """Times, of products of several chunks of input channels, which take up sums again."""
    memory_bytes: float = 2.5
    """Bytes that a core reads from memory in a cycle."""
    point: float = 4.0
    """To begin a point of a register tile."""
    sum_vector: float = 3.0
    """To write and combine a vector of a point's sums."""
    out_vector: float = 2.5
    """To make a vector of outputs of a tile."""
    out_element: float = 0.4
    """To write an output of up to four of a row's tile and phases."""
    out_element_eighth: float = 0.7
    """The same for up to eight."""
    out_element_apart: float = 1.1
    """The same for more."""
    out_row: float = 4.0
    """To begin a row of outputs."""
    combine: float = 1.5
    """To write a combined tap, where each task has its own."""
    combine_far: float = 2.2
    """The same where they do not fit the second cache."""
    combine_shared: float = 2.2
    """To write a combined tap of all threads: another core has read its line.  The further away its
    copy is, the sooner it is given up."""
    combine_shared_far: float = 3.5
    """The same where they do not fit the second cache."""
    combine_shared_memory: float = 3.5
    """The same from behind what four times the second caches hold."""
    combine_alone: float = 2.2
    """The same for a single thread."""
    copy_tap: float = 0.0
    """To copy a tap before it is combined, from the second cache."""
    copy_tap_far: float = 0.0
    """The same from what cores share."""
    copy_tap_memory: float = 0.0
    """The same from memory."""
    turned: float = 0.9
    """Less, to copy a tap by squares that are transposed in registers."""
    turned_far: float = 0.9
    """The same from what cores share, and from memory."""


@dataclass(frozen=True)
class WgradPositionsCosts:
    """Costs of `wgrad_positions`."""

    task: float = 1000.0
    """To begin a task."""
    row: float = 10.0
    """To begin a row of y that is packed."""
    element: float = 0.6
    """To pack an element of y."""
    loads: float = 2.0
    """Loads of a vector in a cycle."""
    sum_ready: float = 4.0
    """Until a sum is ready to be added to."""
    sums: float = 1.5
    """To take up a vector of partial sums again that stays in the first cache."""
    sums_far: float = 3.5
    """The same from behind it."""
    tile: float = 8.0
    """To begin a register tile."""
    near: float = 1.25
    """Times, of register tiles whose operands stay in the second cache, beside other kernels."""
    far: float = 2.0
    """The same from behind it."""
    write: float = 6.0
    """To add up a partial sum and write a weight."""


@dataclass(frozen=True)
class WgradChannelsCosts:
    """Costs of `wgrad_channels`."""

    task: float = 1000.0
    """To begin a task."""
    row: float = 5.0
    """To begin a row of positions in a register tile."""
    sum_vector: float = 2.0
    """To take up a vector of sums again."""
    tile: float = 10.0
    """To begin a register tile."""
    far: float = 1.4
    """Times, of products whose operands take more than half of the second cache."""
    vector_far: float = 1.6
    """Cycles of a vector of y that fills a cache line, at least, from the second cache."""
    products: float = 1.0
    """Times, of products, beside other kernels."""
    write: float = 2.0
    """To write a weight: those of one tap are far apart."""
    write_row: float = 6.0
    """To begin the taps of two channels."""
    turn_element: float = 1.5
    """To turn an element of y by itself."""
    turn_row: float = 5.0
    """To begin a run of y that is turned."""


@dataclass(frozen=True)
class WgradIm2colCosts:
    """Costs of `wgrad_im2col`."""

    task: float = 1000.0
    """To begin a task."""
    value: float = 2.1
    """To copy a value of y."""
    sum_once: float = 5.0
    """To write a vector of sums that are complete."""
    sum_again: float = 9.0
    """To take up a vector of sums and write it."""
    sum_again_far: float = 16.0
    """The same where a task's sums do not fit the second cache."""
    products: float = 1.13
    """Times, of products, against those of other kernels."""
    element: float = 1.1
    """To copy an element to columns."""
    line: float = 2.9
    """More, for each row of the kernel, where channels push each other out of the first cache."""


@dataclass(frozen=True)
class WgradWinogradCosts:
    """Costs of `wgrad_winograd`."""

    task: float = 1000.0
    """To begin a task."""
    term: float = 3.0
    """To combine a vector of a term's sums."""
    write: float = 2.0
    """To write a weight."""
    turn_row: float = 10.0
    """To begin a row of y that is turned, for each lane."""
    turn_element: float = 1.2
    """To turn an element of y."""
    point: float = 2.5
    """To make a vector of a point."""
    far: float = 1.4
    """Times, of products whose operands take more than three quarters of the second cache."""
    sum_once: float = 2.0
    """To write a vector of sums of a single pass."""
    sum_again: float = 5.0
    """To take up a vector of sums and write it."""
    sum_again_far: float = 16.0
    """The same where those of all channels fit no cache nearby."""
    sum_rows: float = 3.0
    """More, of so many rows of sums in turns that a processor does not read them ahead of us."""
    add: float = 0.5
    """To add a sum of one task to those of another."""
    shares: float = 1.0
    """Times, of tasks that have sums of their own."""
    share_tasks: float = 30_000.0
    """To begin such tasks, and to wait for the last."""
    shared_output: float = 1.0
    """More, to write an output that is combined: another core has read its line."""
    passes: float = 15_000.0
    """To begin the tasks of a pass, and to wait for the last."""
    all: float = 1.06
    """Times all, against other kernels."""


@dataclass(frozen=True)
class DirectAmxCosts:
    """Costs of `direct_amx`."""

    task: float = 1000.0
    """To begin a task."""
    pack_weight: float = 1.2
    """To pack a weight before tasks begin."""
    weight_row: float = 0.5
    """To load a row of a tile of weights from the first cache."""
    weight_row_far: float = 1.6
    """The same from the second."""
    data_row: float = 1.0
    """To load a row of a tile of data, which begins anywhere, from the first cache."""
    data_row_far: float = 3.2
    """The same from the second."""
    sums: float = 40.0
    """To begin the sums of a register tile."""
    sum_row: float = 1.5
    """To write a row of sums."""
    sum_row_again: float = 3.0
    """To take up a row of sums and write it."""
    far: float = 1.5
    """Times, of products whose panel and sums take more than half of the second cache."""
    panel_far: float = 3.0
    """Times, to pack such a panel."""
    out_row: float = 6.0
    """To begin a row of the result."""
    out_element: float = 0.8
    """To write an element of the result."""


@dataclass(frozen=True)
class DotProductCosts:
    """Costs of `dot_product`."""

    task: float = 500.0
    """To begin a task."""
    line: float = 1.5
    """Cycles of a line of weights, each read once, from the second cache."""
    line_far: float = 5.0
    """The same from what cores share."""
    line_memory: float = 9.0
    """The same from memory."""
    products: float = 1.22
    """Times, of products, against those of other kernels."""
    columns_far: float = 1.12
    """Times, of products whose columns take more than half of the second cache."""
    widened: float = 1.2
    """Times, of products with weights that are widened."""
    sum: float = 12.0
    """To add up the lanes of a sum."""
    rest: float = 4.0
    """Cycles of a term that fills no vector."""
    element: float = 0.6
    """To copy an element to columns."""


@dataclass(frozen=True)
class Col2imCosts:
    """Costs of `gemm_col2im`."""

    task: float = 300.0
    """To begin a task."""
    copy: float = 3.0
    """To copy a vector of weights, if it fills a cache line, to a chunk that takes half of the
    first cache."""
    copy_l1: float = 4.0
    """The same to one that takes all of it."""
    copy_l2: float = 5.0
    """The same to one that takes an eighth of the second cache."""
    copy_large: float = 9.0
    """The same to a larger one."""
    copy_far: float = 1.5
    """More, of weights from what cores share."""
    copy_memory: float = 10.0
    """The same from memory."""
    asked: float = 0.3
    """Times, of that, where lines are asked for ahead."""
    value: float = 0.5
    """To read a value of y, channel by channel."""
    widened: float = 0.3
    """Times, of widening it."""
    columns_far: float = 1.12
    """Times, of products whose columns take more than a quarter of the second cache."""
    products: float = 1.0
    """Times, of products, against those of other kernels."""
    rows_far: float = 1.04
    """Times, of products whose chunk does not fit the first cache."""
    sum_again: float = 2.0
    """To take up a vector of columns again."""
    out_element: float = 1.0
    """To write an element of the result."""
    out_image: float = 20.0
    """To begin an image of the result."""
    scatter: float = 1.3
    """To add an element of columns to the image."""
    clear: float = 0.5
    """To clear an element of an image."""


@dataclass(frozen=True)
class PhaseLanesCosts:
    """Costs of `phase_lanes`."""

    task: float = 1000.0
    """To begin a task."""
    vector_far: float = 2.5
    """At least, of a tap of a vector of weights that does not stay in the first cache."""
    values_far: float = 20.0
    """More then, by taps along a row, for each register tile whose values are lines apart."""
    sum_vector: float = 1.5
    """To write a vector of sums."""
    tile: float = 15.0
    """To begin a register tile."""
    chunk: float = 1.35
    """Times, of products of several chunks of channels, which take up sums again."""
    out_element: float = 0.4
    """To write an element of the result."""
    out_position: float = 6.0
    """To begin the outputs of a position."""
    far: float = 1.2
    """Times, of rows whose weights do not stay in the second cache."""
    weight: float = 1.2
    """To copy a weight where strides are whole vectors."""
    weight_apart: float = 2.4
    """The same where they are not."""


@dataclass(frozen=True)
class ValidTapsCosts:
    """Costs of `valid_taps`."""

    task: float = 3000.0
    """To begin a task."""
    input_row: float = 3.0
    """To begin a row of data that is copied."""
    input: float = 0.1
    """To copy an element of data."""
    sum_vector: float = 1.0
    """To take up a vector of sums again, for each tap."""
    read: float = 0.65
    """To read a vector of weights again for each row of positions."""
    read_far: float = 1.0
    """The same for packed weights from behind the second cache."""
    half_full: float = 1.06
    """Times, of products whose operands take more than three quarters of the second cache."""
    weights_far: float = 1.07
    """Times, of products whose weights of a tap take most of the first cache."""
    sums_far: float = 1.3
    """Times, of products whose sums do not fit the second cache."""
    weight: float = 3.0
    """To copy a weight."""
    turn_weight: float = 0.55
    """To copy one by squares that are transposed in registers."""
    turn_weight_far: float = 1.0
    """The same from behind the second caches of all cores."""
    out_element: float = 0.6
    """To write an element of the result."""
    all: float = 1.05
    """Times all, against other kernels."""


@dataclass(frozen=True)
class GemmCosts:
    """Costs of `gemm`."""

    task: float = 300.0
    """To begin a task."""
    panel_far: float = 1.1
    """Times, of products whose panel of columns does not stay in the first cache."""
    rows_far: float = 1.0
    """Times, of products with rows that take more than a quarter of the second cache."""
    sum_vector: float = 2.0
    """To take up and lay down a vector of sums."""
    line: float = 0.5
    """To read a cache line from the second cache."""
    line_far: float = 2.5
    """The same from what cores share."""
    line_memory: float = 6.0
    """The same from memory."""
    widen_vector: float = 1.0
    """To widen a vector of packed bytes; Zen 4, 29 November 2026."""
    copy: float = 0.2
    """To copy an element beside its neighbours."""
    turn: float = 0.6
    """To copy an element by squares that are transposed in registers."""
    out_row: float = 6.0
    """To begin a row of the result."""
    out_element: float = 0.15
    """To write an element of the result."""


@dataclass(frozen=True)
class RowwiseCosts:
    """Costs of `rowwise`, fitted to times of softmax on Emerald Rapids, 28 November 2026."""

    row: float = 30.0
    """To begin a row."""
    softmax: float = 30.0
    """Cycles of a vector of a softmax: its largest element, exp, their sum, and the division by
    it.
    """
    normalize: float = 12.0
    """Cycles of a vector of a normalization."""
    element: float = 10.0
    """Cycles of an element that fills no vector with others."""


@dataclass(frozen=True)
class AttentionCosts:
    """Costs of `attention`, fitted to times on Emerald Rapids, 28 November 2026."""

    task: float = 1000.0
    """To begin a task."""
    tile: float = 12.0
    """To begin a register tile."""
    exp: float = 10.0
    """Cycles of the largest of scores, exp and their sum, for each vector."""
    rescale: float = 1.0
    """To multiply a vector of columns where the largest score changes."""
    copy: float = 0.2
    """To copy an element beside its neighbours."""
    turn: float = 0.6
    """To copy an element by squares that are transposed in registers."""
    few_task: float = 150.0
    """To begin a task of few queries."""
    fold: float = 2.0
    """To add the elements of a vector, as many of them as one has lanes."""
    again: float = 1.0
    """To read a vector of values again, for other queries."""
    all: float = 1.15
    """Times all, against separate products, whose estimates are too high by that where all is near:
    a head of 256 channels and 256 positions took 1.1 times as long in one kernel."""


@dataclass(frozen=True)
class Costs:
    """The numbers of one family of processors.

    Attributes
    ----------
    source : str
        How, when and on what processor they were found.
    common, direct, winograd, ...
        By kernel.
    """

    source: str
    common: CommonCosts = CommonCosts()
    direct: DirectCosts = DirectCosts()
    tiles: TileCosts = TileCosts()
    winograd: WinogradCosts = WinogradCosts()
    direct_amx: DirectAmxCosts = DirectAmxCosts()
    dot_product: DotProductCosts = DotProductCosts()
    gemm_col2im: Col2imCosts = Col2imCosts()
    phase_lanes: PhaseLanesCosts = PhaseLanesCosts()
    valid_taps: ValidTapsCosts = ValidTapsCosts()
    gemm: GemmCosts = GemmCosts()
    rowwise: RowwiseCosts = RowwiseCosts()
    attention: AttentionCosts = AttentionCosts()
    wgrad_positions: WgradPositionsCosts = WgradPositionsCosts()
    wgrad_channels: WgradChannelsCosts = WgradChannelsCosts()
    wgrad_im2col: WgradIm2colCosts = WgradIm2colCosts()
    wgrad_winograd: WgradWinogradCosts = WgradWinogradCosts()


GENERIC = Costs(
    "Fitted by hand to times of AVX2 on Zen 3, 20 to 22 November 2026, and on Zen 4 since; no "
    "command repeats it.  Processors of ARM were not measured."
)
"""Vectors shorter than a cache line."""

ZEN4 = Costs(
    "Fitted by hand to times on Zen 4, 22 to 24 November 2026; no command repeats it.",
    direct=DirectCosts(pack_weight=1.5, pack_weight_far=1.5),
    winograd=WinogradCosts(
        combine=0.2,
        combine_far=0.3,
        combine_shared=6.0,
        combine_shared_far=5.0,
        combine_shared_memory=4.0,
        combine_alone=0.2,
        copy_tap=1.4,
        copy_tap_far=2.6,
        copy_tap_memory=3.4,
        turned_far=1.4,
    ),
    gemm_col2im=Col2imCosts(products=1.1),
    wgrad_positions=WgradPositionsCosts(near=1.1),
    wgrad_channels=WgradChannelsCosts(products=1.12),
    wgrad_winograd=WgradWinogradCosts(shares=1.1, shared_output=4.0),
)
"""Vectors of a cache line."""

EMERALD_RAPIDS = replace(
    ZEN4,
    source="Lines from behind the second cache, rows and vectors that come from it: by hand on "
    "Emerald Rapids, 23 and 29 November 2026; loads beside products: register tiles of 12 by 2 and "
    "5 by 4 vectors in turns, matrix products of 18 sizes, 30 November 2026; all else is taken "
    "from Zen 4.",
    common=replace(ZEN4.common, l3_line=7.0, load_beside=0.3),
    wgrad_channels=replace(ZEN4.wgrad_channels, vector_far=2.2),
    gemm=replace(ZEN4.gemm, rows_far=1.08),
)
"""Vectors of a cache line on processors of Intel."""

FAMILIES = {"": GENERIC, "zen4": ZEN4, "emerald_rapids": EMERALD_RAPIDS}
"""By :attr:`topi_ext.cpu.machine.CpuMachine.family`."""


def costs_of(machine: CpuMachine) -> Costs:
    """Return the table of its family; of none, by the width of its vectors."""
    if not machine.family and machine.vector_bytes >= CACHE_LINE:
        return ZEN4
    return FAMILIES[machine.family]
