# SPDX-License-Identifier: Apache-2.0
"""The converters for nodes of exported programs.

A call that a converter refuses is left to TVM's importer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import fx

from topi_ext.compat import relax, size_variables, type_of
from topi_ext.interrupts import keep_interrupts
from topi_ext.notices import one_line
from topi_ext.spec.geometry import fail

from ..importers.torch_arguments import operator_name
from .calls import Call, Converter, Unsupported, why_not
from .operators import CONVERTERS
from .results import as_stated

R = relax()

_UPDATES = ("_native_batch_norm_legit_functional.default",)
"""Operators that update running statistics, which are not imported."""


def converters(importer: Any, stock: Mapping[Any, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the converter of each node by the name of its operator.

    Parameters
    ----------
    importer : ExportedProgramImporter
    stock : dict
        The importer's converters, for calls that ours refuse.
    """
    symbols: dict[fx.Graph, dict[str, Any]] = {}
    return {
        name: partial(_converted, importer, convert, stock.get(name), symbols)
        for name, convert in CONVERTERS.items()
        if convert is not Call.stock and name not in _UPDATES
    }


def _converted(
    importer: Any,
    convert: Converter,
    stock: Callable[[Any], Any] | None,
    symbols: dict[fx.Graph, dict[str, Any]],
    node: fx.Node,
) -> Any:
    """Return the value of a node."""
    if node.graph not in symbols:
        symbols[node.graph] = _symbols(importer, node.graph)
    try:
        with keep_interrupts():
            why = why_not(node)
            if why is not None:
                raise Unsupported(node, why)
            call = Call(importer, node, symbols[node.graph])
            return as_stated(call, convert(call))
    except Exception as error:  # any error of a converter
        if stock is not None:
            return stock(node)
        why = error.why if isinstance(error, Unsupported) else one_line(error, 200)
        raise fail(operator_name(node), why) from error


def _symbols(importer: Any, graph: fx.Graph) -> dict[str, Any]:
    """Return the variable of each symbolic size, by the name of PyTorch's symbol.

    TVM's importer makes them for the inputs of a graph, with the same names.
    """
    inputs = (importer.env.get(node) for node in graph.find_nodes(op="placeholder"))
    return {
        variable.name: variable
        for value in inputs
        if isinstance(value, R.Expr)
        for variable in size_variables(type_of(value))
    }
