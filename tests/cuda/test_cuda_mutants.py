# SPDX-License-Identifier: Apache-2.0
"""That the emulator sees what it is there for: kernels of ours with one thing left out.

A mutant lacks one barrier, one wait for copies, or one part of one condition.  Each must end in a
fault or in a wrong result, but for those listed as harmless, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cuda_emulator
from helpers.cases import Case, geometry_of
from helpers.emulated import BACKEND, emulated, problem_of, result_of
from helpers.faces import FaceCase
from topi_ext.cuda.plan.implicit_gemm import GemmPlan, Tile
from topi_ext.cuda.plan.implicit_gemm_mma import MmaPlan
from topi_ext.cuda.plan.wgrad_direct import WgradDirectPlan
from topi_ext.cuda.plan.wgrad_gemm import WgradGemmPlan
from topi_ext.cuda.plan.wgrad_mma import WgradMmaPlan
from topi_ext.layout import Layouts

# Every tile has a tail, and every edge an image beyond which something else lies.
SMALL = Case("conv_transpose", (7, 6), (3, 3), n=1, ins=9, outs=10, stride=(2, 2), padding=(1,) * 4)
WIDE = Case("conv_transpose", (7, 6), (3, 3), n=1, ins=64, outs=24, stride=(2, 2), padding=(1,) * 4)
LAST = Layouts("NHWC", "OHWI", "NHWC")
HALVES = ("float16",) * 3


def face(name: str, case: Case, **more: object) -> FaceCase:
    return FaceCase(name, geometry_of(case), case.n, **more)


KERNELS = {
    "gemm": (face("conv_transpose", SMALL), GemmPlan(Tile(32, 32, 8), 4, 2)),
    "gemm packed and split": (
        face("conv", SMALL), GemmPlan(Tile(32, 32, 8, 2), 4, 2, packed=True)),
    "mma by copies": (
        face("conv_transpose", WIDE, layouts=LAST, dtypes=HALVES), MmaPlan(Tile(64, 64, 16), 2, 2)),
    "mma by registers": (
        face("conv", WIDE, dtypes=HALVES), MmaPlan(Tile(64, 64, 16), 2, 2, stages=2)),
    "wgrad": (face("conv_weight_grad", SMALL), WgradGemmPlan(Tile(32, 32, 8, 2), 4, 2)),
    "wgrad by copies": (
        face("conv_weight_grad", WIDE, layouts=LAST, dtypes=HALVES),
        WgradMmaPlan(Tile(64, 64, 16), 2, 2)),
    "wgrad by registers": (
        face("conv_weight_grad", WIDE, dtypes=HALVES), WgradMmaPlan(Tile(64, 64, 16), 2, 2)),
    "wgrad of few channels": (face("conv_weight_grad", SMALL), WgradDirectPlan(2, 1, 1)),
}  # fmt: skip


def survives(case: FaceCase, func: object, mutant: str) -> bool:
    """Whether nothing shows, in three orders of threads."""
    try:
        run = emulated(func, edit=lambda _: mutant)
        a, b = case.arrays(np.random.default_rng(0))
        operands = [case.stored(role, array) for role, array in zip(case.roles, (a, b))]
        for order in (0, 1, 2):
            case.check(result_of(run, case, operands, order), a, b)
    except (cuda_emulator.Fault, AssertionError):
        return False
    return True


def without(source: str, pattern: str) -> Iterator[tuple[str, str]]:
    """For every match, its line and the source without it."""
    for found in re.finditer(pattern, source):
        line = source.count("\n", 0, found.start())
        yield f"{line}: {found[0]}", source[: found.start()] + ";" + source[found.end() :]


def body_of(source: str) -> int:
    """Where what TVM writes begins: before it are functions of ours, and its own."""
    return source.index('extern "C" __global__')


def conditions(source: str) -> Iterator[tuple[str, str]]:
    """For every part of every condition of an ``if``, the source where it always holds."""
    for found in re.finditer(r"\n( *)if \((.*)\) \{\n", source):
        if found.start() < body_of(source):
            continue
        for part in parts_of(found[2]):
            at = found.start(2) + found[2].index(part)
            yield f"{part}", source[:at] + "true" + source[at + len(part) :]


def parts_of(condition: str) -> list[str]:
    """What is joined by ``&&``, outermost brackets aside."""
    while condition.startswith("(") and _closes(condition) == len(condition) - 1:
        condition = condition[1:-1]
    depth, start, parts = 0, 0, []
    for at, letter in enumerate(condition):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and condition.startswith("&&", at):
            parts.append(condition[start:at].strip())
            start = at + 2
    parts.append(condition[start:].strip())
    if len(parts) == 1:
        return parts
    return [inner for part in parts for inner in parts_of(part)]


def _closes(text: str) -> int:
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return at
    return len(text)


def survivors(name: str, mutants: list[tuple[str, str]]) -> list[str]:
    case, plan = KERNELS[name]
    func = BACKEND.build(problem_of(case), plan)
    with ThreadPoolExecutor(2) as pool:
        lives = list(pool.map(lambda mutant: survives(case, func, mutant[1]), mutants))
    return [label for (label, _), live in zip(mutants, lives) if live]


def source_of(name: str) -> str:
    case, plan = KERNELS[name]
    run = emulated(BACKEND.build(problem_of(case), plan))
    a, b = case.arrays(np.random.default_rng(0))
    case.check(result_of(run, case, [case.stored(r, v) for r, v in zip(case.roles, (a, b))]), a, b)
    return run.source


@pytest.mark.parametrize("name", KERNELS)
def test_every_barrier_and_wait_is_needed(name: str) -> None:
    source = source_of(name)
    calls = r"__syncthreads\(\);|(?<=\n) *topi_wait\d\(\);"
    mutants = list(without(source, calls))
    assert mutants
    print(name, len(mutants))
    assert survivors(name, mutants) == []


@pytest.mark.parametrize("name", ["gemm", "mma by copies"])
def test_every_condition_is_needed(name: str) -> None:
    mutants = list(conditions(source_of(name)))
    assert mutants
    print(name, len(mutants))
    left = survivors(name, mutants)
    print("\n".join(left))
    assert len(left) == 0
