# SPDX-License-Identifier: Apache-2.0
"""Kernels of bfloat16 whose weights are packed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import tvm

from helpers.cases import Case, geometry_of
from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.kernels import problem_of
from topi_ext.cpu import kernels
from topi_ext.spec.conv import Convolution
from topi_ext.spec.layout import Layouts
from topi_ext.target import host_target

C, T = "conv", "conv_transpose"

BF16 = ("bfloat16",) * 3


CASES = {
    "DCGAN": Case(T, (6, 5), (4, 4), ins=64, outs=48, stride=(2, 2), padding=(1,) * 4),
    "small image": Case(T, (2, 2), (4, 4), n=3, ins=64, outs=40, stride=(2, 2)),
    "channels left over": Case(T, (5, 7), (3, 2), ins=42, outs=19, stride=(2, 3)),
    "few channels": Case(C, (9, 17), (3, 3), ins=6, outs=3, padding=(1,) * 4),
    "phases without taps": Case(T, (4, 5), (2, 2), ins=34, outs=16, stride=(3, 4)),
    "output padding": Case(
        T, (4, 5), (3, 3), ins=32, outs=16, stride=(2, 3), dilation=(3, 1), output_padding=(2, 2)
    ),
    "groups": Case(C, (8, 9), (3, 3), ins=36, outs=40, groups=2, stride=(2, 1), padding=(1,) * 4),
    "dilated": Case(C, (12, 12), (3, 3), ins=32, outs=32, dilation=(3, 2), padding=(3, 2, 3, 2)),
    "cut off": Case(C, (9, 11), (3, 2), ins=16, outs=16, padding=(-1, 0, -2, -3)),
    "1x1": Case(C, (5, 5), (1, 1), n=3, ins=96, outs=64),
    "long": Case(C, (257,), (9,), ins=4, outs=16, stride=(4,), padding=(4, 4)),
    "volume": Case(T, (3, 4, 5), (2, 3, 2), ins=8, outs=34, groups=2, stride=(2,) * 3),
}


def some_block(problem: Convolution, dice: random.Random) -> list[int]:
    """Outer axes are cut first; what is cut leaves blocks that are not full."""
    block = [1, 1, 1, 1]
    for axis in (3, 2, 1, 0):
        block[axis] = dice.randint(1, problem.positions[axis])
        if block[axis] < problem.positions[axis]:
            break
    return block


def stored(case: FaceCase, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """Both operands canonical, and the arguments of a kernel."""
    values = case.arrays(rng)
    out = np.zeros(case.stored_shape(case.roles[2]), numpy_dtype(case.dtypes[2]))
    return values, [*(case.stored(r, v) for r, v in zip(case.roles, values)), out]


class SomeKernels:
    """Kernels by any plan, with their operands, for each of :data:`CASES`."""

    def __init__(
        self,
        plan_of: Callable[[Convolution, random.Random], object],
        rng: np.random.Generator,
        weights: str,
        times: int,
    ):
        self.seed = int(rng.integers(1 << 30))
        dice = random.Random(self.seed)
        self.chosen, self.kernels, self.operands = {}, {}, {}
        for (number, case), some in product(enumerate(CASES.values()), range(times)):
            name = f"f{number}_{some}"
            is_last = case.rank == 2 and (number + some) % 2
            layouts = Layouts("NHWC", "HWIO", "NHWC") if is_last else None
            dtypes = (*BF16[:2], "float32") if dice.random() < 0.3 else BF16
            face = FaceCase(case.op, geometry_of(case), case.n, layouts, dtypes)
            problem = replace(problem_of(face), prepacked=weights == "packed")
            plan = plan_of(problem, dice)
            values, self.operands[name] = stored(face, rng)
            self.chosen[name] = face, values, plan
            self.kernels[name] = kernels.build(problem, plan)
            if problem.prepacked:
                self.operands[name][1] = packed(problem, plan, self.operands[name][1])

    def check(self, results: dict[str, np.ndarray]) -> None:
        """Compare what came of the kernels."""
        for name, (face, values, plan) in self.chosen.items():
            try:
                face.check(results[name], *values)
            except AssertionError as error:
                raise AssertionError(f"seed {self.seed}, {plan}") from error


def packed(problem: Convolution, plan: object, weight: np.ndarray) -> np.ndarray:
    """Weights packed by the kernel's own function, which needs no special instruction."""
    func = kernels.build_packing(problem, plan).with_attr("global_symbol", "pack")
    made = kernels.packed_weights(problem, plan)
    assert made is not None
    elements, dtype = made
    into = tvm.runtime.tensor(np.full(elements, 99, numpy_dtype(dtype)))
    tvm.compile(tvm.IRModule({"pack": func}), host_target())["pack"](
        tvm.runtime.tensor(weight), into
    )
    return into.numpy()


# Large enough that the planner takes the matrix unit.
LARGE = {
    "up": FaceCase(
        T,
        geometry_of(Case(T, (12, 12), (4, 4), ins=128, outs=64, stride=(2, 2), padding=(1,) * 4)),
        1,
        dtypes=BF16,
    ),
    "conv": FaceCase(
        C, geometry_of(Case(C, (14, 14), (3, 3), ins=64, outs=48, padding=(1,) * 4)), 2, dtypes=BF16
    ),
}
