# SPDX-License-Identifier: Apache-2.0
"""Loads ``.pt2`` files, written by ``torch.export.save``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conv_cli.adapter import Choices
from conv_cli.errors import CliError, one_line, quiet
from conv_cli.model import Model, check_names, given_input, random_input


def to_relax(exported: Any, *, keep_params: bool = False) -> Any:
    """Relax module of an exported program, by TVM's importer with our corrections."""
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(
        exported,
        keep_params_as_input=keep_params,
        unwrap_unit_return_tuple=True,
    )


def read(path: Path) -> Any:
    """The exported program in a file."""
    import torch

    try:
        with quiet():
            return torch.export.load(path)
    except Exception as error:
        unsaid = "warnings above" in str(error)  # logged, with a traceback
        reason = "torch cannot read all of it" if unsaid else one_line(error)
        raise CliError(f"{path}: not a torch.export file: {reason}") from error


def example_leaves(exported: Any) -> list[Any]:
    """The user inputs as one flat list: the examples saved with the program, or their like."""
    from torch.utils import _pytree as pytree

    if exported.example_inputs is not None:
        args, kwargs = exported.example_inputs
        return list(pytree.tree_leaves((args, kwargs)))
    names = set(exported.graph_signature.user_inputs)
    return [
        n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names
    ]


def choose_inputs(exported: Any, given: Mapping[str, Any], seed: int) -> tuple[dict, list]:
    """Inputs by name (tensors alone), and all user inputs as the flat list that the model takes."""
    import torch

    names = list(exported.graph_signature.user_inputs)
    leaves = example_leaves(exported)
    check_names(given, [str(n) for n, v in zip(names, leaves) if is_tensor(v)])
    metas = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    flat: list[Any] = []
    for name, leaf in zip(names, leaves):
        if not is_tensor(leaf):
            flat.append(leaf)
            continue
        if name in given:
            value = _given(name, given[name], leaf, metas.get(name))
        elif leaf.dtype.is_floating_point or not hasattr(leaf, "clone"):
            shape = tuple(int(d) for d in leaf.shape)
            value = random_input(name, shape, leaf.dtype, generator)
        else:
            value = leaf  # integers may be indices: only the saved example is known to be valid
        tensors[name] = value
        flat.append(value)
    return tensors, flat


def _given(name: str, array: Any, leaf: Any, meta: Any) -> Any:
    wanted = tuple(meta.shape if meta is not None else leaf.shape)
    fits = len(wanted) == array.ndim and all(
        not isinstance(w, int) or w == g for w, g in zip(wanted, array.shape)
    )
    if not fits:
        shown = ", ".join(str(w) for w in wanted)
        raise CliError(f"--input {name}: shape {array.shape} does not fit the model's ({shown})")
    return given_input(name, array, leaf.dtype)


def load(path: Path, choices: Choices) -> Model:
    """Load a ``.pt2`` file.

    Raises
    ------
    CliError
        In one line: not such a file, wrong input, gap of the importer.
    """
    exported = read(path)
    inputs, flat = choose_inputs(exported, choices.given, choices.seed)
    return from_exported(exported, inputs, flat, path.name)


def from_exported(exported: Any, inputs: dict, flat: list, name: str) -> Model:
    """A model from an exported program and its inputs (by name, and as a flat list)."""
    import torch

    try:
        with quiet():
            mod = to_relax(exported)
    except Exception as error:
        raise CliError(f"{name}: TVM's importer stopped: {one_line(error)}") from error

    module = exported.module()

    def reference() -> list[Any]:
        with torch.inference_mode():
            return call(module, exported, flat)

    def exact() -> list[Any]:
        try:
            wide, leaves = widened(module, flat)
            with torch.inference_mode():
                return call(wide, exported, leaves)
        except Exception:  # e.g. a dtype written into the graph: its own precision must do
            return reference()

    try:
        reference()
    except Exception as error:
        raise CliError(f"{name}: PyTorch stopped: {one_line(error)}") from error
    return Model(name, mod, inputs, reference, exact, "torch", exported=exported, leaves=flat)


def call(module: Any, exported: Any, leaves: list[Any]) -> list[Any]:
    """Run ``exported.module()`` on the flat list of its arguments; the tensors of its result."""
    import torch
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    result = module(*args, **kwargs)
    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def widened(module: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
    """A float64 copy of a module, and of its arguments."""
    wide = [v.double() if is_floating(v) else v for v in leaves]
    return copy.deepcopy(module).double(), wide


def is_floating(value: Any) -> bool:
    """Whether this is a tensor of floating-point numbers."""
    return is_tensor(value) and value.dtype.is_floating_point


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor."""
    import torch

    return isinstance(value, torch.Tensor)
