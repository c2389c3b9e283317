# SPDX-License-Identifier: Apache-2.0
"""Registers, instructions and bank conflicts of CUDA kernels, tested without a GPU.

Where nvcc is missing, addresses are still evaluated; where only nvdisasm is, registers are counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from figures import static_of
from support.gpu import toolchain
from support.gpu_static import banks, ceilings, sass, shapes, static, tables
from topi_ext.cuda.machine import GpuMachine
from topi_ext.cuda.plan.implicit_gemm import ImplicitGemmPlan
from topi_ext.cuda.plan.implicit_gemm_mma import ImplicitGemmMmaPlan
from topi_ext.cuda.plan.rowwise import RowwisePlan
from topi_ext.cuda.plan.tiles import Tile
from topi_ext.cuda.plan.wgrad_gemm import WgradGemmPlan
from topi_ext.cuda.registry import KERNELS
from topi_ext.spec.rowwise import NORMALIZE

DECODER = shapes.Shape("decoder", (8, 64, 64, 64), (8, 128, 32, 32), (4, 4), 2, 1)
HALVES = shapes.Shape(
    "decoder",
    (8, 64, 64, 64),
    (8, 128, 32, 32),
    (4, 4),
    2,
    1,
    dtype="float16",
    channels_last=True,
)
LARGE = ImplicitGemmPlan(Tile(128, 128, 8), 8, 8, packed=True)
NARROW = ImplicitGemmPlan(Tile(128, 64, 8), 8, 8, packed=True)

ROWS = static.Spot(
    shapes.RowShape("rows", (2, 32, 32, 1024), "float16"),
    NORMALIZE,
    RowwisePlan(1024, 8, 4),
    "sm_90",
)

SPOTS = {
    "128x128": static.Spot(DECODER, "conv", LARGE, "sm_80"),
    "128x64": static.Spot(DECODER, "conv_transpose", NARROW, "sm_90"),
    "128x64, Turing": static.Spot(DECODER, "conv", NARROW, "sm_75"),
    "halves": static.Spot(HALVES, "conv", ImplicitGemmMmaPlan(Tile(128, 128, 32), 2, 4), "sm_80"),
    "halves, Blackwell": static.Spot(
        HALVES, "conv", ImplicitGemmMmaPlan(Tile(64, 64, 32), 2, 2), "sm_120"
    ),
    "weights": static.Spot(
        DECODER, "conv_weight_grad", WgradGemmPlan(Tile(128, 128, 8), 8, 8), "sm_90"
    ),
}


def compiler() -> None:
    """Skip, with the reason, where there is none."""
    try:
        toolchain.find("nvcc")
    except toolchain.MissingError as error:
        pytest.skip(str(error))


def reader() -> None:
    """Skip, with the reason, where nothing reads machine code."""
    try:
        toolchain.find("cuobjdump")
        toolchain.find("nvdisasm")
    except toolchain.MissingError as error:
        pytest.skip(str(error))


def main_row(spot: static.Spot, *, with_code: bool = True) -> dict[str, Any]:
    """Return the row of the launch that multiplies."""
    (row,) = (r for r in static.rows_of(spot, with_code=with_code) if r["part"] == "main")
    return row


# ---------------------------------------------------------------- with nvcc


@pytest.mark.parametrize("name", SPOTS)
def test_nothing_spills_and_plans_state_what_is_taken(name: str) -> None:
    compiler()
    row = main_row(SPOTS[name])
    assert row["spills"] == row["stack"] == 0
    assert row["registers"] <= row["stated_registers"] + ceilings.MORE_REGISTERS
    taken = row["shared_static"] + row["shared_dynamic"]
    # A plan that packs nothing else into its memory states where its rows begin, too.
    assert taken <= row["stated_shared"] + 4 * LARGE.tile.rows * 33
    assert row["resident"] >= 1


def test_rows_in_all_registers_of_a_block_do_not_spill() -> None:
    compiler()
    assert main_row(ROWS)["spills"] == 0


@pytest.mark.parametrize("name", ["128x128", "128x64", "128x64, Turing"])
def test_large_tiles_multiply_most_of_the_time(name: str) -> None:
    compiler()
    reader()
    row = main_row(SPOTS[name])
    assert row["share"] >= ceilings.SHARE
    assert row["per_load"] >= ceilings.PER_LOAD


@pytest.mark.parametrize("name", ["halves", "halves, Blackwell"])
def test_halves_are_multiplied_on_tensor_cores(name: str) -> None:
    compiler()
    reader()
    row = main_row(SPOTS[name])
    assert row["hmma"] and row["copies"]


# ---------------------------------------------------------------- without


@pytest.mark.parametrize("name", SPOTS)
def test_no_conflicts_of_banks_in_the_main_loop(name: str) -> None:
    row = main_row(SPOTS[name], with_code=False)
    assert any(one["space"] == "shared" and one["looped"] for one in row["addresses"])
    assert static.conflicts(row, looped=True) == 0


def test_rows_are_read_and_written_by_16_bytes() -> None:
    row = main_row(ROWS, with_code=False)
    found = {
        (one["verb"], one["width"])
        for one in row["addresses"]
        if one["space"] == "global" and one["taken"] > 1000
    }
    assert {("load", 16), ("store", 16)} <= found
    assert static.coalescing(row, "store") == 1


def test_every_kernel_is_looked_at() -> None:
    chosen = {KERNELS.of_plan(spot.plan).name for spot in static.chosen_spots(("sm_75", "sm_90"))}
    assert chosen == {kernel.name for kernel in KERNELS}
    tiled = list(static.tile_spots(("sm_90",)))
    assert {KERNELS.of_plan(spot.plan).name for spot in tiled} == {
        kernel.name for kernel in KERNELS
    }
    assert len(tiled) == len({(spot.plan, spot.arch) for spot in tiled})


@pytest.mark.parametrize("width", [4, 8, 16])
def test_conflicts_of_strided_accesses(width: int) -> None:
    """Neighbours have none; a stride of a whole line has as many as a part has threads."""
    lanes, everyone = np.arange(64), np.ones(64, bool)
    part = 128 // width
    assert banks.wavefronts(lanes * width, everyone, width) == (2, 64 // part, 64 // part, 1)
    requests, taken, _, worst = banks.wavefronts(lanes * 128, everyone, width)
    assert (requests, taken, worst) == (2, 64, part)
    assert banks.wavefronts(lanes * 0, everyone, width)[3] == 1
    half = lanes < 16
    assert banks.wavefronts(lanes * width, half, width)[0] == 1


def test_sectors_of_strided_accesses() -> None:
    lanes, everyone = np.arange(32), np.ones(32, bool)
    assert banks.sectors(lanes * 4, everyone, 4) == (1, 4, 4, 4)
    assert banks.sectors(lanes * 64, everyone, 4) == (1, 32, 4, 32)
    assert banks.sectors(lanes * 4 + 4, everyone, 4) == (1, 5, 4, 5)


def test_registers_and_shared_memory_bound_what_is_resident() -> None:
    machine = GpuMachine.of_arch("sm_90")
    assert machine is not None
    assert static.resident(machine, 128, 256, 0) == 2
    assert static.resident(machine, 129, 256, 0) == 1
    assert static.resident(machine, 32, 64, 100 * 1024) == 2
    assert static.resident(machine, 16, 32, 0) == 32


SASS = """
		Function : main_kernel
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0020*/                   LDS.128 R8, [R5] ;
        /*0030*/                   FFMA R0, R8, R9, R0 ;
        /*0040*/                   FFMA R1, R8, R9, R1 ;
        /*0050*/              @!P0 BRA `(.L_x_1) ;
        /*0060*/               @P0 BRA 0x20 ;
        /*0070*/                   STG.E.64 [R2.64], R0 ;
        /*0080*/              @P1  BRA P2, 0x0 ;
        /*0090*/                   BRA 0x90 ;
"""


def test_machine_code_is_read() -> None:
    code = sass.read(SASS)["main_kernel"]
    assert code.loop["FFMA"] == 2 and sum(code.loop.values()) == 5
    assert code.share == 0.4 and code.per_load == 2.0
    assert code.widths("LDG") == {16: 1} and code.widths("STG") == {8: 1}
    assert not code.has("HMMA")


def test_what_the_assembler_says_is_read() -> None:
    said = (
        "ptxas info    : Function properties for main_kernel_1\n"
        "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 17408 bytes smem\n"
    )
    assert toolchain.usage_of(said) == {"main_kernel_1": toolchain.Usage(40, 20, 8, 17408)}


def test_tables_name_what_breaks_a_rule() -> None:
    row = main_row(SPOTS["128x128"], with_code=False)
    row |= {"registers": 255, "spills": 8, "stack": 0, "shared_static": 4, "shared_dynamic": 0}
    row |= {"resident": 1, "share": 0.5, "per_load": 4.0, "hmma": False, "set": "chosen"}
    header = {"date": "d", "nvcc": "n", "commit": "c", "flags": "f", "archs": ["sm_80"]}
    said = static_of(tables.cells(header, [row], ["sm_80"]))
    assert "128x128x8 t8x8 packed" in said
    for words in ("spills 8 bytes", "255 registers", "50% of the main loop", "4.0 products"):
        assert words in said
