# SPDX-License-Identifier: Apache-2.0
"""CUDA C out of what TVM compiled, by its kernels; nothing here needs a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tvm

from .cases import Case

T, C = "conv_transpose", "conv"

RANKS = [
    Case(T, (9,), (4,), ins=8, outs=6, stride=(2,), padding=(1, 1)),
    Case(T, (5, 6), (3, 4), ins=8, outs=6, groups=2, stride=(2, 2), padding=(1, 0, 1, 2)),
    Case(T, (3, 4, 3), (2, 3, 2), ins=4, outs=3, stride=(2, 1, 2), dilation=(1, 2, 1)),
    Case(C, (33,), (5,), ins=8, outs=6, stride=(2,), padding=(2, 2)),
    Case(C, (8, 9), (3, 3), ins=8, outs=6, groups=2, padding=(1, 1, 0, 1), dilation=(1, 2)),
    Case(C, (4, 5, 4), (2, 3, 2), ins=4, outs=3, stride=(1, 2, 1)),
]
GEMM = Case(C, (14, 14), (3, 3), n=4, ins=64, outs=64, padding=(1,) * 4)
SPLIT = Case(C, (7, 7), (3, 3), n=1, ins=512, outs=512, padding=(1,) * 4)
WIDE = Case(C, (28, 28), (3, 3), n=8, ins=128, outs=128, padding=(1,) * 4, data_layout="NHWC")
UP = Case(T, (16, 16), (4, 4), n=1, ins=64, outs=32, stride=(2, 2), padding=(1,) * 4)
DEPTHWISE = Case(C, (16, 16), (3, 3), ins=32, outs=32, groups=32, padding=(1,) * 4)
"""Every rank, forward and transposed; and shapes that choose one kernel or another."""


def target(arch: str = "sm_90") -> tvm.target.Target:
    """The target of GPUs of one architecture."""
    return tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})


class Launch(NamedTuple):
    """One kernel of a source: its name, threads of a block, and text."""

    name: str
    threads: int
    body: str

    @property
    def is_by_default_rules(self) -> bool:
        """Return True if TVM scheduled it: our kernels have blocks along one axis, of at most 512
        threads."""
        return self.threads > 512 or bool(re.search(r"(blockIdx|threadIdx)\.[yz]", self.body))

    @property
    def shares_or_adds_up(self) -> bool:
        """Return True if the kernel is more than element-wise."""
        return "__shared__" in self.body or bool(re.search(r"(\w+\[[^=;]*\]) = \(\1 \+", self.body))


def source(module: Any) -> str:
    """All CUDA of a runtime module, imported ones included."""
    found = dict.fromkeys(_sources(module))
    assert found, "no CUDA in what was compiled"
    return "\n".join(found)


def _sources(module: Any) -> Iterator[str]:
    kind = module.kind if hasattr(module, "kind") else module.type_key
    if kind == "cuda":
        yield module.inspect_source() if hasattr(module, "inspect_source") else module.get_source()
    for other in module.imports if hasattr(module, "imports") else module.imported_modules:
        yield from _sources(other)


def launches(text: str) -> list[Launch]:
    """The kernels that a source defines."""
    heads = list(re.finditer(r"__launch_bounds__\((\d+)(?:, \d+)?\) (\w+)\([^;{]*\) \{", text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [Launch(head[2], int(head[1]), text[head.end() : end]) for head, end in zip(heads, ends)]


def check_ours(text: str, *names: str) -> None:
    """Whatever computes a convolution is a kernel of ours, and each of `names` is there."""
    found = launches(text)
    for name in names:
        assert any(name in launch.name for launch in found), (name, [one.name for one in found])
    named = [one for one in found if "conv" in one.name]
    assert [one.name for one in named if one.is_by_default_rules and one.shares_or_adds_up] == []


def check_compiles(text: str, folder: Path, arch: str = "sm_90") -> None:
    """nvcc takes the source; nothing is checked where there is no nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return
    path = folder / "kernels.cu"
    path.write_text(text)
    made = ["--cubin", "-arch", arch, "-o", str(folder / "out")]
    command = [nvcc, "-std=c++17", "--disable-warnings", *made, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
