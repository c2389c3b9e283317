# SPDX-License-Identifier: Apache-2.0
"""Run a compiled part on PyTorch's memory.

Arguments are read where they are, if they are dense and begin at a multiple of 64 bytes; results
have the strides that PyTorch's own would have.  A virtual machine belongs to one thread, so each
thread has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import tvm

from topi_ext.compat import relax

R = relax()

ALIGNMENT = 64
"""Bytes at whose multiples code of TVM expects tensors to begin."""


class SizeSource(NamedTuple):
    """Where the value of a symbol is read: an argument, or an axis of it."""

    argument: int
    axis: int | None


class Output(NamedTuple):
    """An output: a result of the compiled function, a function of sizes, or a value."""

    result: int | None = None
    size: Callable[..., Any] | None = None
    value: Any = None


@dataclass(eq=False)
class Runner:
    """A compiled function of tensors of PyTorch.

    Attributes
    ----------
    name : str
    dynamic, static : list of int
        Arguments that are operands of the function, and those whose packed form is kept.
    sizes : list of SizeSource
        Of each symbol.
    outputs : list of Output
    layouts : list
        By result, the order of its axes in memory; None for their own order.
    memory : list
        By result, what shares memory with what has an equal entry here or in `owners`.
    owners : list
        The same by operand.
    """

    name: str
    dynamic: list[int]
    static: list[int]
    sizes: list[SizeSource]
    outputs: list[Output]
    layouts: list[tuple[int, ...] | None]
    memory: list[Any]
    owners: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__module__ = "relax_ext.torch.parts"
        self._machines = threading.local()
        self._packed: tuple[Any, ...] = (None, None, None)

    def load(self, executable: Any, threads: int | None) -> None:
        """Take the compiled function, and the number of threads to run on."""
        self._executable = executable
        self._threads = threads

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the outputs of a piece for its inputs."""
        use_threads(self._threads)
        machine = self._machine()
        sizes = [
            arguments[source.argument]
            if source.axis is None
            else arguments[source.argument].shape[source.axis]
            for source in self.sizes
        ]
        operands = [ready(arguments[number]) for number in self.dynamic]
        given: list[Any] = [tvm.runtime.ShapeTuple(list(map(int, sizes)))] if sizes else []
        given += operands
        if self.static:
            static = [arguments[number] for number in self.static]
            given += self._weights(machine, static)
        results = self._owned(machine["main"](*given), operands)
        return tuple(
            results[one.result]
            if one.result is not None
            else one.size(*sizes)
            if one.size is not None
            else one.value
            for one in self.outputs
        )

    def _machine(self) -> Any:
        machine = getattr(self._machines, "machine", None)
        if machine is None:
            machine = R.VirtualMachine(self._executable, tvm.cpu())
            self._machines.machine = machine
        return machine

    def _owned(self, found: Sequence[Any], operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return results as PyTorch has them: strides, and memory shared only where it shares."""
        owners = {
            operand.data_ptr(): owner
            for operand, owner in zip(operands, self.owners)
            if operand.numel()
        }
        results = []
        for one, layout, owner in zip(found, self.layouts, self.memory):
            tensor = one if isinstance(one, torch.Tensor) else torch.from_dlpack(one)
            if layout is not None:
                tensor = in_memory_order(tensor, layout)
            elif tensor.numel() and owners.setdefault(tensor.data_ptr(), owner) is not owner:
                tensor = tensor.clone()
            results.append(tensor)
        return results

    def _weights(self, machine: Any, weights: list[torch.Tensor]) -> list[Any]:
        """Return the packed weights, which are kept until a weight is seen to change.

        A tensor of inference mode has no version, so it is packed at every call.
        """
        tracked = not any(weight.is_inference() for weight in weights)
        now = [(weight.data_ptr(), weight._version) for weight in weights] if tracked else None
        seen, packed, _ = self._packed
        if now is None or now != seen:
            packed = list(machine["main_transform_params"]([ready(weight) for weight in weights]))
            # The weights are kept too: the address of one that is freed could be another's.
            self._packed = (now, packed, weights)
        return packed


_threads = threading.local()
_configure = tvm.get_global_func("runtime.config_threadpool")


def use_threads(count: int | None) -> None:
    """Let TVM run on `count` threads in this thread, as many as PyTorch if None.

    TVM takes no more than ``TVM_NUM_THREADS``.
    """
    count = count or torch.get_num_threads()
    if getattr(_threads, "count", None) != count:
        _configure(1, count)
        _threads.count = count


def ready(value: Any) -> torch.Tensor:
    """Return a tensor as compiled code reads it: dense, aligned, without a gradient."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=torch.float64)
    tensor = value.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if not tensor.is_contiguous():
        return tensor.contiguous()
    if tensor.data_ptr() % ALIGNMENT and tensor.numel():
        return tensor.clone()
    return tensor


def in_memory_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a copy whose axes lie in memory in this order, the outermost first."""
    copy = tensor.permute(*order).contiguous()
    return copy.permute(*(order.index(axis) for axis in range(tensor.ndim)))
