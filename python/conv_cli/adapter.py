# SPDX-License-Identifier: Apache-2.0
"""Interface of an adapter to the command line: its IR, and the files that it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from topi_ext.kernel.info import KernelInfo
from topi_ext.tuning.rpc import Board

from .measure import Protocol, Side, side, timed
from .model import Model, Options
from .operators import Operator
from .usage import Usage


@dataclass(frozen=True)
class Ran:
    """One call of a compiled function.

    Attributes
    ----------
    symbol : str
        Its name in the compiled module.
    shapes : tuple of tuple of int
        Shapes of its tensors, in order: operands, then results.
    ns : int
    """

    symbol: str
    shapes: tuple[tuple[int, ...], ...]
    ns: int


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
        ``load(path, options) -> Model`` by file extension; errors are ``CliError``.
    registry : module
        The adapter's own, with ``stock`` and ``registered``.
    pipeline : str
        The adapter's way to compile whole models, for the table; empty where it has none.
    adjoint : str
        The function of :meth:`differentiated` that computes gradients.
    """

    usage: Usage
    tvm_packages: tuple[str, ...]
    loaders: Mapping[str, Callable[[Path, Options], Model]]
    registry: ModuleType
    pipeline: str = ""
    adjoint: str = "main"

    @property
    def package(self) -> str:
        """Name of the adapter."""
        return self.usage.package

    def kernels(self, module: Any, target: Any) -> tuple[list[KernelInfo], list[str]]:
        """Return the kernels of this package that a module is compiled to, one for each function,
        and the names of the functions that TVM computes; of adapters that take ``--profile``."""
        raise NotImplementedError

    @abstractmethod
    def why_nothing_is_kept(self, target: Any) -> str | None:
        """Return why code for a target is neither kept nor found, or None where it is."""

    def registered(self) -> dict[str, bool]:
        """TVM's operators, and whether their rules are ours now."""
        return self.registry.registered()

    def stock(self) -> AbstractContextManager[Any]:
        """Stock TVM inside the block."""
        return self.registry.stock()

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
    def differentiated(self, op: Operator) -> Any:
        """A module whose function :attr:`adjoint` computes, of ``x``, ``w`` and ``dy``, both
        gradients of ``sum(op * dy)``."""

    @abstractmethod
    def gradients(self, result: Any) -> Any:
        """The gradients in a result of that function."""

    def attempt(
        self,
        makes: tuple[Callable[[], Any], Callable[[], Any]],
        tensors: list[Any],
        expected: list[Any],
        protocol: Protocol,
        **options: Any,
    ) -> tuple[Side, Side]:
        """Compile and run the modules of ``makes`` by stock TVM and by ours; see
        :func:`conv_cli.measure.side`.
        """
        both: tuple[AbstractContextManager[Any], ...] = (self.stock(), nullcontext())
        stock, ours = (
            side(self.compile, rules, make, tensors, expected, protocol, **options)
            for rules, make in zip(both, makes)
        )
        return stock, ours

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
