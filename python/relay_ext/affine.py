# SPDX-License-Identifier: Apache-2.0
"""Constant per-channel scales and shifts after a convolution, merged into its weight and a bias.

Batch normalizations in inference are such, and sums and products with constants.  TVM's
``FoldScaleAxis`` merges some of them into ``nn.conv2d``, from ``opt_level=3`` on.  This does it
for all convolutions, before TVM's passes, at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm

from topi_ext.compat import relay
from topi_ext.fusion.post_ops import is_normal

from .attrs import KIND, Conv, read
from .relation import Operand

R = relay()

_CONVS = {name for name, kind in KIND.items() if kind != "conv_weight_grad"}
_DTYPES = ("float16", "float32", "float64")
_PASS = "FoldScaleAxis"
"""TVM's own pass; weights stay as they are where it is disabled."""

_OF_COMPILERS = ("Compiler", "Composite", "Primitive")
"""Attributes of functions that compilers have taken as they are."""

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "negative": np.negative,
}
_RESHAPES = ("expand_dims", "reshape", "squeeze")


class _Affine(NamedTuple):
    """``scale * value + shift`` of each channel, in float64."""

    scale: np.ndarray
    shift: np.ndarray


class _Merged(NamedTuple):
    """A convolution with another weight, and its bias, which broadcasts, or None."""

    call: Any
    weight: np.ndarray
    bias: np.ndarray | None


def merged(mod: Any, params: Mapping[str, Any]) -> Any:
    """Return a module whose convolutions contain the scales and shifts behind them.

    A value that has another reader stays as it is, and so does a convolution whose scaled weight
    would leave the normal range of its dtype.

    Parameters
    ----------
    mod : IRModule
    params : mapping
        Arrays of parameters of ``main``, by name.
    """
    if _PASS in map(str, tvm.transform.PassContext.current().disabled_pass):
        return mod
    if _CONVS.isdisjoint(map(str, R.analysis.list_op_freqs(mod))):
        return mod
    typed = R.transform.InferType()(mod)
    changed = {}
    for name, function in typed.functions.items():
        is_ours = isinstance(function, R.Function) and not _is_of_compiler(function)
        with np.errstate(all="ignore"):  # what is not finite is not merged
            new = _Graph(function, params).merged() if is_ours else None
        if new is not None:
            changed[name] = new
    for name, new in changed.items():
        typed.update_func(name, new)
    return typed if changed else mod


def _is_of_compiler(function: Any) -> bool:
    return function.attrs is not None and any(name in function.attrs for name in _OF_COMPILERS)


class _Graph:
    """A typed function.

    Parameters
    ----------
    function : relay.Function
    params : mapping
        Arrays of parameters, by name.
    """

    def __init__(self, function: Any, params: Mapping[str, Any]) -> None:
        self.function = function
        self.nodes: list[Any] = []
        R.analysis.post_order_visit(function.body, self.nodes.append)
        self.is_plain = all(_children(node) is not None for node in self.nodes)
        self.readers: dict[int, list[Any]] = {}
        for node in self.nodes:
            for child in _children(node) or ():
                self.readers.setdefault(_id(child), []).append(node)
        self.arrays = {
            _id(variable): params[variable.name_hint]
            for variable in function.params
            if variable.name_hint in params
        }

    def merged(self) -> Any:
        """Return the function with what can be merged; None where that is nothing.

        A function that is more than plain data flow has nothing.
        """
        if not self.is_plain:
            return None
        ends: dict[int, _Merged] = {}
        for node in self.nodes:
            if isinstance(node, R.Call) and getattr(node.op, "name", "") in _CONVS:
                ends.update(self._end_of(node))
        return self._rebuilt(ends) if ends else None

    def _rebuilt(self, ends: Mapping[int, _Merged]) -> Any:
        """Return the function with merged convolutions in the place of `ends`."""
        made: dict[int, Any] = {}
        for node in self.nodes:
            found = ends.get(_id(node))
            if found is None:
                made[_id(node)] = _with_children(
                    node, [made[_id(c)] for c in _children(node) or ()]
                )
                continue
            call, dtype = found.call, str(found.weight.dtype)
            data = made[_id(call.args[0])]
            new = R.Call(call.op, [data, R.const(found.weight, dtype)], call.attrs, call.type_args)
            if found.bias is not None:
                new = R.add(new, R.const(found.bias, dtype))
            made[_id(node)] = new
        old, body = self.function, made[_id(self.function.body)]
        return R.Function(old.params, body, old.ret_type, old.type_params, old.attrs, old.span)

    def _end_of(self, call: Any) -> Iterator[tuple[int, _Merged]]:
        """Yield the last value behind a convolution that is merged into it, and what it becomes."""
        weight = self._value(call.args[1])
        conv = None if weight is None else _read(call)
        if conv is None:
            return
        axis = conv.layouts[conv.result].order.index("C")
        channels = conv.geometry.c if conv.kind == "conv_transpose" else conv.geometry.k
        value, sums, steps = call, _Affine(np.ones(channels), np.zeros(channels)), 0
        while len(self.readers.get(_id(value), ())) == 1 and not value.same_as(self.function.body):
            step = self._step(value, self.readers[_id(value)][0], axis, channels)
            if step is None:
                break
            value, affine = step
            sums = _Affine(affine.scale * sums.scale, affine.scale * sums.shift + affine.shift)
            steps += 1
        dtype, scaled = conv.dtypes["w"], _scaled(conv, weight, sums.scale)
        if steps and is_normal(scaled, dtype) and is_normal(sums.shift, dtype):
            # TVM compiles what makes a vector one that broadcasts.
            shape = (channels, *[1] * (len(value.checked_type.shape) - axis - 1))
            bias = sums.shift.astype(dtype).reshape(shape) if np.any(sums.shift) else None
            yield _id(value), _Merged(call, scaled.astype(dtype), bias)

    def _step(self, value: Any, reader: Any, axis: int, channels: int) -> Any:
        """Return the value of a reader, and what it does to channels; None of another reader."""
        name = getattr(getattr(reader, "op", None), "name", "")
        if name == "nn.batch_norm":
            return self._norm(value, reader, axis)
        if name not in ("add", "subtract", "multiply", "divide", "nn.bias_add"):
            return None
        left, right = reader.args
        is_left = left.same_as(value)
        operand = self._value(right if is_left else left)
        if operand is None:
            return None
        rank = len(value.checked_type.shape)
        if name == "nn.bias_add":
            is_channel = is_left and int(reader.attrs.axis) % rank == axis
            vector = operand if is_channel else None
        else:
            vector = _per_channel(operand, rank, axis, channels)
        if vector is None or (name == "divide" and not is_left):
            return None
        if name in ("multiply", "divide"):
            return reader, _Affine(vector if name == "multiply" else 1 / vector, 0 * vector)
        sign = 1 if name != "subtract" else -1
        if is_left:
            return reader, _Affine(np.ones(channels), sign * vector)
        return reader, _Affine(np.full(channels, sign), vector)

    def _norm(self, value: Any, norm: Any, axis: int) -> Any:
        """Return the result of a batch normalization, and what it does to channels."""
        attrs, readers = norm.attrs, self.readers.get(_id(norm), [])
        is_read = len(readers) == 1 and isinstance(readers[0], R.TupleGetItem)
        rank = len(value.checked_type.shape)
        if not (is_read and readers[0].index == 0 and norm.args[0].same_as(value)):
            return None
        vectors = [self._value(vector) for vector in norm.args[1:]]
        if int(attrs.axis) % rank != axis or any(vector is None for vector in vectors):
            return None
        gamma, beta, mean, variance = vectors
        scale = (gamma if attrs.scale else 1) / np.sqrt(variance + attrs.epsilon)
        return readers[0], _Affine(scale, (beta if attrs.center else 0) - scale * mean)

    def _value(self, expr: Any) -> Any:
        """Return a constant as an array of float64; None of what is no constant of fractions."""
        if isinstance(expr, R.Constant):
            array = expr.data.numpy()
        elif isinstance(expr, R.Var):
            array = self.arrays.get(_id(expr))
            array = None if array is None else np.asarray(getattr(array, "numpy", lambda: array)())
        else:
            return self._computed(expr)
        is_taken = array is not None and array.dtype.name in _DTYPES
        return array.astype("float64") if is_taken else None

    def _computed(self, expr: Any) -> Any:
        name = getattr(getattr(expr, "op", None), "name", "")
        if name not in (*_ARITHMETIC, *_RESHAPES, "transpose"):
            return None
        values = [self._value(one) for one in expr.args[: 1 if name in _RESHAPES else None]]
        if any(value is None for value in values):
            return None
        if name == "transpose":
            axes = expr.attrs.axes
            return values[0].transpose(None if axes is None else [int(a) for a in axes])
        if name in _RESHAPES:
            return values[0].reshape([int(size) for size in expr.checked_type.shape])
        return _ARITHMETIC[name](*values)


def _read(call: Any) -> Conv | None:
    """Read a convolution of fractions of one dtype, in layouts without blocks."""
    types = [Operand.of(one.checked_type) for one in call.args]
    conv = read(call.op.name, call.attrs, types)
    if conv is None or not all(layout.is_plain for layout in conv.layouts.values()):
        return None
    dtypes = set(conv.dtypes.values())
    return conv if len(dtypes) == 1 and dtypes <= set(_DTYPES) else None


def _scaled(conv: Conv, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a stored weight, multiplied by one number for each channel of the result."""
    geometry, layout = conv.geometry, conv.layouts["w"]
    order = [layout.order.index(letter) for letter in layout.letters]
    opened = weight.transpose(order)
    stored, rest = opened.shape, (1,) * geometry.rank
    if conv.kind == "conv_transpose":
        rows = scale.reshape(geometry.groups, 1, -1)
        factor = np.repeat(rows, geometry.k // geometry.groups, 1).reshape(*opened.shape[:2], *rest)
    else:
        opened, factor = opened.reshape(geometry.w_shape), scale.reshape(-1, 1, *rest)
    return (opened * factor).reshape(stored).transpose(np.argsort(order))


def _per_channel(array: np.ndarray, rank: int, axis: int, channels: int) -> np.ndarray | None:
    """Return a constant that broadcasts against a value as a vector of its channels; None where it
    varies along other axes, or enlarges the value."""
    if array.ndim > rank:
        return None
    shape = [1] * (rank - array.ndim) + list(array.shape)
    size = shape.pop(axis)
    if set(shape) - {1} or size not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,))


def _id(node: Any) -> int:
    return int(node.handle.value)


def _children(node: Any) -> Sequence[Any] | None:
    """Return the values that a node reads; None of a node that is more than data flow."""
    if isinstance(node, R.Call):
        return [node.op, *node.args]
    if isinstance(node, R.Tuple):
        return list(node.fields)
    if isinstance(node, R.TupleGetItem):
        return [node.tuple_value]
    is_leaf = isinstance(node, (R.Var, R.GlobalVar, R.Constant, tvm.ir.Op))
    return [] if is_leaf else None


def _with_children(node: Any, children: Sequence[Any]) -> Any:
    """Return a node that reads other values; itself where they are the same."""
    if all(one.same_as(other) for one, other in zip(children, _children(node) or ())):
        return node
    if isinstance(node, R.Call):
        op, *args = children
        return R.Call(op, args, node.attrs, node.type_args, node.span)
    if isinstance(node, R.Tuple):
        return R.Tuple(children, node.span)
    return R.TupleGetItem(*children, node.index)
