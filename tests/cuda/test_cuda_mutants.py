# SPDX-License-Identifier: Apache-2.0
"""Mutation tests of the emulator: it has to notice kernels of ours with one statement left out.

A mutant lacks one barrier, one wait for copies, or one part of one condition.  Every one of the
first two must end in a fault or in a wrong result, and all but a few of the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cuda_emulator
from helpers.emulated import BACKEND, SMALL_KERNELS, emulated, problem_of, result_of
from helpers.faces import FaceCase


def survives(case: FaceCase, func: object, mutant: str) -> bool:
    """Return True if the mutant goes unnoticed in three orders of threads."""
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
    unused = idle(source)
    for found in re.finditer(pattern, source):
        if found.start() in unused:
            continue
        line = source.count("\n", 0, found.start())
        yield f"{line}: {found[0]}", source[: found.start()] + ";" + source[found.end() :]


def body_of(source: str) -> int:
    """Return the position after the helper functions that TVM and this package write first."""
    return source.index('extern "C" __global__')


def idle(source: str) -> range:
    """Return where the loop is that runs for tensors that begin at no multiple of 16 bytes: no
    mutant of it shows here."""
    asked = r"\n *topi_begins_at_16\(.*\);\n( *)if \(.*\) \{\n"
    found = re.search(asked, source[body_of(source) :])
    if found is None:
        return range(0)
    start = body_of(source) + found.end()
    other = source.index(f"\n{found[1]}}} else {{\n", start)
    return range(other, source.index(f"\n{found[1]}}}\n", other))


def conditions(source: str) -> Iterator[tuple[str, str]]:
    """For every part of every condition of an ``if``, the source where it always holds."""
    unused = idle(source)
    for found in re.finditer(r"\n( *)if \((.*)\) \{\n", source):
        is_choice = "topi_begins_at_16" in source[: found.start()].rpartition("\n")[2]
        if found.start() < body_of(source) or found.start() in unused or is_choice:
            continue
        for part in parts_of(found[2]):
            at = found.start(2) + found[2].index(part)
            yield f"{part}", source[:at] + "true" + source[at + len(part) :]


def parts_of(condition: str) -> list[str]:
    """Return the operands of ``&&``, without the outermost brackets."""
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
    case, plan = SMALL_KERNELS[name]
    func = BACKEND.build(problem_of(case), plan)
    with ThreadPoolExecutor(2) as pool:
        lives = list(pool.map(lambda mutant: survives(case, func, mutant[1]), mutants))
    return [label for (label, _), live in zip(mutants, lives) if live]


def source_of(name: str) -> str:
    case, plan = SMALL_KERNELS[name]
    run = emulated(BACKEND.build(problem_of(case), plan))
    a, b = case.arrays(np.random.default_rng(0))
    case.check(result_of(run, case, [case.stored(r, v) for r, v in zip(case.roles, (a, b))]), a, b)
    return run.source


@pytest.mark.parametrize("name", SMALL_KERNELS)
def test_every_barrier_and_wait_is_needed(name: str) -> None:
    source = source_of(name)
    calls = r"__syncthreads\(\);|(?<=\n) *topi_wait\d\(\);"
    mutants = list(without(source, calls))
    assert mutants
    assert survivors(name, mutants) == []


HARMLESS = {"gemm": 17, "mma by copies": 8}
"""Number of conditions that may go unnoticed, for these reasons: one always holds here (a phase
that dilation leaves out, an axis of one tap, the last tap of a step of odd number); the value that
it keeps from being read lies within the tensor, and meets zeros or is never stored; the step that
it keeps from being fetched is never used; the table that it keeps from being overrun shares a
larger array."""


@pytest.mark.parametrize("name", HARMLESS)
def test_conditions_are_needed(name: str) -> None:
    mutants = list(conditions(source_of(name)))
    left = survivors(name, mutants)
    print(f"{name}: {len(mutants) - len(left)} of {len(mutants)} caught; not:", *left, sep="\n")
    assert len(left) <= HARMLESS[name]
    assert len(mutants) - len(left) >= 1.5 * HARMLESS[name]
