# SPDX-License-Identifier: Apache-2.0
"""ONNX models of single nodes, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Node:
    """One node, whose operands are named x0, x1, ... and results y0, y1, ...

    Parameters
    ----------
    op : str
        Its name.
    operands : sequence
        Arrays; None is an operand that is left out.
    data : int
        How many of the first operands are inputs of the model; the others are constants.
    attributes : mapping
        Of the node.
    results : int
        How many it has.
    domain : str
        Of the node.
    opset : int
        Version of the standard's operators.
    """

    op: str
    operands: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    data: int = 1
    results: int = 1
    domain: str = ""
    opset: int = 17

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {f"x{at}": np.asarray(a) for at, a in enumerate(self.operands) if a is not None}

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        return {name: array for name, array in self.arrays.items() if int(name[1:]) < self.data}

    def model(self) -> onnx.ModelProto:
        names = [f"x{at}" if a is not None else "" for at, a in enumerate(self.operands)]
        results = [f"y{at}" for at in range(self.results)]
        node = helper.make_node(self.op, names, results, domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.feeds.items()
        ]
        constants = [
            numpy_helper.from_array(array, name)
            for name, array in self.arrays.items()
            if name not in self.feeds
        ]
        graph = helper.make_graph([node], "g", inputs, [], constants)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        domains = {"": self.opset, CONTRIB: 1, self.domain: 1 if self.domain else self.opset}
        imports = [helper.make_opsetid(name, version) for name, version in domains.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of ONNX Runtime on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, ["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))
