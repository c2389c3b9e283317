# SPDX-License-Identifier: Apache-2.0
"""Loads ``.pt2`` files, written by ``torch.export.save``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from conv_cli.adapter import Choices
from conv_cli.errors import CliError, quiet
from conv_cli.model import Model, check_names, chosen_shape, given_input, random_input
from topi_ext.notices import one_line


def to_relax(exported: Any, *, keep_params: bool = False) -> Any:
    """Relax module of an exported program, by TVM's importer as it is registered now."""
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(
        exported,
        keep_params_as_input=keep_params,
        unwrap_unit_return_tuple=True,
    )


def read(path: Path) -> Any:
    """Return the exported program in a file."""
    import torch

    try:
        with quiet():
            return torch.export.load(path)
    except Exception as error:
        unsaid = "warnings above" in str(error)  # logged, with a traceback
        reason = "torch cannot read all of it" if unsaid else one_line(error)
        raise CliError(f"{path}: not a torch.export file: {reason}") from error


def example_leaves(exported: Any) -> list[Any]:
    """Return the user inputs as one flat list: the examples saved with the program, or their
    like.
    """
    from torch.utils import _pytree as pytree

    if exported.example_inputs is not None:
        args, kwargs = exported.example_inputs
        return list(pytree.tree_leaves((args, kwargs)))
    names = set(exported.graph_signature.user_inputs)
    return [
        n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names
    ]


def choose_inputs(exported: Any, choices: Choices) -> tuple[dict[str, Any], list[Any]]:
    """Return the inputs by name (tensors alone), and all user inputs as the flat list that the
    model takes.
    """
    import torch

    names = list(exported.graph_signature.user_inputs)
    leaves = example_leaves(exported)
    check_names(choices, [str(n) for n, v in zip(names, leaves) if is_tensor(v)])
    metas = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    generator = torch.Generator().manual_seed(choices.seed)
    tensors: dict[str, Any] = {}
    flat: list[Any] = []
    for name, leaf in zip(names, leaves):
        if not is_tensor(leaf):
            flat.append(leaf)
            continue
        meta = metas.get(name)
        shape = chosen_shape(name, (leaf if meta is None else meta).shape, choices)
        if name in choices.given:
            value = given_input(name, choices.given[name], leaf.dtype)
        elif shape or leaf.dtype.is_floating_point or not hasattr(leaf, "clone"):
            shape = shape or tuple(int(d) for d in leaf.shape)
            value = random_input(name, shape, leaf.dtype, generator)
        else:
            value = leaf  # integers may be indices: only the saved example is known to be valid
        tensors[name] = value
        flat.append(value)
    return tensors, flat


def load(path: Path, choices: Choices) -> Model:
    """Load a ``.pt2`` file.

    Raises
    ------
    CliError
        For another kind of file, an incorrect input, or an unsupported operator.
    """
    exported = read(path)
    inputs, flat = choose_inputs(exported, choices)
    return from_exported(exported, inputs, flat, path.name)


def from_exported(exported: Any, inputs: dict[str, Any], flat: list[Any], name: str) -> Model:
    """Return a model from an exported program and its inputs (by name, and as a flat list)."""
    import torch

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
    return Model(
        name,
        lambda: to_relax(exported),
        inputs,
        reference,
        exact,
        "torch",
        exported=exported,
        leaves=flat,
    )


def call(module: Any, exported: Any, leaves: list[Any]) -> list[Any]:
    """Run ``exported.module()`` on the flat list of its arguments; the tensors of its result."""
    import torch
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    result = module(*args, **kwargs)
    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def widened(module: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
    """Return a float64 copy of a module, and of its arguments."""
    wide = [v.double() if is_floating(v) else v for v in leaves]
    return copy.deepcopy(module).double(), wide


def is_floating(value: Any) -> bool:
    """Return whether this is a tensor of floating-point numbers."""
    return is_tensor(value) and value.dtype.is_floating_point


def is_tensor(value: Any) -> bool:
    """Return whether this is a torch tensor."""
    import torch

    return isinstance(value, torch.Tensor)
