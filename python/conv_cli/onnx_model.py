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


def resolve_output_shape(proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Turn ``output_shape`` of every ConvTranspose into ``pads`` and ``output_padding``, in place.

    TVM's importer drops the attribute. The formula is that of the ONNX operator documentation;
    where the wanted output is larger than the natural one, the rest is output padding.

    Returns
    -------
    int
        How many nodes were rewritten.
    """
    import onnx

    nodes = [
        n
        for n in proto.graph.node
        if n.op_type == "ConvTranspose" and any(a.name == "output_shape" for a in n.attribute)
    ]
    if not nodes:
        return 0
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ())):
            dim.dim_value = size
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    known = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*inferred.input, *inferred.value_info]
    }
    known |= {t.name: list(t.dims) for t in proto.graph.initializer}
    for node in nodes:
        x, w = (known.get(name, []) for name in node.input[:2])
        if not x or not w or not all(x[2:]):
            raise CliError(
                f"ConvTranspose {node.name or node.output[0]}: its input size is not in the file, "
                "so its output_shape, which TVM's importer ignores, cannot become pads"
            )
        _rewrite(node, x[2:], w[2:])
    return len(nodes)


def _rewrite(node: Any, sizes: list[int], kernel: list[int]) -> None:
    from onnx import helper

    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank = len(sizes)
    wanted = list(attrs.pop("output_shape"))[-rank:]
    mode = attrs.pop("auto_pad", b"NOTSET").decode()
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    extra = list(attrs.get("output_padding", [0] * rank))
    begin, end = [], []
    for axis in range(rank):
        total = (
            (sizes[axis] - 1) * strides[axis]
            + extra[axis]
            + (kernel[axis] - 1) * dilations[axis]
            + 1
            - wanted[axis]
        )
        extra[axis] += max(-total, 0)
        total = max(total, 0)
        first = total // 2 if mode == "SAME_UPPER" else total - total // 2
        begin.append(first)
        end.append(total - first)
    attrs["pads"], attrs["output_padding"] = begin + end, extra
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())


def load(path: Path, choices: Choices, convert: Convert) -> Model:
    """Load an ``.onnx`` file; ``convert(proto, shapes)`` gives the module of the adapter's IR.

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

    notes = []
    if rewritten := resolve_output_shape(proto, shapes):
        notes.append(
            f"TVM's ONNX importer ignores output_shape; given to it as pads in {rewritten} "
            "ConvTranspose"
        )
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
