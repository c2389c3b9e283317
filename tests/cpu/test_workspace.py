# SPDX-License-Identifier: Apache-2.0
"""Workspace of kernels: no more than their operands and result take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.profile import thinned
from support.cases import CASES, KINDS, read_cases
from topi_ext import backend
from topi_ext.cpu.kernels import build
from topi_ext.cpu.machine import CpuMachine
from topi_ext.cpu.select.choose import choose
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts

MACHINES = {
    "AVX-512": CpuMachine(64, 32, fmas=1, threads=2, l2=1 << 20, streams=True),
    "AVX-512 of Intel": CpuMachine(
        64, 32, threads=2, l1=48 << 10, l2=2 << 20, family="emerald_rapids", streams=True
    ),
    "AVX2": CpuMachine(32, 16, threads=2, streams=True),
}
SOME = {
    "bench": slice(None),
    "bench_conv": slice(None),
    # Every third: the rest would take longer than it tells.
    "more_decoders": slice(0, None, 3),
    "more_encoders": slice(0, None, 3),
    "further_decoders": slice(1, None, 3),
    "further_encoders": slice(1, None, 3),
    "small_decoders": slice(2, None, 3),
    "small_encoders": slice(2, None, 3),
    "long_rows": slice(0, None, 2),
    "pyramids": slice(None),
    "random_decoders": slice(1, None, 4),
    "random_encoders": slice(0, None, 4),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MACHINES)
def test_no_more_than_operands_and_result(name: str, kind: str) -> None:
    """Every benchmarked shape, with weights as they come and prepacked."""
    machine, seen = MACHINES[name], 0
    for file, some in SOME.items():
        cases = read_cases(CASES / f"{file}.json")[some]
        # Each is looked at for one of the machines, which differ little in what kernels hold.
        for case in thinned(cases, 3, [*MACHINES].index(name)):
            g = case.geometry_of(kind)
            layouts = Layouts.canonical(g.rank)
            problem = Convolution(kind, g.as_rank3(), layouts, case.n, ("float32",) * 3)
            for prepacked in (False, True)[: 1 + (kind != "conv_weight_grad")]:
                problem = replace(problem, prepacked=prepacked)
                plan = choose(problem, machine)
                kernel = build(problem, plan)
                held = backend.workspace_bytes(kernel, machine.threads)
                assert held <= 4 * problem.elements, (case.name, plan)
                seen += 1
    assert seen > 20
