# SPDX-License-Identifier: Apache-2.0
"""Loads ``.onnx`` files; onnxruntime computes the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from topi_ext.notices import one_line

from .errors import CliError, need
from .model import Model, Options, check_names, chosen_shape, random_or_given, shown_shape

Convert = Callable[[Any, Mapping[str, tuple[int, ...]]], Any]


def fixed_sizes(proto: Any, options: Options) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input, by name: from the file, the given arrays, ``--shape`` and
    ``--dim``.

    Raises
    ------
    CliError
        A size is free, or a given array does not fit.
    """
    constants = {t.name for t in proto.graph.initializer}
    inputs = [v for v in proto.graph.input if v.name not in constants]
    check_names(options, [v.name for v in inputs])
    sizes = dict(options.dims)
    free = {d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param}
    for name in options.dims:
        if name not in free:
            known = ", ".join(sorted(free)) or "none"
            raise CliError(f"--dim {name}: the model's free sizes are: {known}")
    shapes = {v.name: chosen_shape(v.name, _stated(v), options) for v in inputs}
    for value in inputs:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name] or ()):
            if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                raise CliError(
                    f"input {value.name}: size {dim.dim_param!r} is {size} here, "
                    f"{sizes[dim.dim_param]} elsewhere"
                )
    return {v.name: shapes[v.name] or _shape(v, sizes) for v in inputs}


def _stated(value: Any) -> list[int | str | None]:
    """Return the shape of an input in the file: numbers, names of free sizes, None for nameless
    ones.
    """
    sizes = value.type.tensor_type.shape.dim
    return [d.dim_param or (d.dim_value if d.dim_value > 0 else None) for d in sizes]


def _shape(value: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape = []
    for size in _stated(value):
        if size is None:
            what = f"shape {shown_shape(_stated(value))} has a size without a name"
            raise CliError(f"input {value.name}: {what}, give --shape {value.name}=SIZES")
        if isinstance(size, str) and size not in sizes:
            raise CliError(
                f"input {value.name}: size {size!r} is free, choose it with --dim {size}=SIZE"
            )
        shape.append(sizes[size] if isinstance(size, str) else size)
    return tuple(shape)


def load(path: Path, options: Options, convert: Convert) -> Model:
    """Load an ``.onnx`` file; ``convert(proto, shapes)`` gives the module of the adapter's IR.

    Raises
    ------
    CliError
        For another kind of file, an incorrect input, or an unsupported operator.
    """
    onnx = need("onnx", "reading .onnx")
    ort = need("onnxruntime", "comparing an .onnx model")
    import torch

    try:
        proto = onnx.load(str(path))
    except Exception as error:
        raise CliError(f"{path}: not an ONNX file: {one_line(error)}") from error
    shapes = fixed_sizes(proto, options)

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = options.threads
    try:
        session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CliError(f"{path}: onnxruntime refuses it: {one_line(error)}") from error

    generator = torch.Generator().manual_seed(options.seed)
    inputs: dict[str, Any] = {}
    for value in proto.graph.input:
        if value.name not in shapes:
            continue
        np_dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dtype = torch.from_numpy(_empty(np_dtype, value.name)).dtype
        shape = shapes[value.name]
        inputs[value.name] = random_or_given(value.name, shape, dtype, options, generator)

    fed = {name: tensor.numpy() for name, tensor in inputs.items()}

    def reference() -> list[Any]:
        return [torch.from_numpy(y) for y in session.run(None, fed)]

    try:
        reference()
    except Exception as error:
        raise CliError(f"{path.name}: onnxruntime stopped: {one_line(error)}") from error

    return Model(
        path.name,
        lambda: convert(proto, shapes),
        inputs,
        reference,
        reference,
        "onnxruntime",
    )


def _empty(np_dtype: Any, name: str) -> Any:
    import numpy as np

    if np_dtype.kind not in "fiub":
        raise CliError(f"input {name}: dtype {np_dtype} is not supported here")
    return np.empty(0, np_dtype)
