# SPDX-License-Identifier: Apache-2.0
"""A loaded model: its Relax module, its inputs and the framework that tells what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_ext.cli.errors import CliError, need
from topi_ext import tvm_compat


@dataclass
class Model:
    """One model, ready to be compiled and compared.

    Attributes
    ----------
    name : str
        File name.
    mod : tvm.IRModule
        Relax module, weights bound; the parameters of ``main`` are ``inputs``, in order.
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


def bind_sizes(mod: Any, inputs: Mapping[str, Any]) -> Any:
    """Replace every symbolic size of ``main`` by its value for these inputs, main's first ones."""
    from tvm import relax

    sizes: dict[str, int] = {}
    for param, value in zip(mod["main"].params, inputs.values()):
        for dim, size in zip(tvm_compat.type_of(param).shape, value.shape):
            if hasattr(dim, "name"):
                sizes[str(dim.name)] = int(size)
    return relax.transform.BindSymbolicVars(sizes)(mod) if sizes else mod


def load(
    path: Path,
    given: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    seed: int = 0,
    threads: int | None = None,
) -> Model:
    """Load a ``.pt2`` or ``.onnx`` file.

    Parameters
    ----------
    path : Path
    given : mapping of str to numpy.ndarray, optional
        Inputs by name; the others are random.
    dims : mapping of str to int, optional
        Free sizes of an ``.onnx`` model.
    seed : int
    threads : int, optional
        Threads of the reference.

    Raises
    ------
    CliError
        In one line: no such file, unknown extension, wrong input, gap of the importer.
    """
    if not path.is_file():
        raise CliError(f"{path}: no such file")
    need("torch", "relax_ext's command line")
    suffix = path.suffix.lower()
    if suffix == ".pt2":
        if dims:
            raise CliError("--dim is for .onnx models; the inputs of a .pt2 decide its sizes")
        from relax_ext.cli import torch_model

        return torch_model.load(path, given or {}, seed)
    if suffix == ".onnx":
        from relax_ext.cli import onnx_model

        return onnx_model.load(path, given or {}, dims or {}, seed, threads)
    raise CliError(f"{path}: unknown extension {suffix!r}, expected .pt2 or .onnx")


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


def random_tensor(shape: tuple[int, ...], dtype: Any, generator: Any) -> Any:
    """Normal numbers, small integers or booleans of the given torch dtype."""
    import torch

    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low = 0 if dtype == torch.uint8 else -4
    return torch.randint(low, 5, shape, generator=generator).to(dtype)
