# SPDX-License-Identifier: Apache-2.0
"""Loads ``.onnx`` files; onnxruntime tells what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .adapter import Choices
from .errors import CliError, need, one_line, quiet
from .model import Model, check_names, given_input, random_input

Convert = Callable[[Any, Mapping[str, tuple[int, ...]]], Any]
Prepare = Callable[[Any, Mapping[str, tuple[int, ...]]], list[str]]


def fixed_sizes(
    proto: Any, given: Mapping[str, Any], dims: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Shape of every input, by name: from the file, the given arrays and ``--dim``.

    Raises
    ------
    CliError
        A size is free, or a given array does not fit.
    """
    constants = {t.name for t in proto.graph.initializer}
    inputs = [v for v in proto.graph.input if v.name not in constants]
    check_names(given, [v.name for v in inputs])
    sizes = dict(dims)
    free = {d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param}
    for name in dims:
        if name not in free:
            known = ", ".join(sorted(free)) or "none"
            raise CliError(f"--dim {name}: the model's free sizes are: {known}")
    for value in inputs:
        if value.name not in given:
            continue
        shape, wanted = given[value.name].shape, value.type.tensor_type.shape.dim
        shown = f"({', '.join(d.dim_param or str(d.dim_value) for d in wanted)})"
        fits = len(shape) == len(wanted)
        for dim, size in zip(wanted, shape):
            if dim.dim_param:
                fits = fits and sizes.setdefault(dim.dim_param, size) == size
            else:
                fits = fits and dim.dim_value in (0, size)
        if not fits:
            raise CliError(f"--input {value.name}: shape {shape} does not fit the model's {shown}")
    return {v.name: _shape(v, given, sizes) for v in inputs}


def _shape(value: Any, given: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[int, ...]:
    if value.name in given:
        return tuple(int(d) for d in given[value.name].shape)
    shape = []
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param:
            if dim.dim_param not in sizes:
                raise CliError(
                    f"input {value.name}: size {dim.dim_param!r} is free, "
                    f"choose it with --dim {dim.dim_param}=SIZE"
                )
            shape.append(sizes[dim.dim_param])
        elif dim.dim_value:
            shape.append(dim.dim_value)
        else:
            raise CliError(f"input {value.name}: a size is unknown, give --input {value.name}=FILE")
    return tuple(shape)


def load(path: Path, choices: Choices, convert: Convert, prepare: Prepare | None = None) -> Model:
    """Load an ``.onnx`` file; ``convert(proto, shapes)`` gives the module of the adapter's IR.

    ``prepare(proto, shapes)`` may change the model before, and says in notes what it changed.

    Raises
    ------
    CliError
        In one line: not such a file, wrong input, gap of the importer.
    """
    onnx = need("onnx", "reading .onnx")
    ort = need("onnxruntime", "comparing an .onnx model")
    import torch

    try:
        proto = onnx.load(str(path))
    except Exception as error:
        raise CliError(f"{path}: not an ONNX file: {one_line(error)}") from error
    shapes = fixed_sizes(proto, choices.given, choices.dims)

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    if choices.threads:
        settings.intra_op_num_threads = choices.threads
    try:
        session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CliError(f"{path}: onnxruntime refuses it: {one_line(error)}") from error

    generator = torch.Generator().manual_seed(choices.seed)
    inputs: dict[str, Any] = {}
    for value in proto.graph.input:
        if value.name not in shapes:
            continue
        np_dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dtype = torch.from_numpy(_empty(np_dtype, value.name)).dtype
        if value.name in choices.given:
            inputs[value.name] = given_input(value.name, choices.given[value.name], dtype)
        else:
            inputs[value.name] = random_input(value.name, shapes[value.name], dtype, generator)

    fed = {name: tensor.numpy() for name, tensor in inputs.items()}

    def reference() -> list[Any]:
        return [torch.from_numpy(y) for y in session.run(None, fed)]

    try:
        reference()
    except Exception as error:
        raise CliError(f"{path.name}: onnxruntime stopped: {one_line(error)}") from error

    notes = prepare(proto, shapes) if prepare else []
    try:
        with quiet():
            mod = convert(proto, shapes)
    except Exception as error:
        raise CliError(f"{path.name}: TVM's importer stopped: {one_line(error)}") from error
    return Model(path.name, mod, inputs, reference, reference, "onnxruntime", notes)


def _empty(np_dtype: Any, name: str) -> Any:
    import numpy as np

    if np_dtype.kind not in "fiub":
        raise CliError(f"input {name}: dtype {np_dtype} is not supported here")
    return np.empty(0, np_dtype)
