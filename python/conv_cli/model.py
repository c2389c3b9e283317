# SPDX-License-Identifier: Apache-2.0
"""A loaded model: its module, its inputs and the framework that tells what is right."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .adapter import Choices
from .errors import CliError, need
from .files import check_model
from .operators import random_tensor


@dataclass
class Model:
    """One model, ready to be compiled and compared.

    Attributes
    ----------
    name : str
        File name.
    mod : tvm.IRModule
        Module of the adapter's IR, weights bound; ``main`` takes ``inputs``, in order.
    inputs : dict of str to torch.Tensor
    reference : callable
        ``reference() -> list of torch.Tensor``: the outputs of the model's own framework, in its
        own dtype. This is what is timed.
    exact : callable
        The same in float64 where the framework can, else in the model's dtype.
    framework : str
        ``"torch"`` or ``"onnxruntime"``.
    notes : list of str
        What loading had to work around.
    exported : torch.export.ExportedProgram, optional
    leaves : list, optional
        All arguments of the exported program, flat: for gradients.
    """

    name: str
    mod: Any
    inputs: dict[str, Any]
    reference: Callable[[], list[Any]]
    exact: Callable[[], list[Any]]
    framework: str
    notes: list[str] = field(default_factory=list)
    exported: Any = None
    leaves: list[Any] = field(default_factory=list)


def load(
    path: Path, loaders: Mapping[str, Callable[[Path, Choices], Model]], choices: Choices
) -> Model:
    """Load a file by the loader of its extension.

    Raises
    ------
    CliError
        In one line: no such file, unknown extension, wrong input, gap of the importer.
    """
    check_model(path, loaders)
    need("torch", "the command line")
    suffix = path.suffix.lower()
    if choices.dims and suffix != ".onnx":
        raise CliError(f"--dim is for .onnx models; the inputs of a {suffix} decide its sizes")
    return loaders[suffix](path, choices)


def check_names(given: Mapping[str, Any], known: list[str]) -> None:
    """Refuse an input that the model does not have."""
    for name in given:
        if name not in known:
            raise CliError(f"--input {name}: the model's inputs are {', '.join(known)}")


def given_input(name: str, array: Any, dtype: Any) -> Any:
    """A given array as a tensor of the model's torch dtype, None for its own.

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
