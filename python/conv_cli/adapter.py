# SPDX-License-Identifier: Apache-2.0
"""Interface of an adapter to the command line: its IR, and the files that it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topi_ext.tuning.rpc import Board

from .args import Usage
from .measure import Protocol, Side, timed
from .operators import Operator

if TYPE_CHECKING:
    from topi_ext.kernel.info import KernelInfo

    from .model import Model
    from .profiling import Ran


@dataclass(frozen=True)
class Choices:
    """The user's choices about the inputs of a model.

    Attributes
    ----------
    given : mapping of str to numpy.ndarray
        Inputs by name; the others are random.
    dims : mapping of str to int
        Free sizes of an ``.onnx`` model.
    shapes : mapping of str to tuple of int
        Shapes of inputs, for files that do not state them.
    outputs : tuple of str
        Names of the outputs of a graph that does not state them.
    seed : int
    threads : int or None
        Threads of the reference.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    seed: int = 0
    threads: int | None = None


class Compiled(ABC):
    """A compiled function that takes and gives torch tensors."""

    @abstractmethod
    def put(self, tensors: list[Any]) -> Any:
        """Arguments where the function wants them."""

    @abstractmethod
    def run(self, arguments: Any) -> Any:
        """Execute the function once, and return when it has finished."""

    @abstractmethod
    def get(self, result: Any) -> list[Any]:
        """The tensors of a result, in order, as torch tensors."""

    def timed(self, arguments: Any, protocol: Protocol) -> tuple[Any, float]:
        """Return a result, and the milliseconds of the best run; see
        :func:`conv_cli.measure.timed`.
        """
        return timed(lambda: self.run(arguments), protocol)

    def close(self) -> None:  # noqa: B027 (most occupy nothing)
        """Give back what it occupies."""


class Observed(Compiled):
    """A compiled function whose calls can be timed one by one."""

    @abstractmethod
    def observed(
        self, arguments: Any, protocol: Protocol
    ) -> tuple[list[list[Ran]], Mapping[str, str]]:
        """The calls of several runs, behind one that is left out, and the kernels of the package by
        the names of their functions."""


class Adapter(ABC):
    """One adapter.

    Attributes
    ----------
    usage : Usage
        Its command line.
    tvm_packages : tuple of str
        Names of the packages that contain TVM.
    loaders : mapping of str to callable
        ``load(path, choices) -> Model`` by file extension; errors are ``CliError``.
    pipeline : str
        The adapter's way to compile whole models, for the table; empty where it has none.
    """

    usage: Usage
    tvm_packages: tuple[str, ...]
    loaders: Mapping[str, Callable[[Path, Choices], Model]]
    pipeline: str = ""

    @property
    def package(self) -> str:
        """Name of the adapter."""
        return self.usage.package

    def kernels(self, module: Any, target: Any) -> tuple[list[KernelInfo], list[str]]:
        """Return the kernels of this package that a module is compiled to, one for each function,
        and the names of the functions that TVM computes; of adapters that take ``--profile``."""
        raise NotImplementedError

    @abstractmethod
    def host_target(self, threads: int) -> Any:
        """The target of this machine."""

    def why_nothing_is_kept(self, target: Any) -> str | None:
        """Return why code for a target is neither kept nor found, or None where it is; of adapters
        that keep code."""
        raise NotImplementedError

    @abstractmethod
    def registered(self) -> dict[str, bool]:
        """TVM's operators, and whether their rules are ours now."""

    @abstractmethod
    def stock(self) -> AbstractContextManager[Any]:
        """Stock TVM inside the block."""

    @abstractmethod
    def compile(self, module: Any, target: Any, function: str) -> Compiled:
        """Compile a module as its user would."""

    def compile_whole(self, module: Any, target: Any, function: str) -> Compiled:
        """Compile a whole model by the adapter's own pipeline."""
        raise NotImplementedError

    def compile_observed(self, module: Any, target: Any, function: str) -> Observed:
        """Compile a module for profiling."""
        raise NotImplementedError

    def tune(
        self,
        module: Any,
        target: Any,
        database: Path,
        say: Callable[[str], None],
        board: Board | None = None,
    ) -> list[Any]:
        """Measure plans of a model's convolutions, and keep the fastest in a file.

        Returns
        -------
        list
            By kernel; each has ``ms``, ``estimate_ms`` and ``_asdict``.
        """
        raise NotImplementedError

    def on(self, board: Board) -> Adapter:
        """An adapter like this one whose functions run on a board."""
        raise NotImplementedError

    @abstractmethod
    def find(self, model: Model) -> Counter[Operator]:
        """Every different convolution of a model, and how often it occurs."""

    @abstractmethod
    def build(self, op: Operator) -> Any:
        """A module whose ``main(x, w)`` is this operator alone."""

    @abstractmethod
    def check_operator(
        self, op: Operator, protocol: Protocol, seed: int
    ) -> tuple[Side, Side, float]:
        """Compute both gradients of a single operator: stock, ours, and PyTorch's milliseconds."""

    def prepare(self, model: Model) -> Any:
        """Return the model that :meth:`check_model` differentiates; None if only operators are.

        Raises
        ------
        CliError
            The model is not one whose gradients can be checked.
        """
        del model

    def check_model(
        self, model: Model, prepared: Any, protocol: Protocol, seed: int
    ) -> tuple[Side, Side, float]:
        """Gradients of a whole model: stock, ours, PyTorch's milliseconds."""
        raise NotImplementedError
