# SPDX-License-Identifier: Apache-2.0
"""Kernels in C: emitted, compiled into a program that runs them on files, and compared."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from topi_ext.cpu.backend import CpuBackend
from topi_ext.cpu.registry import KERNELS
from topi_ext.deploy import c_source, kernel
from topi_ext.deploy.command import RUNTIME
from topi_ext.deploy.kernel import Kernel
from topi_ext.deploy.request import Request, Words, read
from topi_ext.kernel.registry import Refused
from topi_ext.spec.conv import Convolution
from topi_ext.spec.dtypes import byte_width

from . import compare
from .cases import numbers
from .faces import FaceCase

HERE = Path(__file__).parent
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Behind an epilogue, of the largest result: the rounding of the sums and of functions, as the
command line allows a single operator."""

EPILOGUE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


NHWC: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
WORDS = [
    Words("conv", "conv2d", "2x9x14x13", "20x9x3x3", padding="1"),
    Words("up", "conv2d_transpose", "1x32x8x8", "32x16x4x4", stride="2", padding="1",
          epilogue=("bias", "leaky_relu:0.2"), packed=True),
    Words("vocoder", "conv1d_transpose", "1x16x12", "16x8x16", stride="8", padding="4",
          dtype="float16", epilogue=("bias", "silu")),
    Words("volume", "conv3d", "1x3x5x6x7", "4x3x2x3x2", stride="1,2,1", dtype="float64",
          epilogue=("sigmoid",)),
    Words("last", "conv2d", "1x16x8x9", "3x3x16x24", padding="1,0,2,1", dtype="bfloat16",
          packed=True, epilogue=("scale", "bias", "relu"), **{**NHWC, "data_layout": "NCHW"}),
    Words("bytes", "conv2d", "1x9x10x8", "3x3x8x12", dtype="int8", out_dtype="int32", **NHWC),
    Words("depthwise", "conv1d", "2x6x40", "6x1x5", groups=6, dilation="2", packed=True,
          dtype="uint8", out_dtype="int32"),
    Words("turned", "conv3d_transpose", "1x4x3x4x3", "4x6x3x2x3", stride="2", output_padding="1",
          epilogue=("add:NCDHW", "subtract:0.25", "multiply:DW", "tanh")),
    Words("pooled", "conv2d", "1x64x1x1", "40x64x1x1", out_layout="NHWC", packed=True,
          epilogue=("divide:C",)),
    Words("grad", "conv2d_weight_grad", "2x8x12x11", "10x8x3x3", stride="2", padding="1"),
    Words("narrow", "conv2d_weight_grad", "1x8x12x11", "8x1x3x3", groups=8, padding="1",
          dtype="bfloat16", out_dtype="float32"),
    Words("rounded", "conv2d", "1x4x6x7", "5x4x3x3", dtype="float64", out_dtype="float16"),
    Words("upgrad", "conv1d_transpose_weight_grad", "2x6x13", "6x4x3", stride="2", padding="1",
          groups=2, output_padding="1"),
]  # fmt: skip
"""All faces, ranks, steps, packed weights, layouts and dtypes."""


@dataclass(frozen=True)
class CKernel:
    """A request and what was built for it."""

    request: Request
    built: Kernel

    @property
    def name(self) -> str:
        return self.request.words.name

    @property
    def case(self) -> FaceCase:
        r = self.request
        return FaceCase(r.kind, r.geometry, r.n, r.layouts, r.dtypes)

    def write(self, folder: Path) -> None:
        """The files that the command writes."""
        (folder / f"{self.name}.o").write_bytes(self.built.object_file)
        header = c_source.header(self.request, self.built.packed, "tests")
        (folder / f"{self.name}.h").write_text(header)
        text = c_source.source(self.request, self.built.packed, copies=self.built.copies)
        (folder / f"{self.name}.c").write_text(text)

    def row(self) -> tuple[str, str]:
        """Return the call in the driver, and the row of its table."""
        given = [f"p[{i}]" for i in range(len(self.request.arguments))]
        body = f"return {self.name}({', '.join(given)});"
        if self.built.packed:
            size = prod(self.built.packed.shape) * byte_width(self.built.packed.dtype)
            given[1] = "packed"
            body = (
                f"void* packed = malloc({size});\n"
                f"  int status = {self.name}_pack(p[1], packed);\n"
                f"  if (!status) status = {self.name}({', '.join(given)});\n"
                "  free(packed);\n  return status;"
            )
        function = f"static int call_{self.name}(void* const* p) {{\n  {body}\n}}\n"
        sizes = [
            f"{{{prod(a.shape) * byte_width(a.dtype)}, {byte_width(a.dtype)}}}"
            for a in self.request.arguments
        ]
        row = f'{{"{self.name}", call_{self.name}, {len(sizes)}, {{{", ".join(sizes)}}}}}'
        return function, row

    def operands(self, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Canonical operands in the order of the face, and all arguments but the result."""
        values = self.case.arrays(rng)
        stored = [self.case.stored(r, v) for r, v in zip(self.case.roles, values)]
        if self.request.swapped:
            stored.reverse()
        extra = [numbers(rng, a.shape, a.dtype) for a in self.request.arguments[2:-1]]
        return values, stored + extra

    def check(
        self, got: np.ndarray, values: Sequence[np.ndarray], extra: Sequence[np.ndarray]
    ) -> None:
        """Compare a result with PyTorch's in float64."""
        if not self.request.epilogue:
            self.case.check(got, *values, tiled=True)
            return
        layout = getattr(self.request.layouts, self.case.roles[2])
        want = self.case.stored(self.case.roles[2], self.case.want(*values))
        operands = iter(extra)
        for step in self.request.epilogue:
            if step.op == "leaky_relu":
                want = np.where(want < 0, step.value * want, want)
            elif step.op in ("relu", "sigmoid", "silu", "tanh"):
                want = EPILOGUE[step.op](want)
            elif step.order:
                shape = [n if a in step.order else 1 for a, n in zip(layout, want.shape)]
                other = next(operands).astype(np.float64).reshape(shape)
                want = EPILOGUE[step.op](want, other)
            else:
                want = EPILOGUE[step.op](want, step.value)
        error = np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()
        assert error < TOLERANCE[self.case.dtypes[2]], f"{self.request.words}: error {error:.2g}"


def emitted(words: Sequence[Words], target: object) -> list[CKernel]:
    """Kernels, built in this process."""
    requests = [read(one) for one in words]
    return [CKernel(request, kernel.build(request, target)) for request in requests]


def of_family(words: Words, family: str, target: object) -> CKernel | None:
    """One with the fastest plan of this row of the registry; None where it does not serve."""
    request = read(words)
    backend = CpuBackend.of(target)
    assert backend is not None
    machine = backend.machine
    problem = Convolution(
        request.kind, request.geometry.as_rank3(), request.layouts, request.n, request.dtypes
    )
    row = next(row for row in KERNELS if row.name == family)
    if request.kind not in row.kinds:
        return None
    found = row.cheapest(problem, machine)
    if isinstance(found, Refused):
        return None
    func = CpuBackend(machine).build(problem, found[1])
    code = kernel.object_file({words.name: func}, target)
    return CKernel(request, Kernel(code, None, copies=False))


def compiled(
    source: Path,
    folder: Path,
    kernels: Sequence[CKernel],
    threads: str,
    flags: Sequence[str] = (),
    compiler: str = "cc",
) -> Path:
    """A program in C with these kernels, threads of this kind, compiled with these flags."""
    folder.mkdir(exist_ok=True)
    for one in kernels:
        one.write(folder)
    made = folder / source.stem
    parts = [folder / f"{one.name}{end}" for one in kernels for end in (".c", ".o")]
    command = [
        compiler, "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
        *("-D_GNU_SOURCE", f"-DCONV_KERNELS_{threads}", f"-I{RUNTIME}", f"-I{folder}"),
        *(("-fopenmp",) if threads == "OPENMP" else ()), *flags,
        source, RUNTIME / "conv_kernels.c", *parts, "-o", made, "-lm", "-pthread",
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


def driver(
    folder: Path,
    kernels: Sequence[CKernel],
    threads: str,
    flags: Sequence[str] = (),
    compiler: str = "cc",
) -> Path:
    """The program that runs them on files."""
    folder.mkdir(exist_ok=True)
    functions, rows = zip(*(one.row() for one in kernels))
    headers = "".join(f'#include "{one.name}.h"\n' for one in kernels)
    table = f"static const Case cases[] = {{\n{chr(10).join(f'  {row},' for row in rows)}\n}};\n"
    (folder / "cases.h").write_text(headers + "".join(functions) + table)
    return compiled(HERE / "c_driver.c", folder, kernels, threads, flags, compiler)


def check_all(
    made: Path,
    kernels: Sequence[CKernel],
    rng: np.random.Generator,
    *,
    callers: int = 2,
    emulator: Sequence[str] = (),
    **env: str,
) -> None:
    """Run the program and compare every result."""
    folder, values, extra = made.parent, {}, {}
    for one in kernels:
        values[one.name], arrays = one.operands(rng)
        extra[one.name] = arrays[2:]
        for number, array in enumerate(arrays):
            array.tofile(folder / f"{one.name}_{number}.bin")
    done = subprocess.run(
        [*emulator, str(made), str(folder), str(callers)],
        capture_output=True,
        text=True,
        check=False,
        env=env or None,
    )
    # qemu 7 says which version of RISC-V's vectors it takes.
    said = [line for line in done.stderr.splitlines() if "vector version" not in line]
    assert done.returncode == 0 and not said, done.stderr[-4000:]
    for one in kernels:
        result = one.request.arguments[-1]
        file = folder / f"{one.name}_{len(one.request.arguments) - 1}.bin"
        got = np.fromfile(file, compare.numpy_dtype(result.dtype)).reshape(result.shape)
        one.check(got, values[one.name], extra[one.name])
