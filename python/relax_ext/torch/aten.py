# SPDX-License-Identifier: Apache-2.0
"""Import of aten graphs, forward and backward ones, into Relax.

:class:`AtenImporter` is TVM's importer of exported programs with three differences.  It imports
a list of nodes, without a second export.  It knows only operators whose converters were compared
with PyTorch by value (:mod:`relax_ext.aten.operators`).  It compares the shape and dtype of each
result with those of PyTorch's fake tensor.  A node that fails raises :class:`Unsupported`, and
stays in PyTorch.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._ops import OpOverload
from tvm.relax.frontend.torch import exported_program_translator as translator

from topi_ext.compat import relax, shape_type
from topi_ext.compat import tensor_type as tensor_type_
from topi_ext.interrupts import raise_interrupt
from topi_ext.notices import one_line

from ..aten.calls import Call, Refused, Unsupported, torch_dtype_name, why_not
from ..aten.operators import CONVERTERS as ATEN
from ..aten.results import as_stated
from ..aten.scalars import float_scalar
from ..aten.sizes import SYMBOLIC, expr_of, is_unbacked, size_in, symbols_of
from . import attention_kernels
from .memory import apart

__all__ = ["AtenImporter", "Unsupported", "expr_of"]

R = relax()

NAMESPACES = ("aten", "prims", "quantized_decomposed")

CONVERTERS = {**ATEN, **attention_kernels.converters()}
"""The converter of each operator by name and overload."""


class AtenImporter(translator.ExportedProgramImporter):  # type: ignore[misc]
    """Import of nodes of an aten graph.

    Attributes
    ----------
    symbols : dict of str to tirx.Var or int
        The variable or the value of each symbolic size of the last graph, in the order of its
        argument `sizes`.
    lock : threading.Lock
        Held while a graph is imported when it runs: threads may run parts of one graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.symbols: dict[str, Any] = {}
        self._places: list[fx.Node] = []
        self.lock = threading.Lock()

    def create_convert_map(self) -> dict[Any, Any]:
        """Return no converters: those of the table are called with other arguments."""
        return {}

    def supports(self, node: fx.Node) -> str | None:
        """Return why a node stays in PyTorch, None if it can be imported.

        A node that passes may still raise :class:`Unsupported` when it is imported.
        """
        if node.op != "call_function":
            return node.op
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC):
            return _why_not_symbolic(node, value)
        if node.target is not operator.getitem and self._overload(node) is None:
            return "no converter"
        return why_not(node)

    def graph(
        self,
        nodes: Sequence[fx.Node],
        inputs: Sequence[fx.Node],
        statics: Sequence[fx.Node],
        outputs: Sequence[fx.Node],
        constants: Mapping[fx.Node, np.ndarray] | None = None,
        known: Mapping[str, int] | None = None,
    ) -> Any:
        """Import nodes as one function.

        Parameters
        ----------
        nodes : sequence of torch.fx.Node
            The calls, in an order in which they can be computed.
        inputs : sequence of torch.fx.Node
            Values that they read: tensors, and floats that are computed from sizes.
        statics : sequence of torch.fx.Node
            Inputs that stay equal over many calls, such as weights.
        outputs : sequence of torch.fx.Node
            The results, in order.
        constants : mapping of torch.fx.Node to numpy.ndarray, optional
            Values that they read too, which the function contains.
        known : mapping of str to int, optional
            The value of each symbol, for a function of known sizes.

        Returns
        -------
        tvm.IRModule
            Function ``main(sizes, *inputs, *statics)``, whose result is a tuple of `outputs`.  The
            argument ``sizes``, a shape of all symbols, is omitted if there are none, or if they are
            known.  The attribute ``num_input`` counts the arguments before the statics.  Graphs
            that differ only in PyTorch's names are equal.

        Raises
        ------
        Unsupported
            For the first node that cannot be imported; it names the others.
        """
        places = self._places = [*inputs, *statics]
        self.env.clear()
        self.symbols = symbols_of(node.meta.get("val") for node in (*places, *nodes))
        sizes = list(self.symbols.values())
        if known is not None:
            self.symbols, sizes = dict(known), []
        builder = self.block_builder = R.BlockBuilder()
        params = [self._parameter(node) for node in places]
        if sizes:
            params.insert(0, R.Var("sizes", shape_type(sizes)))
        for node, value in (constants or {}).items():
            self.env[node] = R.const(value)
        count = len(params) - len(statics)
        failure = None
        with builder.function("main", params, attrs={"num_input": count}):
            with builder.dataflow():
                try:
                    fields = self._imported(nodes, outputs)
                except Unsupported as error:
                    failure, fields = error, []  # the builder warns of a block without an end
                results = builder.emit_output(R.Tuple(fields))
            builder.emit_func_output(results)
        if failure is not None:
            raise failure
        return builder.get()

    def _imported(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> list[Any]:
        """Convert all nodes, and return the outputs.

        The nodes behind one that fails are converted too, so that all failures are known at once.
        """
        refusals: list[Unsupported] = []
        for node in nodes:
            try:
                self.env[node] = self._converted(node)
            except Unsupported as error:
                refusals.append(error)
                try:
                    self.env[node] = self._stand_in(node.meta.get("val"))
                except ValueError:  # a size that has no counterpart
                    break
        if refusals:
            first, first.others = refusals[0], refusals[1:]
            raise first
        inputs = [self.env[node] for node in self._places]
        return apart(self.block_builder, [self.env[node] for node in outputs], inputs)

    def _stand_in(self, value: Any) -> Any:
        """Return zeros in the place of a result, or of several."""
        if isinstance(value, (list, tuple)):
            return [self._stand_in(field) for field in value]
        if not isinstance(value, torch.Tensor):
            return None
        shape = R.ShapeExpr([size_in(size, self.symbols) for size in value.shape])
        return self.block_builder.emit(R.op.zeros(shape, torch_dtype_name(value.dtype)))

    def _retrieve_args(self, node: Any) -> Any:
        """Return converted arguments; a symbolic number needs no argument of the function."""
        if isinstance(node, fx.Node) and node not in self.env:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                return size_in(value, self.symbols)
            if isinstance(value, torch.SymFloat):
                return float_scalar(self.block_builder, value, self.symbols)
        return super()._retrieve_args(node)

    def _overload(self, node: fx.Node) -> OpOverload | None:
        """Return the operator of a node, if it has a converter."""
        target = node.target
        if not isinstance(target, OpOverload) or target.namespace not in NAMESPACES:
            return None
        return target if target.__name__ in CONVERTERS else None

    def _parameter(self, node: fx.Node) -> Any:
        value = node.meta["val"]
        if isinstance(value, torch.SymFloat):
            kind = tensor_type_(R.ShapeExpr([]), "float64", 0)
        else:
            try:
                shape = [size_in(size, self.symbols) for size in value.shape]
            except ValueError as error:
                raise Unsupported(node, str(error)) from error
            kind = tensor_type_(R.ShapeExpr(shape), torch_dtype_name(value.dtype), len(shape))
        self.env[node] = R.Var(f"x{len(self.env)}", kind)
        return self.env[node]

    def _converted(self, node: fx.Node) -> Any:
        """Return the value of a node, of the type that PyTorch states."""
        value = node.meta.get("val")
        try:
            if isinstance(value, torch.SymInt):
                return size_in(value, self.symbols)
            if node.target is operator.getitem:
                return self._item(node)
            if isinstance(value, torch.SymFloat):
                return float_scalar(self.block_builder, value, self.symbols)
            overload = self._overload(node)
            if overload is None:
                raise Unsupported(node, "no converter")
            call = Call(self, node, self.symbols)
            return as_stated(call, CONVERTERS[overload.__name__](call))
        except Unsupported:
            raise
        except Refused as error:
            raise Unsupported(node, str(error)) from error
        except Exception as error:  # any error of a converter of TVM
            raise_interrupt()
            raise Unsupported(node, one_line(error, 200)) from error

    def _item(self, node: fx.Node) -> Any:
        source, index = node.args
        several = self.env[source]
        is_one = isinstance(several, (list, tuple)) and isinstance(index, int)
        item = several[index] if is_one else None
        if item is None:
            raise Unsupported(source, f"result {index} is not imported")
        return item


def _why_not_symbolic(node: fx.Node, value: Any) -> str | None:
    """Return why a symbolic number stays in PyTorch."""
    if isinstance(value, torch.SymBool):
        return "a condition"
    if is_unbacked(value):
        return "a size that values decide"
    if isinstance(value, torch.SymInt):
        try:
            size_in(value, symbols_of([value]))
        except ValueError as error:
            return str(error)
    return None
