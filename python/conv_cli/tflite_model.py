# SPDX-License-Identifier: Apache-2.0
"""Loads ``.tflite`` files; LiteRT, if installed, computes the reference."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topi_ext.notices import one_line

from .errors import CliError, need, no_output
from .model import Model, Options, check_names, random_or_given, shape_of_input

Convert = Callable[[Any, Mapping[str, Any]], Any]

LITERT: dict[str, Callable[[Any], Any]] = {
    "ai_edge_litert.interpreter": lambda module: module.Interpreter,
    "tensorflow": lambda module: module.lite.Interpreter,
}
"""Getters of the interpreter by module: the first that is installed is used."""


@dataclass(frozen=True)
class _Tensor:
    """An input or output of a file; None in the shape is a free size."""

    name: str
    index: int
    shape: tuple[int | None, ...]
    stated: tuple[int, ...]
    dtype: Any
    is_quantized: bool


def load(path: Path, options: Options, convert: Convert) -> Model:
    """Load a ``.tflite`` file; ``convert(model, inputs)`` gives the module of the adapter's IR.

    ``model`` is a ``tflite.Model``, and inputs are tensors by name.  Free sizes are those of the
    file, as in LiteRT, unless ``--input`` or ``--shape`` choose others.

    Raises
    ------
    CliError
        For another kind of file, an incorrect input, or an unsupported operator.
    """
    flatbuffer = need("tflite", "reading .tflite")
    import torch

    content = path.read_bytes()
    try:
        model = flatbuffer.Model.GetRootAsModel(content, 0)
        _read_to_the_end(model)
        inputs, outputs = _ends(model.Subgraphs(0))
    except CliError:
        raise
    except Exception as error:  # whatever reading beyond the end of a buffer raises
        raise CliError(f"{path}: not a TFLite file: it is cut short or damaged") from error
    session = _interpreter(path, content, options.threads)
    check_names(options, [t.name for t in inputs])
    generator = torch.Generator().manual_seed(options.seed)
    tensors = {t.name: _input(t, options, generator) for t in inputs}
    notes = [note for t in inputs if (note := _about_free_sizes(t, options))]
    reference, lacks = None, ""
    if session is None:
        lacks = "comparing the whole model needs LiteRT: pip install ai-edge-litert"
        notes.append(f"operators alone are compared: {lacks}")
    else:
        reference = _prepared(path.name, session, inputs, tensors)
    return Model(
        path.name,
        lambda: convert(model, tensors),
        tensors,
        reference,
        reference,
        "LiteRT",
        notes,
        lacks,
        steps=_steps(model.Subgraphs(0), outputs),
    )


def _read_to_the_end(model: Any) -> None:
    """Read what a file that is cut short lacks: TensorFlow's interpreter would end the process."""
    for i in range(model.BuffersLength()):
        buffer = model.Buffers(i)
        if length := buffer.DataLength():
            buffer.Data(length - 1)
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for i in range(graph.TensorsLength()):
            graph.Tensors(i).Name().decode()
        for i in range(graph.OperatorsLength()):
            model.OperatorCodes(graph.Operators(i).OpcodeIndex()).BuiltinCode()


def _ends(subgraph: Any) -> tuple[list[_Tensor], list[_Tensor]]:
    """Return the inputs and outputs of a model."""
    return (
        [_tensor(subgraph, subgraph.Inputs(i)) for i in range(subgraph.InputsLength())],
        [_tensor(subgraph, subgraph.Outputs(i)) for i in range(subgraph.OutputsLength())],
    )


def _steps(subgraph: Any, outputs: list[_Tensor]) -> float:
    """Return by how many steps quantized outputs may differ.

    Each operator rounds, LiteRT's own kernels not all alike: one step for one of them, and the
    square root of n for n that do so independently.  Of 49 operators, 4 were measured.
    """
    is_quantized = any(tensor.is_quantized for tensor in outputs)
    return max(1.0, math.sqrt(subgraph.OperatorsLength())) if is_quantized else 0.0


def _tensor(subgraph: Any, index: int) -> _Tensor:
    import tflite
    import torch

    tensor = subgraph.Tensors(index)
    name = tensor.Name().decode()
    numbers = {value: key for key, value in vars(tflite.TensorType).items() if key.isupper()}
    dtype = getattr(torch, numbers.get(tensor.Type(), "").lower(), None)
    if not isinstance(dtype, torch.dtype):
        raise CliError(f"{name}: dtype {numbers.get(tensor.Type())} is not supported here")
    stated = tuple(tensor.Shape(i) for i in range(tensor.ShapeLength()))
    signature = [tensor.ShapeSignature(i) for i in range(tensor.ShapeSignatureLength())]
    shape = tuple(None if size < 0 else size for size in signature) or stated
    quantization = tensor.Quantization()
    is_quantized = quantization is not None and quantization.ScaleLength() > 0
    return _Tensor(name, index, shape, stated, dtype, is_quantized)


def _input(tensor: _Tensor, options: Options, generator: Any) -> Any:
    """Return an input as a tensor: what is given, or random numbers."""
    import torch

    name = tensor.name
    chosen = name in options.given or name in options.shapes
    stated = tensor.shape if chosen else tensor.stated
    shape = shape_of_input(name, stated, options)
    if tensor.is_quantized and name not in options.given:
        range_ = torch.iinfo(tensor.dtype)
        bounds = range_.min, range_.max + 1
        return torch.randint(*bounds, shape, generator=generator).to(tensor.dtype)
    return random_or_given(name, shape, tensor.dtype, options, generator)


def _about_free_sizes(tensor: _Tensor, options: Options) -> str:
    """Return a note about free sizes that no option chooses."""
    if None not in tensor.shape or tensor.name in options.given or tensor.name in options.shapes:
        return ""
    shape = ",".join(map(str, tensor.stated))
    return f"input {tensor.name} has free sizes, taken as {shape}; choose by --shape or --input"


def is_installed(module: str) -> bool:
    """Return whether a module is there, without importing it."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def _interpreter(path: Path, content: bytes, threads: int) -> Any:
    """LiteRT with the model in it; None where it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name, interpreter in LITERT.items():
        if not is_installed(name):
            continue
        try:
            with no_output():  # it tells of its delegates
                module = importlib.import_module(name)
                return interpreter(module)(model_content=content, num_threads=threads)
        except Exception as error:
            raise CliError(f"{path}: LiteRT refuses it: {one_line(error)}") from error
    return None


def _prepared(
    name: str, session: Any, inputs: list[_Tensor], tensors: Mapping[str, Any]
) -> Callable[[], list[Any]]:
    """Return a function that runs the model on the tensors, after a first run."""
    import torch

    places = [detail["index"] for detail in session.get_input_details()]
    ends = [detail["index"] for detail in session.get_output_details()]

    def reference() -> list[Any]:
        for place, tensor in zip(places, tensors.values()):
            session.set_tensor(place, tensor.numpy())
        session.invoke()
        return [torch.from_numpy(session.get_tensor(place)) for place in ends]

    try:
        with no_output():
            for place, tensor, stated in zip(places, tensors.values(), inputs):
                if tuple(tensor.shape) != stated.stated:
                    session.resize_tensor_input(place, tuple(tensor.shape))
            session.allocate_tensors()
            reference()
    except Exception as error:
        raise CliError(f"{name}: LiteRT stopped: {one_line(error)}") from error
    return reference
