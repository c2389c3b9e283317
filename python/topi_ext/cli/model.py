# SPDX-License-Identifier: Apache-2.0
"""A loaded model: its module, its inputs and the framework that tells what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topi_ext.cli.door import Choices
from topi_ext.cli.errors import CliError, need


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
    if not path.is_file():
        raise CliError(f"{path}: no such file")
    need("torch", "the command line")
    suffix = path.suffix.lower()
    if suffix not in loaders:
        expected = " or ".join(loaders)
        raise CliError(f"{path}: unknown extension {suffix!r}, expected {expected}")
    if choices.dims and suffix != ".onnx":
        raise CliError(f"--dim is for .onnx models; the inputs of a {suffix} decide its sizes")
    return loaders[suffix](path, choices)


def read_inputs(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Arrays of ``--input NAME=FILE.npy`` options, by name."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for name, file in pairs:
        if name in arrays:
            raise CliError(f"--input {name}: given twice")
        try:
            arrays[name] = np.load(file, allow_pickle=False)
        except FileNotFoundError:
            raise CliError(f"--input {name}={file}: no such file") from None
        except (OSError, ValueError, EOFError):
            raise CliError(f"--input {name}={file}: not a .npy array") from None
        if not isinstance(arrays[name], np.ndarray):
            raise CliError(f"--input {name}={file}: not a .npy array")
    return arrays


def check_names(given: Mapping[str, Any], known: list[str]) -> None:
    """Refuse an input that the model does not have."""
    for name in given:
        if name not in known:
            raise CliError(f"--input {name}: the model's inputs are {', '.join(known)}")
