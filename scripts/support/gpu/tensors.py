# SPDX-License-Identifier: Apache-2.0
"""Operands on the device for this package and for PyTorch, the baselines, and the exact result."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from cuda_emulator.host import Memory
from support import by_torch
from topi_ext.spec.layout import Layouts, permuted

from .requests import Request

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def operands(request: Request, device: str) -> dict[str, Tensor]:
    """Return x, w and y, canonical and normally distributed, or the magnitudes of such numbers;
    channels that are last in memory are so for both.
    """
    rank, dtype = request.geometry.rank, getattr(torch, request.dtype)
    # Drawn on the device, because a CPU would take longer than the rest of the run.
    source = torch.Generator(device).manual_seed(zlib.crc32(request.case.name.encode()))
    placed = {
        role: torch.randn(request.case.shape(role), generator=source, device=device).to(dtype)
        for role in "xwy"
    }
    if request.one_sign:
        placed = {role: one.abs() for role, one in placed.items()}
    if request.channels == "last":
        placed = {role: one.contiguous(memory_format=LAST[rank]) for role, one in placed.items()}
    return placed


def stored(request: Request, role: str, tensor: Tensor) -> Tensor:
    """Return the same memory, with axes in the order in which this package stores them."""
    letters, order = _axes(request, role)
    view = tensor.permute(permuted(order, letters, range(tensor.ndim)))
    # If a size is 1, PyTorch may call any order of axes contiguous.
    return view if view.is_contiguous() else view.contiguous()


def beginning(tensor: Tensor, offset: int) -> Tensor:
    """Return a copy that begins `offset` bytes behind an aligned address."""
    if not offset:
        return tensor
    skipped = offset // tensor.element_size()
    memory = torch.empty(tensor.numel() + skipped, dtype=tensor.dtype, device=tensor.device)
    return memory[skipped:].view(tensor.shape).copy_(tensor)


def result(request: Request, device: str) -> Tensor:
    """Allocate the result, filled with values that no correct result has."""
    shape, dtype = request.stored(request.roles[2]), getattr(torch, request.dtype)
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def canonical(request: Request, out: Tensor) -> Tensor:
    """Return the result with axes in the order of PyTorch."""
    letters, order = _axes(request, request.roles[2])
    return out.permute(permuted(letters, order, range(out.ndim)))


def _axes(request: Request, role: str) -> tuple[str, str]:
    """Return the axes of x, w or y in the order of PyTorch, and as they are stored."""
    canonical = Layouts.canonical(request.geometry.rank)
    return getattr(canonical, role), getattr(request.layouts, role)


def baselines(
    request: Request, placed: Mapping[str, Tensor]
) -> dict[str, tuple[Callable[[], Tensor], bool]]:
    """Return PyTorch's calls by name, each with whether it may use TF32."""
    if not by_torch.states(request.case, request.kind):
        return {}
    call = by_torch.baseline(request.case, request.kind, placed)
    if request.dtype != "float32":
        return {"torch": (call, False)}
    return {"torch": (call, False), "torch_tf32": (call, True)}


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 for all later calls of PyTorch."""
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


def reference(request: Request, placed: Mapping[str, Tensor]) -> Tensor:
    """Return the exact result, in float64 if that takes seconds at most."""
    plain = {role: one.contiguous() for role, one in placed.items()}
    allow_tf32(False)
    # There is no search for algorithms, because each is called once.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        return by_torch.reference(request.case, request.kind, plain)


def memory_of(memory: Iterable[Memory], arguments: Sequence[Tensor], device: str) -> list[Tensor]:
    """Return the memory of a call: its arguments, and new workspaces."""
    return [
        torch.empty(max(1, one.bytes), dtype=torch.uint8, device=device)
        if one.argument is None
        else arguments[one.argument]
        for one in memory
    ]
