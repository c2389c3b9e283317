# SPDX-License-Identifier: Apache-2.0
"""Loads TorchScript files, written by ``torch.jit.save``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conv_cli.errors import CliError, quiet
from conv_cli.model import Model, Options, check_names, given_input, random_input
from topi_ext.compat import relay
from topi_ext.notices import one_line

from .bound import bound
from .diagnostics import in_errors


def load(path: Path, options: Options) -> Model:
    """Load a TorchScript file: its inputs have names, but no shapes.

    Raises
    ------
    CliError
        For another kind of file, a missing shape, an incorrect input, or an unsupported operator.
    """
    import torch

    try:
        with quiet():
            module = torch.jit.load(path, map_location="cpu").eval()
    except Exception as error:
        raise CliError(f"{path}: not a TorchScript file: {one_line(error)}") from error
    inputs = _inputs(input_names(module), _dtype(module), options)
    leaves = list(inputs.values())

    def reference() -> list[Any]:
        with torch.inference_mode():
            return _tensors(module(*leaves))

    def exact() -> list[Any]:
        try:
            wide = copy.deepcopy(module).double()
            with torch.inference_mode():
                return _tensors(wide(*(t.double() if t.is_floating_point() else t for t in leaves)))
        except Exception:  # e.g. a dtype written into the graph: its own precision must do
            return reference()

    try:
        reference()
    except Exception as error:
        raise CliError(f"{path.name}: PyTorch stopped: {one_line(error)}") from error
    return Model(path.name, lambda: _to_relay(module, inputs), inputs, reference, exact, "torch")


def input_names(module: Any) -> list[str]:
    """Return the names of a TorchScript module's inputs, as its author wrote them."""
    return [i.debugName().split(".")[0] for i in list(module.graph.inputs())[1:]]


def _to_relay(module: Any, inputs: Mapping[str, Any]) -> Any:
    shapes = [
        (key, (tuple(t.shape), str(t.dtype).removeprefix("torch."))) for key, t in inputs.items()
    ]
    with in_errors():
        mod, params = relay().frontend.from_pytorch(module, shapes)
        return bound(mod, params, inputs)


def _dtype(module: Any) -> Any:
    import torch

    tensors = [*module.parameters(), *module.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)


def _inputs(names: list[str], dtype: Any, options: Options) -> dict[str, Any]:
    """Return a tensor for each input: what is given, or random numbers of the shape that is
    stated.
    """
    import torch

    check_names(options, names)
    generator = torch.Generator().manual_seed(options.seed)
    found: dict[str, Any] = {}
    for name in names:
        if name in options.given:
            array = options.given[name]
            found[name] = given_input(name, array, dtype if array.dtype.kind == "f" else None)
        elif name in options.shapes:
            found[name] = random_input(name, options.shapes[name], dtype, generator)
        else:
            raise CliError(
                f"input {name}: a TorchScript file states no shapes, "
                f"give --shape {name}=1,3,64,64 or --input {name}=FILE.npy"
            )
    return found


def _tensors(result: Any) -> list[Any]:
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result
    return [t for item in items for t in _tensors(item)]
