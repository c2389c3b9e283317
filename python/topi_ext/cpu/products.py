# SPDX-License-Identifier: Apache-2.0
"""Instructions that multiply numbers that share 32 bits, and add the products: one row each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..spec.conv import BYTE_RANGES, Convolution
from ..spec.matmul import MatMul


@dataclass(frozen=True)
class Product:
    """One instruction.

    Attributes
    ----------
    name : str
    size : int
        Numbers in 32 bits.
    data, weights : str
        Dtypes of the numbers that it multiplies.
    """

    name: str
    size: int
    data: str
    weights: str

    @property
    def is_float(self) -> bool:
        """Return whether it multiplies fractions."""
        return self.data == "bfloat16"

    def fits(self, problem: Convolution | MatMul) -> bool:
        """Return whether it multiplies weights, less their zero point, and data of these dtypes.

        Data of 8 bits may be of the other signedness, by an offset.
        """
        if self.is_float:
            return problem.has_pairs
        if problem.acc_dtype != "int32" or not set(problem.dtypes[:2]) <= set(BYTE_RANGES):
            return False
        if self.weights == "int16":
            return True
        low, high = (limit - problem.zero_points[1] for limit in BYTE_RANGES[problem.dtypes[1]])
        least, most = BYTE_RANGES[self.weights]
        return least <= low and high <= most

    def shift_of(self, dtype: str) -> int:
        """Return the offset, modulo 256, that converts data to its signedness."""
        return 128 if self.size == 4 and dtype != self.data else 0

    def zero_of(self, problem: Convolution | MatMul) -> int:
        """Return the zero point of data as an instruction for bytes takes them; of others zero:
        they are less it.
        """
        if self.size == 2:
            return 0
        sign = 1 if self.data == "uint8" else -1
        return problem.zero_points[0] + sign * self.shift_of(problem.dtypes[0])


def _by_name(*rows: tuple[str, int, str, str]) -> dict[str, Product]:
    return {row[0]: Product(*row) for row in rows}


DOTS = _by_name(
    ("dpbf16ps", 2, "bfloat16", "bfloat16"),
    ("pmaddwd", 2, "int16", "int16"),
    ("vpdpbusd", 4, "uint8", "int8"),
    ("sdot", 4, "int8", "int8"),
    ("udot", 4, "uint8", "uint8"),
    ("usdot", 4, "uint8", "int8"),
)
"""Products of vectors, by name."""

TILE_DOTS = _by_name(
    ("tdpbf16ps", 2, "bfloat16", "bfloat16"),
    ("tdpbssd", 4, "int8", "int8"),
    ("tdpbsud", 4, "uint8", "int8"),
    ("tdpbusd", 4, "int8", "uint8"),
    ("tdpbuud", 4, "uint8", "uint8"),
)
"""Products of tiles of a matrix unit, by name: weights are the left factor."""

DATA_FIRST = {"tdpbsud": "tdpbusd", "tdpbusd": "tdpbsud"}
"""Names of those whose factors differ where data are the left one."""


def tile_dot_of(problem: Convolution | MatMul) -> Product | None:
    """Return the instruction for tiles of these dtypes, or none."""
    fitting: Iterable[Product] = (dot for dot in TILE_DOTS.values() if dot.fits(problem))
    return next((dot for dot in fitting if dot.data == problem.dtypes[0]), None)
