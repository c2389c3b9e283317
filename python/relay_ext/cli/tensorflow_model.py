# SPDX-License-Identifier: Apache-2.0
"""Loads ``.pb`` files, frozen graphs of TensorFlow, which computes the reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conv_cli.errors import CliError, need, no_output, quiet
from conv_cli.model import Model, Options, check_names, random_or_given, shape_of_input
from topi_ext.compat import relay
from topi_ext.notices import one_line

from .bound import bound
from .diagnostics import in_errors

PACKAGE = "tensorflow-cpu==2.15.1"
"""The package to install: the newest TensorFlow whose Keras TVM 0.17 can read."""

NO_RESULTS = {"Assert", "Const", "NoOp", "Placeholder", "PlaceholderWithDefault"}
"""Operators whose results are not outputs of a graph, even if no other operator reads them."""


def tensorflow(why: str) -> Any:
    """Return the package, without its messages.

    Raises
    ------
    CliError
        It is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with quiet(), no_output():
        return need("tensorflow", why, PACKAGE)


def load(path: Path, options: Options) -> Model:
    """Load a frozen graph: inputs are its placeholders, outputs those of ``--output``, or the first
    result of every node that no other reads.

    Raises
    ------
    CliError
        For another kind of file, a missing shape, an incorrect input, or an unsupported operator.
    """
    tf = tensorflow("reading .pb")
    import torch

    graph, definition = _graph(tf, path)
    placeholders = [op for op in graph.get_operations() if op.type == "Placeholder"]
    outputs = _outputs(graph, options.outputs)
    check_names(options, [op.name for op in placeholders])
    generator = torch.Generator().manual_seed(options.seed)
    inputs = {}
    for op in placeholders:
        (tensor,) = op.outputs
        stated = None if tensor.shape.rank is None else tensor.shape.as_list()
        shape = shape_of_input(op.name, stated, options)
        dtype = torch_dtype(op.name, tensor.dtype)
        inputs[op.name] = random_or_given(op.name, shape, dtype, options, generator)

    settings = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=options.threads, inter_op_parallelism_threads=1
    )
    session = tf.compat.v1.Session(graph=graph, config=settings)
    fed = {f"{name}:0": tensor.numpy() for name, tensor in inputs.items()}

    def reference() -> list[Any]:
        return [torch.from_numpy(y) for y in session.run(outputs, fed)]

    try:
        with no_output():
            reference()
    except Exception as error:
        raise CliError(f"{path.name}: TensorFlow stopped: {one_line(error)}") from error
    return Model(
        path.name,
        lambda: _to_relay(definition, inputs, outputs),
        inputs,
        reference,
        reference,
        "TensorFlow",
        [] if options.outputs else [f"outputs: {', '.join(outputs)}"],
    )


def torch_dtype(name: str, dtype: Any) -> Any:
    """Return the torch dtype of one of TensorFlow.

    Raises
    ------
    CliError
        There is none.
    """
    import torch

    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype) or found == torch.bfloat16:
        raise CliError(f"input {name}: dtype {dtype.name} is not supported here")
    return found


def _graph(tf: Any, path: Path) -> tuple[Any, Any]:
    """Return a file's graph, and its definition."""
    try:
        definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    except Exception as error:
        raise CliError(f"{path}: not a frozen graph: {one_line(error)}") from error
    graph = tf.Graph()
    try:
        with graph.as_default(), no_output():
            tf.import_graph_def(definition, name="")
    except Exception as error:
        raise CliError(f"{path}: TensorFlow refuses it: {one_line(error)}") from error
    variables = [op.name for op in graph.get_operations() if op.type.startswith(("Var", "ReadVar"))]
    if variables:
        raise CliError(f"{path}: {variables[0]} is a variable: freeze the graph")
    return graph, definition


def _outputs(graph: Any, chosen: tuple[str, ...]) -> list[str]:
    """Return the names of tensors: those chosen, else those that are found."""
    found = [
        f"{op.name}:0"
        for op in graph.get_operations()
        if op.outputs
        and op.type not in NO_RESULTS
        and not any(tensor.consumers() for tensor in op.outputs)
    ]
    names = [name if ":" in name else f"{name}:0" for name in chosen]
    for name in names:
        try:
            graph.get_tensor_by_name(name)
        except Exception as error:
            known = ", ".join(found) or "none"
            raise CliError(
                f"--output {name}: not in the graph, whose last ones are: {known}"
            ) from (error)
    if not (names or found):
        raise CliError("the graph has no outputs: every result is read, name some by --output")
    return names or found


def _to_relay(definition: Any, inputs: Mapping[str, Any], outputs: list[str]) -> Any:
    shapes = {name: tuple(t.shape) for name, t in inputs.items()}
    with in_errors():
        mod, params = relay().frontend.from_tensorflow(definition, shape=shapes, outputs=outputs)
        return relay().transform.DynamicToStatic()(bound(mod, params, inputs))
