# SPDX-License-Identifier: Apache-2.0
"""Loads ``.pt2`` files, written by ``torch.export.save``."""

from __future__ import annotations

import copy
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conv_cli.errors import CliError, quiet
from conv_cli.model import Model, Options, check_names, chosen_shape, given_input, random_input
from topi_ext.notices import one_line


def to_relax(exported: Any, *, keep_params: bool = False) -> Any:
    """Relax module of an exported program, by TVM's importer as it is registered now."""
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(
        exported,
        keep_params_as_input=keep_params,
        unwrap_unit_return_tuple=True,
    )


TRUSTED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""Variable of PyTorch with which all that a file contains is loaded, as ``torch.load`` says."""


def read(path: Path) -> Any:
    """Return the exported program in a file.

    Raises
    ------
    CliError
        It is none, or it contains objects whose loading runs code.
    """
    import torch

    try:
        with quiet(), _tensors_only(path):
            return torch.export.load(path)
    except CliError:
        raise
    except Exception as error:
        unsaid = "warnings above" in str(error)  # logged, with a traceback
        reason = "torch cannot read all of it" if unsaid else one_line(error)
        raise CliError(f"{path}: not a torch.export file: {reason}") from error


@contextmanager
def _tensors_only(path: Path) -> Iterator[None]:
    """Make PyTorch load no pickled objects but tensors and plain data inside the block.

    ``torch.export.load`` itself unpickles whatever the file contains.

    Raises
    ------
    CliError
        The file contains something else.
    """
    if os.environ.get(TRUSTED):
        yield
        return
    if member := next(filter(_is_code, _members(path)), None):
        raise _untrusted(path, member)
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        yield
    except pickle.UnpicklingError as error:
        if kind := re.search(r"GLOBAL (\S+)", str(error)):
            raise _untrusted(path, kind[1]) from error
        raise
    finally:
        del os.environ[_WEIGHTS_ONLY]
        if before is not None:
            os.environ[_WEIGHTS_ONLY] = before


_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def _members(path: Path) -> list[str]:
    """Return the names of the members of an archive, as PyTorch reads them."""
    import torch

    try:
        return list(torch._C.PyTorchFileReader(str(path)).get_all_records())
    except RuntimeError:  # of a release that wrote no such members, or damaged
        return []


def _is_code(member: str) -> bool:
    objects = ("data/constants/custom_obj_", "data/constants/opaque_obj_")
    return member.startswith(("data/aotinductor/", *objects))


def _untrusted(path: Path, what: str) -> CliError:
    rule = "only tensors and plain data are loaded, because others run code"
    return CliError(
        f"{path}: contains {what}: {rule} ({TRUSTED}=1 loads it, if you trust the file)"
    )


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


def choose_inputs(exported: Any, options: Options) -> tuple[dict[str, Any], list[Any]]:
    """Return the inputs by name (tensors alone), and all user inputs as the flat list that the
    model takes.
    """
    import torch

    names = list(exported.graph_signature.user_inputs)
    leaves = example_leaves(exported)
    check_names(options, [str(n) for n, v in zip(names, leaves) if is_tensor(v)])
    metas = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    generator = torch.Generator().manual_seed(options.seed)
    tensors: dict[str, Any] = {}
    flat: list[Any] = []
    for name, leaf in zip(names, leaves):
        if not is_tensor(leaf):
            flat.append(leaf)
            continue
        meta = metas.get(name)
        shape = chosen_shape(name, (leaf if meta is None else meta).shape, options)
        if name in options.given:
            value = given_input(name, options.given[name], leaf.dtype)
        elif shape or leaf.dtype.is_floating_point or not hasattr(leaf, "clone"):
            shape = shape or tuple(int(d) for d in leaf.shape)
            value = random_input(name, shape, leaf.dtype, generator)
        else:
            value = leaf  # integers may be indices: only the saved example is known to be valid
        tensors[name] = value
        flat.append(value)
    return tensors, flat


def load(path: Path, options: Options) -> Model:
    """Load a ``.pt2`` file.

    Raises
    ------
    CliError
        For another kind of file, an incorrect input, or an unsupported operator.
    """
    exported = read(path)
    inputs, flat = choose_inputs(exported, options)
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
