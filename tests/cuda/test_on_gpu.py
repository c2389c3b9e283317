# SPDX-License-Identifier: Apache-2.0
"""The public interface run on a GPU: the only tests that need one.

    TVM_CUDA_COMPILE_MODE=nvcc python -m pytest tests/cuda/test_on_gpu.py

Everywhere else the same kernels are emulated.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch  # before TVM: its runtime for CUDA finds the CUDA runtime that PyTorch has loaded

if shutil.which("nvcc"):
    # TVM's own way, NVRTC, takes a further package.
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")

import tvm
import tvm_ffi
from tvm import relax

import relax_ext
from helpers import build, cuda
from helpers.cases import Case
from helpers.cuda import DEPTHWISE, GEMM, RANKS, SPLIT, UP, WIDE

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import autoencoder
import models

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available()
    or tvm.get_global_func("device_api.cuda", allow_missing=True) is None,
    reason="no NVIDIA GPU, or TVM's runtime for CUDA is not loaded",
)

CASES = [GEMM, SPLIT, WIDE, UP, DEPTHWISE, *RANKS]
FEW_CHANNELS = Case(
    "conv_transpose", (16, 16), (4, 4), ins=32, outs=3, stride=(2, 2), padding=(1,) * 4
)


def target() -> tvm.target.Target:
    """Return the target of this machine's GPU."""
    major, minor = torch.cuda.get_device_capability()
    return cuda.target(f"sm_{major}{minor}")


class OnGpu:
    """A compiled module whose functions take tensors of the host."""

    def __init__(self, mod: tvm.IRModule, **how: object) -> None:
        self.device = tvm.cuda()
        executable = tvm.compile(mod, target(), **how)
        self._machine = relax.VirtualMachine(executable, self.device)

    def __getitem__(self, name: str) -> object:
        def call(*given: tvm.runtime.Tensor) -> object:
            placed = [tvm.runtime.tensor(one.numpy(), self.device) for one in given]
            return self._machine[name](*placed)

        return call


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_forward(dtype: str, rng: np.random.Generator) -> None:
    cases = [case.with_(dtype=dtype) for case in (*CASES, FEW_CHANNELS)]
    machine = OnGpu(build.forward_module(cases))
    for number, case in enumerate(cases):
        build.run_forward(machine, f"f{number}", case, rng)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients(dtype: str, rng: np.random.Generator) -> None:
    cases = [case.with_(dtype=dtype) for case in (*CASES, FEW_CHANNELS)]
    machine = OnGpu(build.gradient_module(cases))
    for number, case in enumerate(cases):
        build.run_gradients(machine, f"f{number}_adjoint", case, rng)


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    """One kernel for all batches and sizes, larger and smaller than its tiles."""
    sizes = {letter: tvm.tirx.Var(letter.lower(), "int64") for letter in "NHW"}
    machine = OnGpu(build.forward_module([UP], sizes))
    for n, size in ((1, (1, 1)), (3, (7, 40)), (8, (33, 5))):
        build.run_forward(machine, "f0", UP.with_(n=n, size=size), rng)


def test_float32_by_tf32(rng: np.random.Generator) -> None:
    with relax_ext.float32_precision("tf32x3"):
        machine = OnGpu(build.forward_module([GEMM, WIDE]))
    for number, case in enumerate((GEMM, WIDE)):
        build.run_forward(machine, f"f{number}", case, rng)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_tensors_that_begin_anywhere(shift: int, rng: np.random.Generator) -> None:
    """Loads of 16 bytes give way to single ones."""
    executable = tvm.compile(build.forward_module([WIDE]), target())
    machine = relax.VirtualMachine(executable, tvm.cuda())
    data, weight = WIDE.arrays(rng)
    placed = []
    for which, array in enumerate((data, weight)):
        stored = torch.from_numpy(np.ascontiguousarray(WIDE.stored(array, which)))
        room = torch.empty(stored.numel() + shift, device="cuda")
        view = room[shift:].view(stored.shape)
        placed.append(view.copy_(stored))
    got = machine["f0"](*map(tvm_ffi.from_dlpack, placed)).numpy()
    WIDE.check(WIDE.opened(got, 2), data, weight)


@pytest.mark.parametrize("name", models.DECODERS)
def test_decoder(name: str) -> None:
    """A model by the pipeline, with packed weights and epilogues, against PyTorch in float64."""
    from relax_ext.cli.torch_model import to_relax

    model, x = models.make(name)
    module = to_relax(torch.export.export(model, (x,)), keep_params=False)
    machine = OnGpu(module, relax_pipeline=relax_ext.pipeline(target()))
    (got,) = build.run(machine, "main", x.numpy())
    with torch.no_grad():
        want = model.double()(x.double()).numpy()
    # Some dozen layers of sums of thousands of float32.
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


def test_training() -> None:
    """README's autoencoder: each loss of eight steps is PyTorch's."""
    torch.manual_seed(0)
    first, second = autoencoder.Autoencoder(), autoencoder.Autoencoder()
    second.load_state_dict(first.state_dict())
    data = autoencoder.batches(autoencoder.digits(64), 16, 8)
    want = autoencoder.train_torch(first, data, data[0])
    got = autoencoder.train_tvm(second, data, data[0], target())
    # Differences of rounding grow from step to step.
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-4)
    np.testing.assert_allclose(got.reconstructions, want.reconstructions, atol=1e-3)
