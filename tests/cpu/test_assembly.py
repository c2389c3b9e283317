# SPDX-License-Identifier: Apache-2.0
"""LLVM's code of the kernels for processors that this machine may lack: full vectors, no spills."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import tvm

from helpers.assembly import assembly, basic_blocks
from helpers.cases import Case, geometry_of
from helpers.faces import FaceCase
from topi_ext import backend
from topi_ext.spec.conv import Convolution
from topi_ext.spec.matmul import MatMul

# Name: target, a multiply-add of full vectors, a vector stored on the stack, and what of those is
# allowed for each multiply-add of the innermost loop. Arm's multiply-adds take no operand from
# memory, so LLVM loads ahead more than there are registers for.
PROCESSORS = {
    "AVX2": ({"mcpu": "x86-64-v3"}, r"vfmadd\w+ps.*%ymm", r"vmov\w+ %ymm\d+, -?\d*\(%rsp\)", 0.02),
    "AVX-512": (
        {"mcpu": "skylake-avx512"}, r"vfmadd\w+ps.*%zmm", r"vmov\w+ %zmm\d+, -?\d*\(%rsp\)", 0.02,
    ),
    "NEON": (
        {"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"},
        r"fmla.*\.4s", r"(str|stp) q\d+,.*\[sp", 0.2,
    ),
}  # fmt: skip

CONV = Case("conv", (28, 28), (3, 3), n=1, ins=128, outs=128, padding=(1,) * 4)
SMALL = Case("conv", (7, 7), (3, 3), n=1, ins=512, outs=512, padding=(1,) * 4)
UP = Case("conv_transpose", (16, 16), (4, 4), ins=128, outs=64, stride=(2, 2), padding=(1,) * 4)
PYRAMID = CONV.with_(padding=(12,) * 4, dilation=12)
KERNELS = {
    "conv of a pyramid": FaceCase("conv", geometry_of(PYRAMID), 1),
    "conv": FaceCase("conv", geometry_of(CONV), 1),
    "conv of a small image": FaceCase("conv", geometry_of(SMALL), 1),
    "conv_transpose": FaceCase("conv_transpose", geometry_of(UP), 2),
    "conv_weight_grad": FaceCase("conv_weight_grad", geometry_of(CONV), 1),
}


@cache
def compiled(case: FaceCase, processor: str) -> str:
    """The assembly of its kernel for a processor."""
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **PROCESSORS[processor][0]})
    func = backend.build(
        Convolution.of(case.face, case.geometry, case.orders, case.n, case.dtypes), target
    ).with_attr("global_symbol", "main")
    return assembly(tvm.compile(tvm.IRModule({"main": func}), target))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", KERNELS)
def test_innermost_loop(name: str, processor: str) -> None:
    _, multiply_add, spill, allowed = PROCESSORS[processor]
    text = compiled(KERNELS[name], processor)

    def count(pattern: str, block: list[str]) -> int:
        return sum(re.match(pattern, instruction) is not None for instruction in block)

    hottest = max(basic_blocks(text), key=lambda block: count(multiply_add, block))
    sums = count(multiply_add, hottest)
    assert sums >= 10, "no tile of full vectors"
    spills = count(spill, hottest)
    assert spills <= allowed * sums, f"{spills} vectors spilt in {sums} multiply-adds"


ALIGNED = r"vmov(ap[sd]|dqa\w*|ntp[sd]|ntdq) .*\("
"""A move of a vector that stops where memory is not aligned to its bytes; other instructions of AVX
take any memory."""


@pytest.mark.parametrize("processor", ["AVX2", "AVX-512"])
@pytest.mark.parametrize("name", KERNELS)
def test_arguments_may_begin_at_any_element(name: str, processor: str) -> None:
    """Only the stack, whose alignment LLVM sees to, and constants are taken as aligned."""
    moves = [
        instruction
        for block in basic_blocks(compiled(KERNELS[name], processor))
        for instruction in block
        if re.match(ALIGNED, instruction) and not re.search(r"%(rsp|rbp|rip)", instruction)
    ]
    assert not moves


@pytest.mark.parametrize("processor", PROCESSORS)
def test_far_weights_are_asked_for_while_products_are_summed(processor: str) -> None:
    image = Case("conv_transpose", (4, 4), (4, 4), ins=256, outs=128, stride=(2, 2))
    text = compiled(FaceCase("conv_transpose", geometry_of(image), 1), processor)
    multiply_add, ask = PROCESSORS[processor][1], r"prefetch|prfm"
    blocks = ["\n".join(block) for block in basic_blocks(text)]
    assert any(re.search(multiply_add, block) and re.search(ask, block) for block in blocks)


def conv_of(case: Case, dtype: str = "float32") -> Convolution:
    """The convolution of a case, whose weights come packed."""
    face = FaceCase(case.op, geometry_of(case), 1)
    found = Convolution.of(face.face, face.geometry, face.orders, face.n, (dtype,) * 3)
    return replace(found, prepacked=True)


TWICE = Case("conv_transpose", (14, 14), (2, 2), n=1, ins=256, outs=256, stride=(2, 2))
PRODUCTS = {
    "skylake-avx512": PROCESSORS["AVX-512"][1],
    "sapphirerapids": "tdpbf16ps",
}
"""Their products, by the name of a processor."""
PACKED = {
    "gemm": MatMul(
        (("a", 192), ("b", 768), ("c", 768)), "ab", "bc", "ac", ("float32",) * 3, (), True
    ),
    "direct": conv_of(TWICE),
    "direct_amx": conv_of(SMALL, "bfloat16"),
    "valid_taps": conv_of(SMALL),
    "winograd": conv_of(Case("conv", (16, 16), (3, 3), n=1, ins=256, outs=256, padding=(1,) * 4)),
    "direct, few": conv_of(TWICE.with_(ins=64, outs=64)),
}
"""By kernel: weights that a model reads from memory, and some that are too few to prefetch."""


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_are_prefetched_while_products_are_summed(name: str) -> None:
    processor = "sapphirerapids" if name == "direct_amx" else "skylake-avx512"
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": processor})
    func = backend.build(PACKED[name], target).with_attr("global_symbol", "main")
    text = assembly(tvm.compile(tvm.IRModule({"main": func}), target))
    blocks = ["\n".join(block) for block in basic_blocks(text)]
    asks = [block for block in blocks if "prefetcht1" in block]
    assert any(re.search(PRODUCTS[processor], block) for block in asks) == ("few" not in name)
