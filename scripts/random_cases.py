# SPDX-License-Identifier: Apache-2.0
"""Draw shapes that nobody chose: a case file for ``scripts/bench.py``.

``python scripts/random_cases.py OUT.json --op conv_transpose --seed 5 --count 60``; equal arguments
write equal files.  Every size is drawn by itself from what models use, so most combinations are in
none; what takes less than 2 million floating-point operations or more than 1.2 billion is dropped.
"""

from __future__ import annotations

import argparse
import json
import random
from math import prod
from pathlib import Path
from typing import Any

from support.cases import case_of

BATCHES = (1, 1, 1, 2, 4, 8)
CHANNELS = (
    *(1, 2, 3, 4, 8, 12, 16, 20, 24, 32, 32, 48, 64, 64, 96, 128, 128, 160),
    *(192, 256, 320, 384, 512, 768),
)
LENGTHS = (7, 16, 31, 50, 64, 100, 128, 200, 256, 400, 512, 1000, 2048, 4000, 8000)
SIDES = (2, 4, 7, 8, 10, 14, 15, 16, 20, 25, 28, 32, 40, 48, 56, 64, 80, 100, 112, 128)
EDGES = (4, 6, 8, 10, 12, 16)
KERNELS = (1, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9)
STRIDES = (1, 1, 2, 2, 2, 3, 4)
LONG_STRIDES = (4, 4, 5, 5, 6, 8, 10, 14, 16, 16)
SPANS = (1, 1.5, 2, 2, 2.5, 3)
"""Kernels in long strides."""
LONG_LENGTHS = (1000, 2000, 4000, 8000, 16000, 22050, 32000, 48000)
LONG_SIDES = (56, 64, 96, 112, 128, 160, 224, 256)
LEAST, MOST = 2e6, 1.2e9
"""Floating-point operations."""
MOST_ELEMENTS = 4e6
"""Maximum elements of the input, and of the result."""


def drawn(chance: random.Random, op: str) -> dict[str, Any]:
    """One case without a name, which may not exist."""
    rank = chance.choice((1, 2, 2, 2, 2, 3))
    side = chance.choice(SIDES)
    size = {
        1: [chance.choice(LENGTHS)],
        2: [side, side if chance.random() < 0.7 else chance.choice(SIDES)],
        3: [chance.choice(EDGES) for _ in range(3)],
    }[rank]
    kernel = chance.choice(KERNELS if rank < 3 else (2, 2, 3, 3, 4))
    stride = chance.choice(STRIDES)
    dilation = chance.choice((1, 1, 1, 1, 2, 3)) if stride == 1 else 1
    same = (kernel - 1) * dilation // 2
    channels, cout = chance.choice(CHANNELS), chance.choice(CHANNELS)
    groups = chance.choice((2, 4, 8, channels)) if chance.random() < 0.15 else 1
    case = {
        "op": op,
        "x": [chance.choice(BATCHES), channels, *size],
        "cout": channels if groups == channels else cout,
        "kernel": kernel,
        "stride": stride,
        "padding": chance.choice((0, same, same, max(0, kernel - stride) // 2)),
        "dilation": dilation,
        "groups": groups,
    }
    if op == "conv_transpose" and stride > 1 and chance.random() < 0.3:
        case["output_padding"] = 1
    return case


def few_channels(chance: random.Random, op: str) -> dict[str, Any]:
    """One case of few channels and a long stride, such as the first layer of a model of sound or a
    patch embedding, or the last layer of a decoder.
    """
    rank, stride = chance.choice((1, 1, 2)), chance.choice(LONG_STRIDES)
    kernel = int(stride * chance.choice(SPANS))
    length = chance.choice(LONG_LENGTHS if rank == 1 else LONG_SIDES)
    few, many = chance.choice((1, 1, 1, 2, 3, 3, 4)), chance.choice(CHANNELS)
    is_first = op == "conv"
    size = length if is_first else max(1, length // stride)
    padding = chance.choice((0, 0, (kernel - stride) // 2))
    return {
        "op": op,
        "x": [chance.choice((1, 1, 2, 4)), few if is_first else many, *[size] * rank],
        "cout": many if is_first else few,
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": 1,
        "groups": 1,
    }


def is_measured(case: dict[str, Any]) -> bool:
    """Return whether it exists, and takes neither too long nor too short."""
    try:
        one = case_of({**case, "name": "one"}, 0)
    except ValueError:
        return False
    elements = max(prod(one.shape("x")), prod(one.shape("y")))
    return LEAST < 2 * one.products < MOST and elements < MOST_ELEMENTS


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", choices=("conv", "conv_transpose"), default="conv_transpose")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--few-channels", action="store_true", help="with long strides")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    draw, name = (few_channels, "few") if arguments.few_channels else (drawn, "random")
    cases: list[dict[str, Any]] = []
    while len(cases) < arguments.count:
        case = draw(chance, arguments.op)
        if is_measured(case):
            cases.append({"name": f"{name}{arguments.seed}_{len(cases)}", **case})
    lines = ",\n ".join(json.dumps(case) for case in cases)
    arguments.out.write_text(f"[\n {lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
