# SPDX-License-Identifier: Apache-2.0
"""Attention in whole models: an operator, or the chain of product, masks, softmax and product.

The chain is read backwards from the product of weights and values.  It may be written as PyTorch
exports it, decomposed or not, as ONNX exporters write it, or as transformers compute it:

    q, k        scaled by a number, transposed, reshaped, broadcast to a group of heads
    scores      multiplied or divided by a number; masks that are added, chosen by ``where``, or
                factors, one after another and perhaps with views in between
    softmax     in another floating-point dtype; zeros where all of a row is minus infinity
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from topi_ext import backend
from topi_ext.compat import call_attr, constant_value, relax, tensor_type_of
from topi_ext.fusion.attention import MASKS, SCORES, AttentionAnchor, V
from topi_ext.spec.attention import ADD, BOTTOM_RIGHT, HIDE, KEEP, MULTIPLY, TOP_LEFT, Mask
from topi_ext.spec.dtypes import FLOATS

from ..ir import are_same, dtype_of, shape_of
from ..target import target_of
from .constants import call_of
from .match import Match
from .matmul import MATMUL
from .operands import before, factor_of, stored
from .patterns import Lookup, Scope, is_operator, masked_softmax, named, number_in
from .views import PERMUTE, RESHAPES, shapes_of

R = relax()

OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")

_CAUSAL = {"": "", "TopLeft": TOP_LEFT, "BottomRight": BOTTOM_RIGHT}

_HALVES = ("float16", "bfloat16", "float32")


def read(call: Any, scope: Scope) -> Match | None:
    """Read a call that ends an attention.

    Returns
    -------
    Match or None
        None for other calls, if another call reads an intermediate value, and if the separate
        kernels are estimated to be faster.
    """
    if call.op.name in OPERATORS:
        return read_operator(call, scope.lookup)
    if call.op.name != MATMUL:
        return None
    chain = _Chain(scope)
    match = chain.read(call)
    if match is None or not match.is_supported or not chain.is_closed(call):
        return None
    is_faster = backend.is_faster(match.anchor.problem(()), target_of(match.type))
    return match if is_faster else None


def read_operator(call: Any, lookup: Lookup) -> Match | None:
    """Read a call of one of `OPERATORS`; None of unknown shapes, and with a window."""
    shapes = shapes_of(*call.args)
    if shapes is None or call_attr(call, "window_size") is not None:
        return None
    q, k, v, y = (dtype_of(one) for one in (*call.args[:3], call))
    anchor = AttentionAnchor.of_operator(shapes[:3], (q, k, v, y))
    if anchor is None:
        return None
    scale = call_attr(call, "scale")
    factor = 1 / sqrt(float(shapes[0][-1])) if scale is None else float(scale)
    causal = _CAUSAL[str(call_attr(call, "causal_mask") or "")]
    anchor = replace(anchor, scale=factor, causal=causal, zeros_empty=True)
    inputs = list(call.args[:3])
    if len(call.args) > 3:
        bias = call.args[3]
        stated = Mask(ADD, "", dtype_of(bias))
        anchor = anchor.masked(stated, shapes[3])
        inputs.append(bias)
    if anchor is None or not anchor.is_attention:
        return None
    return _stored(anchor, inputs, tensor_type_of(call), lookup)


def _stored(anchor: AttentionAnchor, inputs: list[Any], type_: Any, lookup: Lookup) -> Match:
    """Return the match whose kernel reads operands as stored, before views of them."""
    tensors = []
    for place, operand in enumerate(inputs):
        number = place if place <= V else MASKS + place - V - 1
        tensor, anchor = stored(operand, number, anchor, lookup, lambda _, one: one.is_attention)
        tensors.append(tensor)
    return Match(anchor, tuple(tensors), type_)


class _Chain:
    """The reading of one chain of calls.

    Attributes
    ----------
    weights, product : relax.Expr
        The weights, and the call that multiplies query and key, once they are read.
    masks : list of relax.Expr
        In the order in which they are applied.
    """

    def __init__(self, scope: Scope):
        self.scope, self.lookup = scope, scope.lookup
        self.weights: Any = None
        self.product: Any = None
        self.masks: list[Any] = []

    def read(self, call: Any) -> Match | None:
        """Read the product of weights and values."""
        self.weights, values = call.args
        tensors = (self.weights, values, call)
        shapes = shapes_of(*tensors)
        if shapes is None or min(map(len, shapes)) < 2:
            return None
        of_w, of_v, of_y = (dtype_of(one) for one in tensors)
        anchor = AttentionAnchor.of_values(shapes, (of_w, of_w, of_v, of_y))
        anchor = None if anchor is None else self._softmax(self.weights, anchor)
        if anchor is None:
            return None
        inputs = [*self.product.args, values, *self.masks]
        return _stored(anchor, inputs, tensor_type_of(call), self.lookup)

    def _softmax(self, weights: Any, anchor: AttentionAnchor) -> AttentionAnchor | None:
        """Read weights back to the softmax, and on to the product of query and key."""
        while True:
            call = call_of(weights, self.lookup)
            if call is None:
                return None
            where = named(call, "relax.where")
            softmax = masked_softmax(where, self.lookup) if where is not None else call
            if named(softmax, "relax.nn.softmax") is not None:
                break
            if where is not None:
                return None
            earlier = self._between(call, anchor)
            if earlier is None:
                return None
            anchor, weights = earlier, call.args[0]
        shape = shape_of(call)
        if shape is None or not are_same(shape, shape_of(softmax) or ()):
            return None
        is_last = int(call_attr(softmax, "axis")) % len(shape) == len(shape) - 1
        if not (is_last and anchor.is_along_keys()):
            return None
        anchor = replace(anchor, zeros_empty=where is not None)
        return self._scores(softmax.args[0], anchor)

    def _between(self, call: Any, anchor: AttentionAnchor) -> AttentionAnchor | None:
        """Return the anchor whose scores are before a view or a change of dtype."""
        if call.op.name == "relax.astype":
            both = (dtype_of(one) for one in (call, call.args[0]))
            return anchor if all(dtype in _HALVES for dtype in both) else None
        is_view = call.op.name in (*RESHAPES, PERMUTE, "relax.broadcast_to")
        return before(call, SCORES, anchor) if is_view else None

    def _scores(self, scores: Any, anchor: AttentionAnchor) -> AttentionAnchor | None:
        """Read scores back to the product of query and key."""
        call = call_of(scores, self.lookup)
        if call is None:
            return None
        if call.op.name == MATMUL:
            return self._product(call, anchor)
        earlier = self._between(call, anchor)
        if earlier is None and factor_of(call) is not None:
            earlier = before(call, SCORES, anchor)
        if earlier is not None:
            return self._scores(call.args[0], earlier)
        return next(filter(None, self._masks(call, anchor)), None)

    def _masks(self, call: Any, anchor: AttentionAnchor) -> Iterator[AttentionAnchor]:
        """Read scores to before a mask, once for each operand that may be the mask."""
        if anchor.scale != 1:
            return  # the mask would be multiplied, too
        for scores, mask, stated in _masks(call, self.lookup):
            shape, of_scores = shape_of(mask), shape_of(scores)
            if shape is None or not are_same(of_scores or (), shape_of(call) or ()):
                continue
            causal = None
            if _hides_later_keys(mask, stated, self.lookup):
                causal = anchor.hiding_later_keys()
            masked = causal or anchor.masked(stated, shape)
            found = masked and self._scores(scores, masked)
            if found:
                self.masks += [] if causal else [mask]
                yield found

    def _product(self, call: Any, anchor: AttentionAnchor) -> AttentionAnchor | None:
        """Read the product of query and key."""
        shapes = shapes_of(*call.args)
        of_q, of_k = (dtype_of(one) for one in call.args)
        if shapes is None or not {of_q, of_k} <= set(FLOATS):
            return None
        found = anchor.of_scores(shapes[0], shapes[1], (of_q, of_k))
        if found is None or not found.is_attention:
            return None
        self.product = call
        return found

    def is_closed(self, last: Any) -> bool:
        """Return whether only calls of the chain read scores and weights."""
        inside: dict[Any, bool] = {}

        def follows(value: Any) -> bool:
            """Return whether a value is computed from the product of query and key."""
            if value not in inside:
                call = self.lookup(value)
                inside[value] = False
                if is_operator(call) and not any(map(value.same_as, self.masks)):
                    is_product = call.same_as(self.product)
                    operands = () if is_product else call.args
                    found = [follows(one) for one in operands if isinstance(one, R.Var)]
                    inside[value] = is_product or any(found)
            return inside[value]

        follows(self.weights)
        chain = {value for value, is_inside in inside.items() if is_inside}
        return all(
            isinstance(value, R.DataflowVar)
            and all(var in chain or call.same_as(last) for var, call in self.scope.readers[value])
            for value in chain
        )


def _hides_later_keys(mask: Any, stated: Mask, lookup: Lookup) -> bool:
    """Return whether a mask is known to hide exactly the keys after a query's own number."""
    array = _array(mask, lookup) if stated.op in (ADD, KEEP) else None
    if array is None or array.ndim != 2 or stated.fill != -inf:
        return False
    triangle = np.tri(*array.shape, dtype=np.bool_)
    return np.array_equal(array, np.where(triangle, 0.0, -inf) if stated.op == ADD else triangle)


_MOST_ELEMENTS = 1 << 24
"""Maximum elements of an array that is computed to test whether a mask is a triangle."""

_ELEMENTWISE = {
    f"relax.{name}": getattr(np, name)
    for name in ("add", "subtract", "less_equal", "greater_equal", "logical_and", "logical_not")
} | {"relax.where": np.where}


def _array(expr: Any, lookup: Lookup) -> np.ndarray | None:
    """Return the array that an expression of constants, ranges and comparisons gives, else None."""
    call = call_of(expr, lookup)
    if call is None:
        known = lookup(expr)
        constant = constant_value(expr if known is None else known)
        return None if constant is None else constant.numpy()
    name, shape = str(call.op.name), shape_of(call)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    if prod(shape) > _MOST_ELEMENTS:
        return None
    if name == "relax.arange":
        return np.arange(*(int(one.value) for one in call.args))
    if name == "relax.full":
        number = number_in(call.args[1])
        return None if number is None else np.broadcast_to(number, shape)
    is_view = name in (*RESHAPES, "relax.broadcast_to")
    if not is_view and name not in _ELEMENTWISE:
        return None
    given = call.args[:1] if is_view else call.args
    operands = [array for one in given if (array := _array(one, lookup)) is not None]
    if len(operands) < len(given):
        return None
    if is_view:
        same = name in RESHAPES
        return operands[0].reshape(shape) if same else np.broadcast_to(operands[0], shape)
    return _ELEMENTWISE[name](*operands)


_BINARY = {"relax.add": ADD, "relax.multiply": MULTIPLY}


def _masks(call: Any, lookup: Lookup) -> Iterator[tuple[Any, Any, Mask]]:
    """Yield each way to read a call as scores with a mask: scores, mask, and its description."""
    if call.op.name in _BINARY:
        for scores, mask in (call.args, reversed(call.args)):
            dtype = dtype_of(mask)
            if dtype in FLOATS:
                yield scores, mask, Mask(_BINARY[call.op.name], "", dtype)
    elif call.op.name == "relax.where":
        condition, *values = call.args
        for op, (scores, fill) in ((KEEP, values), (HIDE, reversed(values))):
            number = _number(fill, lookup)
            if number is not None:
                yield scores, condition, Mask(op, "", "bool", number)


def _number(expr: Any, lookup: Lookup) -> float | None:
    """Return the number that all elements of a tensor are equal to."""
    call = call_of(expr, lookup)
    if call is None:
        known = lookup(expr)
        return number_in(expr if known is None else known)
    if call.op.name in ("relax.full", "relax.full_like"):
        return number_in(call.args[1])
    is_view = call.op.name in (*RESHAPES, "relax.broadcast_to")
    return _number(call.args[0], lookup) if is_view else None
