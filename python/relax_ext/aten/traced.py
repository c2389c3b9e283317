# SPDX-License-Identifier: Apache-2.0
"""The converters for nodes of traced graphs, which state neither schemas nor types.

A call of a function or module is traced once more, into aten operators of fake tensors, and these
are converted by the rows of the table.  So are the functions and modules that TVM does not know;
what it translates well stays its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import fx, nn
from torch._decomp import core_aten_decompositions
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from topi_ext.compat import relax, same_size
from topi_ext.interrupts import keep_interrupts
from topi_ext.spec.geometry import fail

from ..ir import dtype_of, shape_of
from .calls import Unsupported, is_tensor
from .exported import converted
from .operators import IMPORTED
from .sizes import size_in
from .stock import operator_name

R = relax()

_FUNCTIONS = (
    *("add", "addmm", "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "batch_norm", "bmm"),
    *("celu", "chunk", "clamp", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "cross_entropy"),
    *("conv_transpose2d", "conv_transpose3d", "cumprod", "cumsum", "div", "elu", "eq", "exp"),
    *("floordiv", "fmod", "ge", "grid_sample", "gt", "interpolate", "isin", "layer_norm", "le"),
    *("linear", "log_softmax", "lt", "matmul", "reciprocal", "sigmoid"),
    *("max", "max_pool1d", "max_pool2d", "max_pool3d", "min", "mul", "narrow", "ne", "norm"),
    *("ones_like", "pixel_shuffle", "pow", "prod", "rsub", "scaled_dot_product_attention"),
    *("select", "softmax", "std", "sub", "sum", "take", "truediv", "var", "zeros_like"),
)
"""Functions that TVM computes otherwise than PyTorch, silently."""

_MODULES = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.CrossEntropyLoss),
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardtanh, nn.LayerNorm, nn.Linear),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
)
"""The same of modules."""

_SEVERAL = ("median", "meshgrid", "sort", "split", "topk", "unbind")
"""Functions of several results, of which TVM's converters may give one."""


def converters(importer: Any, stock: Mapping[Any, Any]) -> dict[Any, Callable[[Any], Any]]:
    """Return converters of functions by name, and of modules by class."""
    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    rows = {name.partition(".")[0] for name in IMPORTED}
    names = {*_FUNCTIONS, *(rows - stock.keys())}
    classes = {one for one in vars(nn).values() if isinstance(one, type)}
    return {
        **{name: partial(_function, importer, stock.get(name)) for name in names},
        **{kind: partial(_module, importer) for kind in {*_MODULES, *(classes - stock.keys())}},
        "getitem": partial(_items, importer, stock["getitem"]),
        "dropout": partial(_dropout, importer),
        **{kind: partial(_dropout_module, importer) for kind in dropouts},
    }


def _function(importer: Any, stock: Callable[[Any], Any] | None, node: fx.Node) -> Any:
    """Return the value of a function, or of a method; by TVM's converter that of numbers."""
    name = node.target if isinstance(node.target, str) else node.target.__name__
    function = node.target
    if isinstance(function, str):

        def function(x: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(x, name)(*args, **kwargs)

    operands = (importer.env[operand] for operand in node.all_input_nodes)
    if stock is not None and not any(is_tensor(x) for x in tree_leaves(tuple(operands), _is_leaf)):
        return stock(node)
    return _Trace(importer, name).value(function, node)


def _module(importer: Any, node: fx.Node) -> Any:
    """Return the value of a module; its parameters and buffers are operands too."""
    module = importer.named_modules[node.target]
    trace = _Trace(importer, type(module).__name__)
    state = {name: importer.params[value] for name, value in module.named_parameters()}
    for name, value in module.named_buffers():
        state[name] = importer._convert_torch_tensor_to_relax(value)

    def function(state: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    return trace.value(function, node, state)


class _Trace:
    """One call, as an importer of its aten operators.

    Attributes
    ----------
    block_builder : relax.BlockBuilder
    env : dict
        The values of nodes.
    """

    def __init__(self, importer: Any, name: str) -> None:
        self._outer, self._name = importer, name
        self.block_builder = importer.block_builder
        self.env: dict[fx.Node, Any] = {}
        self._shapes = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._shapes)
        self._sizes: list[tuple[Any, Any]] = []  # of TVM and of PyTorch

    def value(self, function: Any, node: fx.Node, *first: Any) -> Any:
        """Return the value of a function for the arguments of a node, after others."""
        args, kwargs = map(self._outer._retrieve_args, (node.args, dict(node.kwargs)))
        leaves, structure = tree_flatten(((*first, *args), kwargs), is_leaf=_is_leaf)
        places = [leaf for leaf in leaves if is_tensor(leaf)]
        rest = [None if is_tensor(leaf) else self._plain(leaf) for leaf in leaves]

        def call(*tensors: Any) -> Any:
            several = iter(tensors)
            values = [next(several) if is_tensor(a) else b for a, b in zip(leaves, rest)]
            args, kwargs = tree_unflatten(values, structure)
            return function(*args, **kwargs)

        graph = self._traced(call, [self._fake(place) for place in places]).graph
        symbols = {str(size.node.expr): expr for expr, size in self._sizes}
        self.env.update(zip(graph.find_nodes(op="placeholder"), places))
        for each in graph.nodes:
            if each.op == "call_function":
                self.env[each] = self._converted(each, symbols)
            elif each.op == "output":
                return tree_map(self._retrieve_args, each.args[0])
        return None

    def _traced(self, call: Any, fakes: list[Any]) -> Any:
        try:
            with keep_interrupts(), self._mode, torch.no_grad():
                graph = make_fx(call, _decompositions(), pre_dispatch=True)(*fakes)
        except Exception as error:  # any error of PyTorch
            said = str(error).partition("\n")[0]
            known = "sizes must be known at import: " if self._sizes else ""
            raise fail(self._name, f"{known}{said}") from error
        if any(size.is_number for size in self._shapes.replacements.values()):
            raise fail(self._name, "sizes must be known at import")
        return graph

    def _converted(self, node: fx.Node, symbols: Mapping[str, Any]) -> Any:
        if node.target is operator.getitem:
            source, index = self._retrieve_args(node.args)
            return source[index]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return size_in(value, symbols)
        name = getattr(node.target, "__name__", "").replace("_.", ".")  # in place or not
        convert = IMPORTED.get(name)
        try:
            if convert is None:
                raise fail(operator_name(node), "is not known")
            with keep_interrupts():
                return converted(self, convert, node, symbols)
        except Unsupported as error:
            raise fail(operator_name(node), error.why) from error

    def _retrieve_args(self, value: Any) -> Any:
        """Return converted arguments."""

        def one(leaf: Any) -> Any:
            return self.env[leaf] if isinstance(leaf, fx.Node) else leaf

        return tree_map(one, value)

    def _fake(self, x: Any) -> Any:
        shape = shape_of(x)
        if shape is None:
            raise fail(self._name, "shapes of operands must be known at import")
        with self._mode:
            return torch.empty([*map(self._size, shape)], dtype=getattr(torch, dtype_of(x)))

    def _plain(self, leaf: Any) -> Any:
        """Return an argument that is no tensor: sizes as PyTorch has them."""
        if isinstance(leaf, R.ShapeExpr):
            return torch.Size([self._size(size) for size in leaf.values])
        if isinstance(leaf, slice):
            return slice(*map(self._plain, (leaf.start, leaf.stop, leaf.step)))
        return self._size(leaf) if hasattr(leaf, "same_as") else leaf  # an expression of TVM

    def _size(self, size: Any) -> Any:
        """Return a size: a number, or a symbol of PyTorch."""
        size = getattr(size, "value", size)
        if isinstance(size, int):
            return size
        for known, symbol in self._sizes:
            if same_size(known, size):
                return symbol
        hint = 48 * (len(self._sizes) + 2)  # of which many numbers are divisors
        source = ConstantSource(f"n{len(self._sizes)}")
        symbol = self._shapes.create_unspecified_symint_and_symbol(hint, source, DimDynamic.DYNAMIC)
        self._sizes.append((size, symbol))
        return symbol


@cache
def _decompositions() -> dict[Any, Any]:
    """Return PyTorch's decompositions of operators without a row."""
    table = core_aten_decompositions()
    return {op: by for op, by in table.items() if getattr(op, "__name__", "") not in IMPORTED}


def _is_leaf(value: Any) -> bool:
    return isinstance(value, R.Expr)


def _items(importer: Any, stock: Callable[[Any], Any], node: fx.Node) -> Any:
    """Return elements of a tensor, or one of several results."""
    source = node.args[0]
    is_whole = is_tensor(importer.env.get(source)) and not _is_several(source)
    return _Trace(importer, "getitem").value(operator.getitem, node) if is_whole else stock(node)


def _is_several(source: Any) -> bool:
    name = source.target if isinstance(source.target, str) else source.target.__name__
    return source.op in ("call_function", "call_method") and name in _SEVERAL


def _dropout(importer: Any, node: fx.Node) -> Any:
    given = {**dict(zip(("input", "p", "training"), node.args)), **node.kwargs}
    _refuse_training(given.get("training", True) and given.get("p", 0.5))
    return importer._retrieve_args(given["input"])


def _dropout_module(importer: Any, node: Any) -> Any:
    module = importer.named_modules[node.target]
    _refuse_training(module.training and module.p)
    return importer._retrieve_args(node.args[0])


def _refuse_training(is_random: Any) -> None:
    if is_random:
        rule = "training=True must be False: call eval() on the model before tracing it"
        raise fail("dropout", rule)
