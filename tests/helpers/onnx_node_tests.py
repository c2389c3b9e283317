# SPDX-License-Identifier: Apache-2.0
"""The ONNX package's own tests of convolutions."""

from __future__ import annotations

from typing import Any

OPS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")


def node_tests() -> list[Any]:
    """Its cases of one node.  They are made when its modules are imported, and only then."""
    from onnx.backend.test.case import node
    from onnx.backend.test.case.node import conv, convinteger, convtranspose, qlinearconv

    assert all((conv, convinteger, convtranspose, qlinearconv))
    cases = [case for case in node._NodeTestCases if len(case.model.graph.node) == 1]
    found = [case for case in cases if case.model.graph.node[0].op_type in OPS]
    assert {case.model.graph.node[0].op_type for case in found} == set(OPS)
    return found
