# SPDX-License-Identifier: Apache-2.0
"""Which operators of a function one kernel computes.

A chain begins at a convolution, a transposed convolution, a matrix product, a softmax or a norm.
It goes on with steps that kernels know: a bias, a scale, a residual, an activation.  A step may use
an earlier value again, as ``x * sigmoid(x)`` does.  It ends where somebody else reads a value.

Reshapes and transposes between the steps are how the kernel writes its result, where it can do so
by vectors; else they come behind the steps, which compute each element alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Optional

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    dtype_name,
    known_shape,
    relax,
    same_size,
    tensor_type_of,
)
from topi_ext.epilogue import PostOp

from .anchor import Anchor, ConvAnchor, is_view
from .attrs import STOCK, read
from .matmul import MATMUL
from .matmul import read as read_product
from .patterns import Lookup, is_operator, number_in
from .resizes import read as read_resize
from .rows import read as read_rows
from .target import target_of
from .transposes import read as read_transpose

R = relax()

_BINARY = {f"relax.{name}": name for name in ("add", "subtract", "multiply", "divide")}
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
    """What a kernel begins with, the steps behind it, and the views behind these."""

    anchor: Anchor
    steps: list[PostOp] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)
    views: list[Any] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

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


Begin = Callable[[Any, Lookup, Lookup], Optional[Chain]]
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
    readers: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for var, value in bindings:
        for used in R.analysis.free_vars(value):
            readers[used].append((var, value))
    found, values, ends = {}, dict(bindings), set()

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
        _grow(chain, readers)
        last = chain.links[-1]
        ends.add(last.var)
        found[last.call] = chain
    return found


def _grow(chain: Chain, readers: dict[Any, list[tuple[Any, Any]]]) -> None:
    """Add steps as long as that is possible, then cut what cannot be without others."""
    while isinstance(chain.links[-1].var, R.DataflowVar):
        if not any(_extend(chain, *reader) for reader in readers[chain.links[-1].var]):
            break
    calls = [link.call for link in chain.links]
    count = len(calls)
    while count > 1 and not _is_whole(chain, count, calls[:count], readers):
        count -= 1
    chain.cut(count)


def _is_whole(
    chain: Chain, count: int, calls: list[Any], readers: dict[Any, list[tuple[Any, Any]]]
) -> bool:
    """Whether nobody else reads a value between these, and the last is no view that comes behind
    all steps anyway."""
    if chain.links[count - 1].views > chain.links[count - 2].views:
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
    if is_empty or not backend.has_kernels(target):
        return None
    return Chain(ConvAnchor(value, conv, target, found))


def _extend(chain: Chain, var: Any, call: Any) -> bool:
    """Add `call`, which reads the chain's value, to the chain; whether it could be."""
    if not is_operator(call):
        return False
    dtype, found = chain.anchor.dtype, tensor_type_of(call)
    if found is None or dtype_name(found.dtype) != dtype:
        return False
    if not dtype.startswith(("float", "bfloat")):
        return False
    name = str(call.op.name)
    if is_view(call):
        if chain.views or not chain.anchor.seen_by(call):
            chain.views.append(call)
        chain.link(var, call, moved=1)
        return True
    steps = [*_steps(chain, name, call)]
    if not steps:
        return False
    chain.steps += [step for step, _ in steps]
    chain.operands += [operand for step, operand in steps if step.order]
    chain.link(var, call)
    return True


def _steps(chain: Chain, name: str, call: Any) -> list[tuple[PostOp, Any]]:
    """The steps that a call is, each with its operand."""
    if name in _UNARY:
        slope = float(call_attr(call, "alpha")) if name == "relax.nn.leakyrelu" else 0.0
        return [(PostOp(_UNARY[name], value=slope), None)]
    if name == "relax.clip":
        limits = [_prim_value(one) for one in call.args[1:3]]
        if None in limits:
            return []
        return [(PostOp(op, value=a), None) for op, a in zip(("maximum", "minimum"), limits)]
    if name not in _BINARY:
        return []
    now, (left, right) = chain.links[-1].var, call.args
    if not left.same_as(now) and right.same_as(now) and _BINARY[name] in _COMMUTATIVE:
        left, right = right, left
    if not left.same_as(now):
        return []
    step = _earlier(_BINARY[name], chain, call, right) or _binary(_BINARY[name], chain, right)
    return [] if step is None else [(step, right)]


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


def _binary(op: str, chain: Chain, operand: Any) -> PostOp | None:
    """The step with this operand, which may be broadcast, but must not broadcast the result."""
    anchor, found = chain.anchor, tensor_type_of(operand)
    if any(operand.same_as(link.var) for link in chain.links):
        return None
    shape = None if found is None else known_shape(found.shape)
    if shape is None or len(shape) > len(anchor.axes):
        return None
    constant = number_in(operand)
    if constant is not None:
        return PostOp(op, value=constant)
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
    return PostOp(op, "".join(axes), varies) if varies or not anchor.needs_axes else None
