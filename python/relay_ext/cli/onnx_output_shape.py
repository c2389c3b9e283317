# SPDX-License-Identifier: Apache-2.0
"""``output_shape`` of ONNX's ConvTranspose, which Relay's importer drops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conv_cli.errors import CliError


def resolve_output_shape(proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Turn ``output_shape`` of every ConvTranspose into ``pads`` and ``output_padding``, in place.

    TVM's importer drops the attribute. The formula is that of the ONNX operator documentation;
    where the wanted output is larger than the natural one, the rest is output padding.

    Returns
    -------
    list of str
        A note, where nodes were rewritten.
    """
    import onnx

    nodes = [
        n
        for n in proto.graph.node
        if n.op_type == "ConvTranspose" and any(a.name == "output_shape" for a in n.attribute)
    ]
    if not nodes:
        return []
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
    return [
        f"TVM's ONNX importer ignores output_shape; given to it as pads in {len(nodes)} "
        "ConvTranspose"
    ]


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
