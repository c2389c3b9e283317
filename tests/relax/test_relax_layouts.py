# SPDX-License-Identifier: Apache-2.0
"""Every layout that an operator can state compiles and is right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

from helpers import build
from helpers.build import check_forward, check_gradients
from helpers.cases import Case, permutations
from helpers.profile import FUZZ

T, C = "conv_transpose", "conv"


def template(op: str, rank: int) -> Case:
    """All sizes differ, so that an axis taken for another is an error or a wrong value."""
    return Case(
        op, (5, 4, 6)[-rank:], (3, 2, 4)[-rank:], n=7, ins=4, outs=6, groups=2,
        stride=(1, 2, 2)[-rank:], padding=(0, 1, 2)[-rank:] + (1, 2, 0)[-rank:],
        output_padding=(0, 1, 0)[-rank:] if op == T else (), dilation=(2, 1, 1)[-rank:],
    )  # fmt: skip


@pytest.mark.parametrize("op", [T, C])
def test_all_layouts_of_one_dimension(op: str, rng: np.random.Generator) -> None:
    """6 x 6 x 6 combinations in a long run, else 36 in which every pair of layouts meets."""
    data, kernel = permutations(op, 1)
    check_forward(
        [
            template(op, 1).with_(data_layout=d, kernel_layout=k, out_layout=data[m])
            for (i, d), (j, k), m in itertools.product(enumerate(data), enumerate(kernel), range(6))
            if FUZZ or m == (i + j) % 6
        ],
        rng,
    )


def selection(op: str, rank: int) -> list[Case]:
    """Every permutation of data, of kernel and of output; of 3-D the whole only in a long run.

    The three walk at different paces, so that they meet in ever new combinations.
    """
    data, kernel = permutations(op, rank)
    total = len(data)
    every = 1 if rank == 2 or FUZZ else 10
    common = {
        2: [("NHWC", "HWIO", "NHWC"), ("NHWC", "HWOI", "NCHW"), ("NCHW", "OHWI", "NHWC"),
            ("CHWN", "IHWO", "CHWN"), ("NHWC", "IOHW", ""), ("NHWC", "OIHW", "")],
        3: [("NDHWC", "DHWIO", "NDHWC"), ("NDHWC", "DHWOI", "NCDHW"), ("NCDHW", "ODHWI", "")],
    }[rank]  # fmt: skip
    walked = [
        (data[i], kernel[(5 * i + 3) % total], data[(7 * i + 11) % total])
        for i in range(0, total, every)
    ]
    return [
        template(op, rank).with_(data_layout=d, kernel_layout=k, out_layout=o)
        for d, k, o in common + walked
    ]


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("op", [T, C])
def test_layouts(op: str, rank: int, rng: np.random.Generator) -> None:
    check_forward(selection(op, rank), rng)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", [T, C])
def test_gradients_in_layouts(op: str, rank: int, rng: np.random.Generator) -> None:
    """A gradient is stored as what it differentiates."""
    if rank == 1:
        data, kernel = permutations(op, 1)
        some = [
            template(op, 1).with_(data_layout=d, kernel_layout=k, out_layout=o)
            for d, k, o in zip(data, kernel[3:] + kernel[:3], data[::-1])
        ]
    else:
        some = selection(op, rank)[: None if FUZZ else (8 if rank == 2 else 5)]
    check_gradients(some, rng)


BLOCKED = {
    "NCHW4c": Case(T, (4, 5), (3, 2), ins=8, outs=12, stride=(2, 1), data_layout="NCHW4c"),
    "NCHW4c to NCHW": Case(
        T, (4, 5), (3, 2), ins=8, outs=3, stride=(2, 1), data_layout="NCHW4c", out_layout="NCHW"
    ),
    "NCHW4c, OIHW4i": Case(
        T, (4, 5), (3, 2), ins=8, outs=4, data_layout="NCHW4c", kernel_layout="OIHW4i"
    ),
    "NCHW4c, IOHW4i2o, NHWC": Case(
        T, (4, 5), (3, 2), ins=8, outs=8, groups=2, data_layout="NCHW4c",
        kernel_layout="IOHW4i2o", out_layout="NHWC",
    ),
    "NHW2wC4c": Case(T, (4, 6), (3, 2), ins=8, outs=8, padding=(0, 0, 0, 1),
                     data_layout="NHW2wC4c", out_layout="NCHW8c"),
    "conv NCHW4c": Case(C, (6, 5), (3, 2), ins=8, outs=8, stride=(2, 1), data_layout="NCHW4c"),
    "conv NCHW4c, OIHW4i8o, NCHW8c": Case(
        C, (6, 5), (3, 2), ins=8, outs=16, data_layout="NCHW4c", kernel_layout="OIHW4i8o",
        out_layout="NCHW8c",
    ),
    "NCW8c": Case(T, (5,), (3,), ins=8, outs=8, data_layout="NCW8c", kernel_layout="IOW8i8o"),
    "NCDHW2c": Case(T, (2, 3, 2), (2, 2, 1), ins=4, outs=2, data_layout="NCDHW2c"),
}  # fmt: skip


def test_blocked_layouts(rng: np.random.Generator) -> None:
    check_forward(list(BLOCKED.values()), rng)


def test_gradients_in_blocked_layouts(rng: np.random.Generator) -> None:
    check_gradients(list(BLOCKED.values()), rng)


@pytest.mark.parametrize("name", ["conv2d", "conv2d_transpose", "conv1d"])
def test_convert_layout_before_our_legalizer(name: str, rng: np.random.Generator) -> None:
    """ConvertLayout rewrites the operators that it knows; what it writes is ours to lower."""
    rank = int(name[4])
    op = T if name.endswith("transpose") else C
    case = Case(op, (6, 5)[:rank], (3, 2)[:rank], ins=4, outs=8, groups=2, stride=(2, 1)[:rank])
    if rank == 1:
        wanted = {"relax.nn.conv1d": ["NWC", "WIO"]}
    else:
        wanted = {f"relax.nn.{name}": ["NHWC", "OHWI" if op == C else "HWOI"]}
    mod = build.forward_module([case])
    converted = relax.transform.ConvertLayout(wanted)(mod)
    if name != "conv1d":
        assert "NHWC" in str(converted)
    vm = build.compiled(converted)
    build.run_forward(vm, "f0", case, rng)


def test_convert_layout_to_nhwc_and_gradients(rng: np.random.Generator) -> None:
    """A model stated in NCHW, converted, then differentiated."""
    case = Case(C, (6, 5), (3, 2), ins=4, outs=8, groups=2, stride=(2, 1), padding=(1, 0, 0, 1))
    convert = relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})
    mod = build.gradient_module([case], transforms=[convert])
    assert all('data_layout="NHWC"' in line for line in str(mod).splitlines() if "conv" in line)
    build.run_gradients(build.compiled(mod), "f0_adjoint", case, rng)


def test_nothing_is_left_for_the_virtual_machine_to_refuse() -> None:
    """After LegalizeOps no operator of ours is left, whatever the layout, target or none."""
    mod = build.forward_module([*selection(T, 2)[:5], *selection(C, 3)[:5], *BLOCKED.values()])
    for target in (None, build.target()):
        with target or tvm.transform.PassContext():
            legal = relax.transform.LegalizeOps()(mod)
        assert "R.nn.conv" not in str(legal) and "relax_ext" not in str(legal)
