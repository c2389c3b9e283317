# SPDX-License-Identifier: Apache-2.0
"""The converters for nodes of exported programs: rows of the table, and TVM's for the others.

A call that a row cannot convert is left to TVM's converter, if that is not wrong.
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

from . import stock as tvm
from .calls import Converter, ImportedCall, Refused, Unsupported, why_not
from .operators import CONVERTERS, IMPORTED
from .results import as_stated

R = relax()


def converters(importer: Any, stock: Mapping[Any, Callable[[Any], Any]]) -> dict[Any, Any]:
    """Return the converter of each node by the name of its operator.

    Parameters
    ----------
    importer : ExportedProgramImporter
    stock : dict
        The importer's own converters.
    """
    symbols: dict[fx.Graph, dict[str, Any]] = {}
    others = tvm.converters(importer, stock, IMPORTED.keys() - CONVERTERS.keys())
    rows = {
        name: partial(_converted, importer, convert, others.get(name), symbols)
        for name, convert in {**IMPORTED, **_in_place(stock)}.items()
    }
    return {**others, **rows}


def _in_place(stock: Mapping[Any, Any]) -> dict[str, Converter]:
    """Return the rows of operators that also write their result into their operand."""
    names = {name: str(name).replace("_.", ".") for name in stock}
    return {
        name: IMPORTED[plain]
        for name, plain in names.items()
        if name != plain and plain in IMPORTED and plain != "copy.default"
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
            result = converted(importer, convert, node, symbols[node.graph])
    except Unsupported as error:
        if stock is None:
            raise fail(tvm.operator_name(node), error.why) from error
        return stock(node)
    if node.target._schema.is_mutable:  # type: ignore[union-attr]  # an operator
        importer.env[node.args[0]] = result
    return result


def converted(importer: Any, convert: Converter, node: fx.Node, symbols: Mapping[str, Any]) -> Any:
    """Return the value of a call by a row.

    Raises
    ------
    Unsupported
        Where the row cannot convert it.
    Refused
        Where nothing may.
    """
    why = why_not(node, unbacked=True)
    if why is not None:
        raise Unsupported(node, why)
    try:
        call = ImportedCall(importer, node, symbols)
        return as_stated(call, convert(call))
    except (Refused, Unsupported):
        raise
    except Exception as error:  # any error of a converter
        raise Unsupported(node, one_line(error, 200)) from error


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
