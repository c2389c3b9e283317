# SPDX-License-Identifier: Apache-2.0
"""A loaded model: its module, its inputs and the framework that computes the reference."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topi_ext.notices import one_line, printable
from topi_ext.tuning.rpc import Board

from .errors import CliError, NotImportedError, need, no_output, quiet
from .files import check_model
from .operators import random_tensor


@dataclass(frozen=True)
class Options:
    """Options of the command line; see ``--help``.

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
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    grad: bool = False
    target: str | None = None
    threads: int = 1
    repeat: int = 10
    budget: float = 2.0
    seed: int = 0
    tolerance: float = 1.0
    board: Board | None = None


@dataclass
class Model:
    """One model, ready to be compiled and compared.

    Attributes
    ----------
    name : str
        File name.
    convert : callable
        ``convert() -> tvm.IRModule``: what TVM's public importer makes of the model as it is
        registered now, weights bound; ``main`` takes ``inputs``, in order.
    inputs : dict of str to torch.Tensor
    reference : callable or None
        ``reference() -> list of torch.Tensor``: the outputs of the model's own framework, in its
        own dtype. This is what is timed. None where the framework is not installed.
    exact : callable or None
        The outputs in float64 if the framework supports it, otherwise in the model's dtype.
    framework : str
        ``"torch"``, ``"onnxruntime"``, ``"LiteRT"`` or ``"TensorFlow"``.
    notes : list of str
        Notes about how the model was loaded.
    lacks : str
        What is missing for a reference, if there is none.
    steps : float
        By how much whole numbers that it returns may differ: they are rounded ones if not 0.
    mod : tvm.IRModule
        Result of ``convert`` with the adapter registered.
    exported : torch.export.ExportedProgram, optional
    leaves : list, optional
        All arguments of the exported program, flat: for gradients.
    """

    name: str
    convert: Callable[[], Any]
    inputs: dict[str, Any]
    reference: Callable[[], list[Any]] | None
    exact: Callable[[], list[Any]] | None
    framework: str
    notes: list[str] = field(default_factory=list)
    lacks: str = ""
    steps: float = 0.0
    exported: Any = None
    leaves: list[Any] = field(default_factory=list)
    mod: Any = field(init=False)

    def __post_init__(self) -> None:
        self.name = printable(self.name)
        try:
            self.mod = _imported(self.convert)
        except NotImportedError as error:
            raise CliError(f"{self.name}: TVM's importer stopped: {error}") from None


def _imported(convert: Callable[[], Any]) -> Any:
    """Import a model without the output of TVM's importer.

    Raises
    ------
    NotImportedError
        It stopped.
    """
    with quiet(), no_output():
        try:
            return convert()
        except CliError:
            raise
        except Exception as error:
            reason = one_line(error)
        # Not in the handler: TVM complains of what it drops half made, and drops it with the error.
        gc.collect()
    raise NotImportedError(reason)


def imported_again(convert: Callable[[], Any]) -> Any:
    """Import a model again inside an adapter's ``stock()``.

    Raises
    ------
    NotImportedError
        It stopped.
    """
    try:
        return _imported(convert)
    except (CliError, NotImportedError) as error:
        raise NotImportedError(f"not imported: {error}") from None


def load(
    path: Path, loaders: Mapping[str, Callable[[Path, Options], Model]], options: Options
) -> Model:
    """Load a file by the loader of its extension.

    Raises
    ------
    CliError
        For a missing file, an unknown extension, an incorrect input, or an unsupported operator.
    """
    check_model(path, loaders)
    need("torch", "the command line")
    suffix = path.suffix.lower()
    if options.dims and suffix != ".onnx":
        raise CliError(f"--dim is for .onnx models; of a {suffix}, give the shapes of its inputs")
    return loaders[suffix](path, options)


def check_names(options: Options, known: list[str]) -> None:
    """Raise if the model does not have an input."""
    for option, names in (("--input", options.given), ("--shape", options.shapes)):
        for name in names:
            if name not in known:
                raise CliError(f"{option} {name}: the model's inputs are {', '.join(known)}")


def chosen_shape(
    name: str, stated: Sequence[Any] | None, options: Options
) -> tuple[int, ...] | None:
    """Return the shape of what ``--input`` or ``--shape`` gives for an input, None where neither
    does.

    ``stated`` is the shape in the file: what is no number in it is free; None if it states none.

    Raises
    ------
    CliError
        The shape does not fit what the file states.
    """
    if name in options.given:
        option, shape = "--input", tuple(int(size) for size in options.given[name].shape)
    elif name in options.shapes:
        option, shape = "--shape", options.shapes[name]
    else:
        return None
    if stated is not None and not (
        len(shape) == len(stated)
        and all(not isinstance(s, int) or s == size for s, size in zip(stated, shape))
    ):
        raise CliError(
            f"{option} {name}: shape {shape} does not fit the model's {shown_shape(stated)}"
        )
    return shape


def shape_of_input(name: str, stated: Sequence[Any] | None, options: Options) -> tuple[int, ...]:
    """Return the shape of an input: that of the file, whose free sizes ``--input`` or ``--shape``
    choose.

    Raises
    ------
    CliError
        The shape that is given does not fit, or none is and the file's has free sizes.
    """
    if stated is not None:
        stated = [None if isinstance(size, int) and size < 0 else size for size in stated]
    shape = chosen_shape(name, stated, options)
    if shape is not None:
        return shape
    if stated is None:
        raise CliError(f"input {name}: the file states no shape, give --shape {name}=1,64,64,3")
    if all(isinstance(size, int) for size in stated):
        return tuple(stated)
    sizes = [1] + [64] * (len(stated) - 1)
    example = ",".join(str(s if isinstance(s, int) else like) for s, like in zip(stated, sizes))
    raise CliError(
        f"input {name}: shape {shown_shape(stated)} has free sizes, "
        f"choose them as in --shape {name}={example}"
    )


def shown_shape(stated: Sequence[Any]) -> str:
    """Return a shape as errors show it, free sizes by their names or as ?."""
    return "(" + ", ".join("?" if size is None else str(size) for size in stated) + ")"


def random_or_given(
    name: str, shape: tuple[int, ...], dtype: Any, options: Options, generator: Any
) -> Any:
    """Return an input of a model: the array that is given, or random numbers."""
    if name in options.given:
        return given_input(name, options.given[name], dtype)
    return random_input(name, shape, dtype, generator)


def given_input(name: str, array: Any, dtype: Any) -> Any:
    """Return a given array as a tensor of the model's torch dtype, None for its own.

    Raises
    ------
    CliError
        It is whole numbers for floating-point ones or the reverse, or does not fit.
    """
    import numpy as np
    import torch

    if array.dtype.kind == "f":
        array = array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype, copy=False)
    if dtype is None:
        return torch.from_numpy(array)
    if (array.dtype.kind == "f") != dtype.is_floating_point:
        raise CliError(f"--input {name}: dtype {array.dtype}, the model wants {dtype}")
    if dtype.is_floating_point:
        return torch.from_numpy(array).to(dtype)
    cast = array.astype(torch.empty(0, dtype=dtype).numpy().dtype)
    if not (cast == array).all():
        raise CliError(f"--input {name}: its numbers do not fit into the model's {dtype}")
    return torch.from_numpy(cast)


def random_input(name: str, shape: tuple[int, ...], dtype: Any, generator: Any) -> Any:
    """Random numbers for an input of a model; 0 and 1 where integers may be indices.

    Raises
    ------
    CliError
        They do not fit into this machine's memory.
    """
    import torch

    # Drawn in float64.
    needed, memory = 8 * math.prod(shape), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise CliError(
            f"input {name}: {needed / 1e9:.0f} GB for shape {shape}, "
            f"this machine has {memory / 1e9:.0f}"
        )
    if dtype in (torch.int32, torch.int64):
        return torch.randint(0, 2, shape, generator=generator, dtype=dtype)
    return random_tensor(shape, dtype, generator)
