# SPDX-License-Identifier: Apache-2.0
"""Execution of a compiled part on PyTorch's memory.

Arguments are read in place if they are dense and begin at a multiple of 64 bytes.  Results have the
strides that PyTorch's own would have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
import tvm
from torch.utils import dlpack

from ..aten.strides import Order, restrided
from . import openmp
from .allocation import release as _release
from .executables import Executable
from .known import ByValues

ALIGNMENT = 64
"""Alignment of tensors in bytes that TVM's code expects."""

SIZES_KEPT = 16
"""Number of tuples of sizes after which unused memory is freed."""


class SizeSource(NamedTuple):
    """Source of the value of a symbol: an argument, or an axis of it."""

    argument: int
    axis: int | None


class Operand(NamedTuple):
    """An operand: the number of its argument, and the order in which it is transposed."""

    argument: int
    order: Order | None


class Output(NamedTuple):
    """An output: a result of the compiled function, a function of sizes, or a value."""

    result: int | None = None
    size: Callable[..., Any] | None = None
    value: Any = None


class Result(NamedTuple):
    """A result: the order in which it is transposed, its strides if it is not dense, and whether it
    follows from no operand, so that TVM returns the same constant at each call.
    """

    order: Order | None
    strides: tuple[Callable[..., int], ...] | None
    is_fixed: bool


@dataclass(eq=False)
class CompiledPart:
    """A compiled function of tensors of PyTorch.

    Attributes
    ----------
    name : str
    operands : list of Operand
        Operands; those whose packed form is kept come last.
    static : int
        Number of operands whose packed form is kept.
    known : list of int
        Arguments whose values the compiled function contains.
    sizes : list of SizeSource
        Source of each symbol.
    outputs : list of Output
    results : list of Result
    """

    name: str
    operands: list[Operand]
    static: int
    known: list[int]
    sizes: list[SizeSource]
    outputs: list[Output]
    results: list[Result]

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__module__ = "relax_ext.torch.parts"
        self._seen: set[tuple[int, ...]] = set()
        self.is_loaded = False

    def load(
        self, executables: ByValues, in_pytorch: Callable[[], Any], threads: int | None
    ) -> None:
        """Set the compiled functions, what makes PyTorch's own for sizes and values that they are
        not for, and the number of threads to run on.
        """
        self._executables = executables
        self._in_pytorch = cache(in_pytorch)
        self._threads = threads
        self.is_loaded = True

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the outputs of a subgraph for its inputs."""
        with openmp.team(self._threads):
            return self._run(arguments)

    def _run(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        sizes = tuple(int(_size(arguments, source)) for source in self.sizes)
        executables = self._executables.of([arguments[index] for index in self.known])
        executable = None if executables is None else executables.of(sizes)
        if executable is None:
            outputs: tuple[Any, ...] = self._in_pytorch()(*arguments)
            return outputs
        count = len(self.operands) - self.static
        operands = [ready(arguments[one.argument], one.order) for one in self.operands[:count]]
        given: list[Any] = [self._shape(sizes)] if sizes and executable.is_for_all else []
        given += operands
        if self.static:
            weights = [arguments[one.argument] for one in self.operands[count:]]
            given += executable.weights(weights, self._pack)
        results = self._owned(executable("main", *given), operands, sizes)
        return tuple(
            results[one.result]
            if one.result is not None
            else one.size(*sizes)
            if one.size is not None
            else one.value
            for one in self.outputs
        )

    def _shape(self, sizes: tuple[int, ...]) -> Any:
        """Return all sizes as one argument.

        TVM keeps memory for each size of tensor, so it is freed if there are many sizes.
        """
        if sizes not in self._seen:
            if len(self._seen) >= SIZES_KEPT:
                _release()
                self._seen.clear()
            self._seen.add(sizes)
        return tvm.runtime.ShapeTuple(sizes)

    def _owned(
        self, found: Sequence[Any], operands: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        """Return results with PyTorch's strides, in memory that they do not share."""
        taken = {operand.data_ptr() for operand in operands}
        results = []
        for one, result in zip(found, self.results):
            tensor = one if isinstance(one, torch.Tensor) else dlpack.from_dlpack(one)
            if tensor.numel():
                if tensor.data_ptr() in taken or result.is_fixed:
                    tensor = tensor.clone()
                taken.add(tensor.data_ptr())
            if result.order is not None:
                tensor = tensor.permute(result.order)
            if result.strides is not None:
                tensor = restrided(tensor, [stride(*sizes) for stride in result.strides])
            results.append(tensor)
        return results

    def _pack(self, executable: Executable, weights: Sequence[torch.Tensor]) -> list[Any]:
        operands = self.operands[len(self.operands) - self.static :]
        given = [ready(weight, one.order) for weight, one in zip(weights, operands)]
        return list(executable("main_transform_params", given))


def ready(value: Any, order: Order | None = None) -> torch.Tensor:
    """Return a tensor that compiled code can read: dense, aligned, without a gradient.

    Parameters
    ----------
    value : torch.Tensor or float
    order : tuple of int, optional
        Expected order of its axes in memory.
    """
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=torch.float64)
    tensor = value.detach() if value.requires_grad else value
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if order is not None:
        tensor = tensor.permute(order)
    if not tensor.numel():  # its strides in PyTorch are not compact for TVM
        strides = [prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    if not tensor.is_contiguous():
        return tensor.contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        return tensor.clone()
    return tensor


def _size(arguments: Sequence[Any], source: SizeSource) -> int:
    argument = arguments[source.argument]
    return argument if source.axis is None else argument.shape[source.axis]
