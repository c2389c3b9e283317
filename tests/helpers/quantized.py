# SPDX-License-Identifier: Apache-2.0
"""Kernels of integers with zero points, run and compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm

from helpers.compare import numpy_dtype
from helpers.faces import FaceCase
from helpers.kernels import guarded
from topi_ext.backend import Packing

OPERANDS = [
    (("uint8", "int8", "int32"), (128, 0)),
    (("int8", "int8", "int32"), (-128, 3)),
    (("uint8", "uint8", "int32"), (3, 255)),
    (("int8", "uint8", "int32"), (127, 128)),
    (("uint8", "int8", "uint8"), (0, -7)),
    (("int8", "int8", "int8"), (0, 0)),
]
"""Dtypes and zero points, of which some are as far away as they can be."""


def run(
    kernel: Callable,
    case: FaceCase,
    zero_points: tuple[int, int],
    rng: np.random.Generator,
    packed: tuple[Callable, Packing] | None = None,
) -> None:
    """Run between guards and compare; weights go through the function that packs them, if any."""
    values = case.arrays(rng)
    data, weight = (case.stored(role, v) for role, v in zip(case.roles, values))
    if packed:
        pack, packing = packed
        into = tvm.runtime.tensor(np.full(packing.elements, 99, numpy_dtype(packing.dtype)))
        pack(tvm.runtime.tensor(weight), into)
        weight = into.numpy()
    out, whole = guarded(np.full(case.stored_shape(case.roles[2]), 77, case.dtypes[2]), 55)
    kernel(*(guarded(v, 99)[0] for v in (data, weight)), out)
    case.check(out.numpy(), *(v.astype("float64") - z for v, z in zip(values, zero_points)))
    assert (whole[:64] == 55).all() and (whole[-64:] == 55).all(), f"{case}: wrote outside"
