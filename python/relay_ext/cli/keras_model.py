# SPDX-License-Identifier: Apache-2.0
"""Loads ``.keras`` files, written by ``model.save`` of Keras 2; Keras computes the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conv_cli.errors import CliError, need, no_output, quiet
from conv_cli.model import Model, Options, check_names, random_or_given, shape_of_input
from topi_ext.compat import relay
from topi_ext.notices import one_line

from .bound import bound
from .diagnostics import in_errors
from .tensorflow_model import PACKAGE, tensorflow, torch_dtype

LAYOUTS = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
"""Channels last, as Keras has them, by the rank of an input."""


def load(path: Path, options: Options) -> Model:
    """Load a model of Keras, whose inputs stay channels last.

    Raises
    ------
    CliError
        For another kind of file, another Keras, a missing shape, or an unsupported operator.
    """
    tf = tensorflow("reading .keras")
    import torch

    keras = need("keras", "reading .keras", PACKAGE)  # what TVM's importer imports
    if not keras.__version__.startswith("2."):
        raise CliError(
            f"reading .keras needs Keras 2, not {keras.__version__}: pip install {PACKAGE}"
        )
    try:
        with quiet(), no_output():
            model = keras.models.load_model(path, compile=False)
    except Exception as error:
        raise CliError(f"{path}: Keras {keras.__version__} refuses it: {one_line(error)}") from (
            error
        )
    check_names(options, list(model.input_names))
    generator = torch.Generator().manual_seed(options.seed)
    inputs = {}
    for name, tensor in zip(model.input_names, model.inputs):
        shape = shape_of_input(name, list(tensor.shape), options)
        dtype = torch_dtype(name, tensor.dtype)
        inputs[name] = random_or_given(name, shape, dtype, options, generator)
    fed = [tf.constant(tensor.numpy()) for tensor in inputs.values()]

    def reference() -> list[Any]:
        result = model(fed[0] if len(fed) == 1 else fed, training=False)
        return [torch.from_numpy(y.numpy()) for y in tf.nest.flatten(result)]

    try:
        with quiet(), no_output():
            reference()
    except Exception as error:
        raise CliError(f"{path.name}: Keras stopped: {one_line(error)}") from error
    return Model(
        path.name, lambda: _to_relay(model, inputs), inputs, reference, reference, "TensorFlow"
    )


def _to_relay(model: Any, inputs: Mapping[str, Any]) -> Any:
    shapes = {name: tuple(t.shape) for name, t in inputs.items()}
    layout = next((LAYOUTS[len(s)] for s in shapes.values() if len(s) in LAYOUTS), "NHWC")
    with in_errors():
        mod, params = relay().frontend.from_keras(model, shapes, layout=layout)
        return bound(mod, params, inputs)
