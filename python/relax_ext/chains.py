# SPDX-License-Identifier: Apache-2.0
"""Which operators of a function one kernel computes.

A chain begins at a convolution, a transposed convolution, a matrix product, a softmax or a norm.
It goes on with steps that kernels know: a bias, a scale, a residual, an activation.  A step may use
an earlier value again, as ``x * sigmoid(x)`` does.  It ends where somebody else reads a value.

Reshapes and transposes between the steps are how the kernel writes its result, where it can do so
by vectors; else they come behind the steps, which compute each element alone.

Behind sums of integers steps also go to float32 and to integers of few bits (:mod:`.quantized`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    constant_value,
    dtype_name,
    known_shape,
    relax,
    same_size,
    tensor_type_of,
)
from topi_ext.epilogue import PostOp

from .anchor import Anchor, ConvAnchor, is_view
from .attrs import STOCK, read
from .constants import value_of
from .matmul import MATMUL
from .matmul import read as read_product
from .patterns import Lookup, is_operator, number_in
from .quantized import of_bytes, stands_for
from .quantized_steps import DEQUANTIZE, Step, conversion, is_saturated, simplified, takes
from .resizes import read as read_resize
from .rows import read as read_rows
from .target import target_of
from .transposes import read as read_transpose

R = relax()

_BINARY = {f"relax.{name}": name for name in ("add", "subtract", "multiply", "divide")}
_LIMITS = {f"relax.{name}": name for name in ("minimum", "maximum")}
"""Taken with a number: of two tensors, TVM and kernels differ in which NaN stays."""

_COMMUTATIVE = ("add", "multiply")
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


class Link(NamedTuple):
    """A value of a chain.

    Attributes
    ----------
    var : relax.Var
    call : relax.Call
        That gives it.
    steps, operands, views : int
        How many the chain has up to here.
    shape : int
        How often elements have moved until here: values of the same number have the same places.
    mark : object
        Of the anchor.
    """

    var: Any
    call: Any
    steps: int
    operands: int
    views: int
    shape: int
    mark: Any


@dataclass
class Chain:
    """What a kernel begins with, the steps behind it, and the views behind these.

    Attributes
    ----------
    lookup : Lookup
        What the operands of steps are.
    """

    anchor: Anchor
    steps: list[PostOp] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)
    views: list[Any] = field(default_factory=list)
    lookup: Lookup = {}.get
    links: list[Link] = field(default_factory=list)

    def add(self, steps: Sequence[Step]) -> None:
        """Put steps behind those that there are."""
        self.steps += [step for step, _ in steps]
        self.operands += [operand for step, operand in steps if step.order]

    def simplify(self) -> None:
        """Merge what steps multiply by."""
        operands = iter(self.operands)
        steps = [(step, next(operands) if step.order else None) for step in self.steps]
        self.steps, self.operands = [], []
        self.add(simplified(steps))

    def link(self, var: Any, call: Any, moved: int = 0) -> None:
        """Note the value that the chain has now."""
        shape = self.links[-1].shape + moved if self.links else 0
        sizes = len(self.steps), len(self.operands), len(self.views)
        self.links.append(Link(var, call, *sizes, shape, self.anchor.mark()))

    def cut(self, count: int) -> None:
        """Keep that many links."""
        del self.links[count:]
        last = self.links[-1]
        del self.steps[last.steps :], self.operands[last.operands :], self.views[last.views :]
        self.anchor.reset(last.mark)


Readers = dict[Any, list[tuple[Any, Any]]]
"""Of a value, the values that are calculated from it, each with its call."""

Begin = Callable[[Any, Lookup, Lookup], Chain | None]
"""``begin(value, lookup, outside)``: the chain that a value begins.  `outside` is a `lookup` that
sees nothing of what chains compute, nor behind it."""


def chains_of(func: Any, begin: Begin) -> dict[Any, Chain]:
    """The chains of a function, by their last calls."""
    bindings = [
        (binding.var, binding.value)
        for block in func.body.blocks
        if isinstance(block, R.DataflowBlock)
        for binding in block.bindings
    ]
    readers: Readers = defaultdict(list)
    for var, value in bindings:
        for used in R.analysis.free_vars(value):
            readers[used].append((var, value))
    found, values, ends = {}, dict(bindings), set()
    taken: set[Any] = set()

    def lookup(expr: Any) -> Any:
        return values.get(expr)

    def outside(expr: Any) -> Any:
        """The same, of what no chain computes: nobody sees behind the end of one."""
        return None if expr in ends else values.get(expr)

    for var, value in bindings:
        chain = begin(value, lookup, outside)
        if chain is None:
            continue
        chain.link(var, value)
        _grow(chain, readers, taken)
        chain.simplify()
        last = chain.links[-1]
        ends.add(last.var)
        taken.update(link.var for link in chain.links)
        found[last.call] = chain
    return found


def _grow(chain: Chain, readers: Readers, taken: set[Any]) -> None:
    """Add steps as long as that is possible, then cut what cannot be without others.

    A sum of two convolutions is a step of the first; `taken` are the values of chains so far.
    """
    while isinstance(chain.links[-1].var, R.DataflowVar):
        free = (one for one in readers[chain.links[-1].var] if one[0] not in taken)
        if not any(_extend(chain, *reader) for reader in free):
            break
    calls = [link.call for link in chain.links]
    count = len(calls)
    while count > 1 and not _is_whole(chain, count, calls[:count], readers):
        count -= 1
    chain.cut(count)


def _is_whole(chain: Chain, count: int, calls: list[Any], readers: Readers) -> bool:
    """Whether nobody else reads a value between these, and the last is no view that comes behind
    all steps anyway, nor bytes as fractions again, which the next convolution reads as bytes."""
    if chain.links[count - 1].views > chain.links[count - 2].views:
        return False
    if calls[-1].op.name == DEQUANTIZE and is_saturated(chain.steps[: chain.links[-2].steps]):
        return False
    return all(
        any(call.same_as(one) for one in calls)
        for link in chain.links[: count - 1]
        for _, call in readers[link.var]
    )


def transposes(value: Any, *_: Lookup) -> Chain | None:
    """The chain that a transpose begins."""
    transpose = read_transpose(value) if is_operator(value) else None
    return transpose and Chain(transpose)


def products_and_rows(value: Any, lookup: Lookup, outside: Lookup) -> Chain | None:
    """The chain that a convolution, a matrix product, a softmax or a norm begins, where a kernel of
    ours can end it."""
    is_call = is_operator(value)
    if is_call and value.op.name == MATMUL:
        product = read_product(value, outside)
        return product and Chain(product)
    resize = read_resize(value) if is_call else None
    if resize is not None:
        return Chain(resize)
    rows = read_rows(value, lookup) if is_call else None
    if rows is not None:
        return Chain(*rows)
    if not (is_call and value.op.name in STOCK):
        return None
    conv = read(value)
    if conv is None or conv.geometry is None or conv.is_blocked:
        return None
    if "" in conv.dtypes.values():
        return None  # legalization refuses it
    found = tensor_type_of(value)
    is_empty = 0 in conv.shape(conv.result) or conv.n == 0
    target = target_of(found)
    if is_empty or not backend.supports("conv", target):
        return None
    quantized = of_bytes(value, conv, target, lookup)
    if quantized is None:
        return Chain(ConvAnchor(value, conv, target, found), lookup=lookup)
    chain = Chain(quantized.anchor, lookup=lookup)
    chain.add(quantized.steps)
    return chain


def _extend(chain: Chain, var: Any, call: Any) -> bool:
    """Add `call`, which reads the chain's value, to the chain; whether it could be."""
    if not is_operator(call):
        return False
    dtype, found = chain.anchor.dtype, tensor_type_of(call)
    if found is None:
        return False
    if dtype_name(found.dtype) != dtype:
        return _convert(chain, var, call)
    name = str(call.op.name)
    if not takes(dtype, chain.steps, name):
        return False
    if is_view(call):
        if chain.views or not chain.anchor.seen_by(call):
            chain.views.append(call)
        chain.link(var, call, moved=1)
        return True
    steps = [*_steps(chain, name, call)]
    if not steps:
        return False
    chain.add(steps)
    chain.link(var, call)
    return True


def _convert(chain: Chain, var: Any, call: Any) -> bool:
    """The same of a call that gives another dtype."""
    steps = conversion(call, chain.anchor.dtype, chain.steps, chain.lookup)
    if not steps or not chain.anchor.convert(call):
        return False
    chain.add(steps)
    chain.link(var, call)
    return True


def _steps(chain: Chain, name: str, call: Any) -> list[Step]:
    """The steps that a call is, each with its operand."""
    if name in _UNARY:
        slope = float(call_attr(call, "alpha")) if name == "relax.nn.leakyrelu" else 0.0
        return [(PostOp(_UNARY[name], value=slope), None)]
    if name == "relax.clip":
        limits = [_prim_value(one) for one in call.args[1:3]]
        if None in limits or limits[0] > limits[1]:
            return []
        if is_saturated(chain.steps) and any(a % 1 for a in limits):
            return []
        return [(PostOp(op, value=a), None) for op, a in zip(("maximum", "minimum"), limits)]
    if name in _LIMITS:
        limit = next((a for a in map(number_in, call.args) if a is not None and a == a), None)
        return [] if limit is None else [(PostOp(_LIMITS[name], value=limit), None)]
    if name not in _BINARY:
        return []
    now, (left, right) = chain.links[-1].var, call.args
    if not left.same_as(now) and right.same_as(now) and _BINARY[name] in _COMMUTATIVE:
        left, right = right, left
    if not left.same_as(now):
        return []
    step = _earlier(_BINARY[name], chain, call, right)
    found = _binary(_BINARY[name], chain, right) if step is None else (step, right)
    return [] if found is None else [found]


def _prim_value(expr: Any) -> float | None:
    """The number of an argument that is no tensor."""
    value = getattr(expr, "value", expr)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, (int, float)) else number_in(expr)


def _earlier(op: str, chain: Chain, call: Any, operand: Any) -> PostOp | None:
    """The step whose operand is a value of the chain itself."""
    for link in chain.links:
        if operand.same_as(link.var):
            same = link.shape == chain.links[-1].shape
            return PostOp(op, earlier=link.steps) if same else None
    return None


def _binary(op: str, chain: Chain, operand: Any) -> Step | None:
    """The step with this operand, which may be broadcast, but must not broadcast the result."""
    anchor, found = chain.anchor, tensor_type_of(operand)
    if any(operand.same_as(link.var) for link in chain.links):
        return None
    shape = None if found is None else known_shape(found.shape)
    if shape is None or len(shape) > len(anchor.axes):
        return None
    constant = number_in(_known(chain, operand))
    if constant is not None:
        # TVM replaces x * 0 by 0 also where x is not finite.
        return None if (op, constant) == ("multiply", 0) else (PostOp(op, value=constant), None)
    if not shape or chain.views:
        return None
    axes = anchor.axes[len(anchor.axes) - len(shape) :]
    varies = ""
    for letters, size in zip(axes, shape):
        if same_size(size, 1):
            continue
        if not same_size(size, prod((anchor.sizes[a] for a in letters), start=1)):
            return None
        varies += letters
    if not varies and anchor.needs_axes:
        return None
    return _stored(PostOp(op, "".join(axes), varies), chain, operand)


def _known(chain: Chain, operand: Any) -> Any:
    """An operand behind sums of integers, as a constant where its value is known."""
    value = value_of(operand, chain.lookup) if chain.anchor.sums_integers else None
    return operand if value is None else R.const(np.ascontiguousarray(value))


def _stored(step: PostOp, chain: Chain, operand: Any) -> Step:
    """The step with its operand as it is stored: a constant, or bytes that stand for it."""
    if not chain.anchor.sums_integers:
        return step, operand
    operand, found = _known(chain, operand), stands_for(operand, chain.lookup)
    if found is None or constant_value(operand) is not None:
        return replace(step, dtype=dtype_name(tensor_type_of(operand).dtype)), operand
    scale = float(found.scale.reshape(()))
    step = replace(step, dtype=found.dtype, scale=scale, zero_point=found.zero_point)
    return step, found.tensor
