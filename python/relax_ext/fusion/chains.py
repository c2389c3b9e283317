# SPDX-License-Identifier: Apache-2.0
"""Find the operators of a function that one kernel computes.

A chain begins at a convolution, a transposed convolution, a matrix product, a softmax or a norm.
It goes on with steps that kernels know: a bias, a scale, a residual, an activation.  A step may use
an earlier value again, as ``x * sigmoid(x)`` does.  It ends where somebody else reads a value.

Reshapes and transposes between the steps are how the kernel writes its result, where it can do so
by vectors; else they come behind the steps, which compute each element alone.

Behind sums of integers steps also go to float32 and to integers of few bits (:mod:`.quantized`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topi_ext.compat import call_attr, dtype_name, relax, tensor_type_of
from topi_ext.fusion import post_ops
from topi_ext.fusion.anchors import ConvAnchor
from topi_ext.fusion.chain import Chain as CommonChain
from topi_ext.fusion.post_ops import COMMUTATIVE, Step, are_integers
from topi_ext.spec.post_ops import PostOp

from ..ir import dtype_of, shape_of
from ..op.attrs import STOCK, read
from .constants import DEQUANTIZE, QUANTIZE, value_of
from .match import Match
from .matmul import MATMUL
from .matmul import read as read_product
from .patterns import Function, Lookup, Readers, Scope, is_operator, number_in
from .quantized import of_bytes, stands_for
from .quantized_products import product_of_bytes
from .resizes import read as read_resize
from .rows import read as read_rows
from .transposes import read as read_transpose
from .views import is_view, viewed

R = relax()

_BINARY = {f"relax.{name}": name for name in ("add", "subtract", "multiply", "divide")}
_LIMITS = {f"relax.{name}": name for name in ("minimum", "maximum")}
"""Taken with a number: of two tensors, TVM and kernels differ in which NaN stays."""

_UNARY = {
    "relax.nn.relu": "relu",
    "relax.nn.leakyrelu": "leaky_relu",
    "relax.nn.silu": "silu",
    "relax.nn.gelu": "gelu",
    "relax.nn.gelu_tanh": "gelu_tanh",
    "relax.sigmoid": "sigmoid",
    "relax.tanh": "tanh",
    "relax.erf": "erf",
}


@dataclass
class Chain(CommonChain):
    """A chain of calls of Relax."""

    match: Match = field(kw_only=True)
    lookup: Lookup = field(kw_only=True)

    @classmethod
    def begun(cls, match: Match, lookup: Lookup) -> Chain:
        """Return the chain of one call; `lookup` reads the operands of its post-ops."""
        begun = cls(match.anchor, match=match, lookup=lookup)
        begun.add(match.steps)
        return begun


Begin = Callable[[Any, Scope], Match | None]
"""``begin(call, scope)`` reads a call that begins a chain."""


def chains_of(func: Any, begin: Begin) -> dict[Any, Chain]:
    """Return the chains of a function by their last calls."""
    function = Function.of(func)
    values, readers = function.values, function.readers
    chains, ends = {}, set()
    taken: set[Any] = set()

    def outside(expr: Any) -> Any:
        return None if expr in ends else values.get(expr)

    scope = Scope(function.value, outside, readers)
    for var, value in values.items():
        match = begin(value, scope) if is_operator(value) else None
        if match is None or not match.is_supported:
            continue
        chain = Chain.begun(match, function.value)
        chain.link(var, value)
        _grow(chain, readers, taken)
        chain.simplify()
        last = chain.links[-1]
        ends.add(last.value)
        taken.update(link.value for link in chain.links)
        chains[last.call] = chain
    return chains


def _grow(chain: Chain, readers: Readers, taken: set[Any]) -> None:
    """Append calls as long as possible, then cut those that leave values to other readers.

    A sum of two convolutions is a step of the first; `taken` are the values of chains so far.
    """
    while isinstance(chain.links[-1].value, R.DataflowVar):
        free = (one for one in readers[chain.links[-1].value] if one[0] not in taken)
        if not any(_extend(chain, *reader) for reader in free):
            break
    count = len(chain.links)
    while count > 1 and not _is_whole(chain, count, readers):
        count -= 1
    chain.cut(count)


def _is_whole(chain: Chain, count: int, readers: Readers) -> bool:
    """Return whether only these calls read the values between them.

    Nor may the last be a view behind all steps, which is a call anyway, or a dequantize, behind
    which the next convolution reads bytes.
    """
    if chain.links[count - 1].views > chain.links[count - 2].views:
        return False
    if chain.links[count - 1].call.op.name == DEQUANTIZE and are_integers(
        chain.steps[: chain.links[-2].steps]
    ):
        return False
    return chain.is_closed(count, lambda value: (call for _, call in readers[value]))


def transposes(call: Any, _: Scope) -> Match | None:
    """Read a transpose."""
    return read_transpose(call)


def products_and_rows(call: Any, scope: Scope) -> Match | None:
    """Read a convolution, a matrix product, a resize, a softmax or a norm."""
    if call.op.name == MATMUL:
        return product_of_bytes(call, scope) or read_product(call, scope.outside)
    if call.op.name in STOCK:
        return _read_conv(call, scope.lookup)
    return read_resize(call) or read_rows(call, scope.lookup)


def _read_conv(call: Any, lookup: Lookup) -> Match | None:
    """Read a convolution, as one of bytes where it is one."""
    conv = read(call)
    if conv is None or conv.geometry is None or conv.is_blocked:
        return None
    if "" in conv.dtypes.values():
        return None  # legalization rejects it
    if 0 in conv.shape(conv.result) or conv.n == 0:
        return None
    match = Match(ConvAnchor(conv.op, conv.problem), tuple(call.args[:2]), tensor_type_of(call))
    return of_bytes(match, conv, lookup) or match


def _extend(chain: Chain, var: Any, call: Any) -> bool:
    """Append `call`, which reads the chain's value, where the kernel can compute it."""
    if not is_operator(call):
        return False
    dtype, found = chain.anchor.dtype, tensor_type_of(call)
    if found is None:
        return False
    if dtype_name(found.dtype) != dtype:
        return _convert(chain, var, call)
    name = str(call.op.name)
    if not post_ops.takes(dtype, chain.steps, name.removeprefix("relax.")):
        return False
    if is_view(call):
        anchor = None if chain.views else viewed(chain.anchor, call)
        if anchor is None:
            chain.views.append(call)
        else:
            chain.anchor = anchor
        chain.link(var, call, moves=1)
        return True
    steps = _steps(chain, name, call)
    if not steps:
        return False
    chain.add(steps)
    chain.link(var, call)
    return True


def _convert(chain: Chain, var: Any, call: Any) -> bool:
    """Append a call that computes another dtype, where the kernel can."""
    steps = _conversion(chain, call)
    anchor = chain.anchor.converted(dtype_of(call))
    if not steps or anchor is None:
        return False
    chain.anchor = anchor
    chain.add([(step, None) for step in steps])
    chain.link(var, call)
    return True


def _conversion(chain: Chain, call: Any) -> list[PostOp]:
    """Return the post-ops of a call that computes another dtype; none of other calls."""
    name, dtype, to = call.op.name, chain.anchor.dtype, dtype_of(call)
    if name == "relax.astype":
        return post_ops.cast(dtype, to)
    if name not in (QUANTIZE, DEQUANTIZE):
        return []
    scale, zero_point = (_only_number(one, chain.lookup) for one in call.args[1:])
    if name == QUANTIZE:
        return post_ops.quantize(dtype, to, scale, zero_point)
    return post_ops.dequantize(dtype, to, scale, zero_point, chain.steps)


def _only_number(expr: Any, lookup: Lookup) -> float | None:
    """Return the number of which all elements of a tensor are, or None."""
    value = value_of(expr, lookup)
    if value is None or value.size == 0 or np.any(value != value.flat[0]):
        return None
    return float(value.flat[0])


def _steps(chain: Chain, name: str, call: Any) -> list[Step]:
    """Return the post-ops of a call, each with its operand; none where there are none."""
    if name in _UNARY:
        slope = float(call_attr(call, "alpha")) if name == "relax.nn.leakyrelu" else 0.0
        return [(PostOp(_UNARY[name], value=slope), None)]
    if name == "relax.clip":
        low, high = (_prim_value(one) for one in call.args[1:3])
        if low is None or high is None:
            return []
        return [(step, None) for step in post_ops.clip(low, high, chain.steps)]
    if name in _LIMITS:
        limit = next((a for a in map(number_in, call.args) if a is not None and a == a), None)
        return [] if limit is None else [(PostOp(_LIMITS[name], value=limit), None)]
    if name not in _BINARY:
        return []
    now, (left, right) = chain.links[-1].value, call.args
    if not left.same_as(now) and right.same_as(now) and _BINARY[name] in COMMUTATIVE:
        left, right = right, left
    if not left.same_as(now):
        return []
    step = _binary(_BINARY[name], chain, right)
    return [] if step is None else [step]


def _prim_value(expr: Any) -> float | None:
    """Return the number of an argument that is no tensor."""
    value = getattr(expr, "value", expr)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, (int, float)) else number_in(expr)


def _binary(op: str, chain: Chain, operand: Any) -> Step | None:
    """Return the post-op with this operand, which may be a value of the chain itself."""
    for link in chain.links:
        if operand.same_as(link.value):
            is_in_place = link.moves == chain.links[-1].moves
            return (PostOp(op, earlier=link.steps), None) if is_in_place else None
    shape = shape_of(operand)
    if shape is None or len(shape) > len(chain.anchor.axes):
        return None
    known = value_of(operand, chain.lookup) if chain.anchor.sums_integers else None
    number = number_in(operand) if known is None else _number_of(known)
    if number is not None:
        step = post_ops.with_number(op, number)
        return None if step is None else (step, None)
    step = None if not shape or chain.views else chain.anchor.post_op(op, shape)
    if step is None:
        return None
    if not chain.anchor.sums_integers:
        return step, operand
    return _stored(step, operand if known is None else np.ascontiguousarray(known), chain.lookup)


def _number_of(array: np.ndarray) -> float | None:
    return float(array.reshape(())) if array.size == 1 else None


def _stored(step: PostOp, operand: Any, lookup: Lookup) -> Step:
    """Return a post-op behind sums of integers, whose operand is a constant, or bytes for it."""
    if isinstance(operand, np.ndarray):
        return replace(step, dtype=str(operand.dtype)), operand
    found = stands_for(operand, lookup)
    if found is None:
        return replace(step, dtype=dtype_of(operand)), operand
    data, scale = found
    step = replace(step, dtype=data.dtype, scale=scale, zero_point=data.zero_point)
    return step, data.tensor
