# SPDX-License-Identifier: Apache-2.0
"""Read the TE stages after a convolution as the post-ops of its kernel.

Relay's FuseOps has put the element-wise operators behind a convolution into its function.  Each is
a stage whose body is plain arithmetic.  That is read here, not Relay's operators, so every spelling
of a framework's importer counts.  :mod:`topi_ext.fusion` decides what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import te

from topi_ext.compat import dtype_name, tir
from topi_ext.fusion import post_ops
from topi_ext.fusion.chain import Chain, Link
from topi_ext.fusion.post_ops import COMMUTATIVE, Step
from topi_ext.spec.post_ops import PostOp

from .placeholder import TAG, Stage, operations

_BINARY = {
    tir.Add: "add",
    tir.Sub: "subtract",
    tir.Mul: "multiply",
    tir.Div: "divide",
}
_LIMITS = {tir.Max: "maximum", tir.Min: "minimum"}
"""Taken with a number: of two tensors, TVM and kernels differ in which NaN stays."""

_UNARY = {f"tir.{name}": name for name in ("tanh", "sigmoid", "erf", "floor")}


class Graph:
    """The stages of one function.

    Parameters
    ----------
    outs : sequence of te.Tensor
    kernels : sequence of Stage
    """

    def __init__(self, outs: Sequence[Any], kernels: Sequence[Stage]) -> None:
        self.operations = operations(outs)
        self._readers: dict[int, list[Any]] = {}
        for op in self.operations:
            for tensor in op.input_tensors:
                self._readers.setdefault(tensor.op.handle.value, []).append(op)
        self.results = {out.op.handle.value for out in outs}
        self.operands = {tensor.op.handle.value for one in kernels for tensor in one.tensors}

    def readers(self, op: Any) -> list[Any]:
        """Return the operations that read the result of one."""
        return self._readers.get(op.handle.value, [])

    def is_result(self, op: Any) -> bool:
        """Return whether the function returns it."""
        return op.handle.value in self.results

    def can_be_inlined(self, op: Any) -> bool:
        """Return whether readers can compute its elements themselves."""
        is_kept = self.is_result(op) or op.handle.value in self.operands or op.tag == TAG
        return not is_kept and is_elementwise(op)

    def behind(self, first: Any) -> set[int]:
        """Return the handles of an operation and of all that depend on it."""
        found = {first.handle.value}
        for op in self.operations:
            if any(tensor.op.handle.value in found for tensor in op.input_tensors):
                found.add(op.handle.value)
        return found


def is_elementwise(op: Any) -> bool:
    """Return whether each element of a stage is an expression of its own."""
    return isinstance(op, te.ComputeOp) and len(op.body) == 1 and not op.reduce_axis


def inlined(expr: Any, inside: Any) -> Any:
    """Return `expr` with the bodies of the operations that are `inside` in the place of their
    elements."""

    def restated(load: Any) -> Any:
        op = load.producer.op
        if not inside(op):
            return None
        values = {axis.var: index for axis, index in zip(op.axis, load.indices)}
        return inlined(tir.stmt_functor.substitute(op.body[0], values), inside)

    names = ["tir.ProducerLoad"]
    return tir.stmt_functor.ir_transform(tir.Evaluate(expr), None, restated, names).value


def chain_behind(stage: Stage, graph: Graph) -> Chain:
    """Return the longest chain that begins with a convolution and leaves no value to others."""
    chain = Chain(stage.anchor)
    chain.link(stage.op, stage.op)
    behind = graph.behind(stage.op)
    while not graph.is_result(chain.links[-1].value):
        readers = graph.readers(chain.links[-1].value)
        if not any(_Reader(chain, graph, behind).extend(op) for op in readers):
            break
    count = len(chain.links)
    while count > 1 and not _is_whole(chain, count, graph):
        count -= 1
    chain.cut(count)
    return chain


def _is_whole(chain: Chain, count: int, graph: Graph) -> bool:
    between = [link.value for link in chain.links[: count - 1]]
    return chain.is_closed(count, graph.readers) and not any(map(graph.is_result, between))


class _Reader:
    """Reads the body of one stage as post-ops behind the values of a chain.

    Parameters
    ----------
    chain : Chain
    graph : Graph
    behind : set of int
        Operations that depend on the chain's convolution.
    """

    def __init__(self, chain: Chain, graph: Graph, behind: set[int]) -> None:
        self.chain, self.graph, self.behind = chain, graph, behind
        self.dtype = chain.anchor.dtype
        self.axes: list[Any] = []
        self.steps: list[Step] = []

    def extend(self, op: Any) -> bool:
        """Append the stage to the chain where the kernel can compute it."""
        shape = [_number(size) for size in self.chain.links[-1].value.output(0).shape]
        if not is_elementwise(op) or [_number(s) for s in op.output(0).shape] != shape:
            return False
        self.axes = [axis.var for axis in op.axis]
        body = inlined(op.body[0], self._is_beside)
        anchor = self.chain.anchor
        if not self._is_value(body):
            return False
        to = dtype_name(op.output(0).dtype)
        converted = anchor if to == anchor.dtype else anchor.converted(to)
        if to != self.dtype or converted is None:
            return False
        self.chain.anchor = converted
        self.chain.add(self.steps)
        self.chain.link(op, op)
        return True

    def _is_beside(self, op: Any) -> bool:
        return op.handle.value not in self.behind and self.graph.can_be_inlined(op)

    def _link_of(self, expr: Any) -> Link | None:
        """Return the link whose element at the same position this is."""
        if not isinstance(expr, tir.ProducerLoad):
            return None
        for link in self.chain.links:
            if expr.producer.op.same_as(link.value):
                sizes = link.value.output(0).shape
                is_in_place = all(map(_is_at, expr.indices, self.axes, sizes))
                return link if is_in_place else None
        return None

    def _depends(self, expr: Any) -> bool:
        found = []

        def look(node: Any) -> None:
            if isinstance(node, tir.ProducerLoad) and node.producer.op.handle.value in self.behind:
                found.append(node)

        tir.stmt_functor.post_order_visit(expr, look)
        return bool(found)

    def _is_value(self, expr: Any) -> bool:
        """Return whether `expr` is the chain's value behind steps, which are appended."""
        link = self._link_of(expr)
        if link is not None:
            return link is self.chain.links[-1]
        if isinstance(expr, tir.Select):
            return self._is_leaky(expr)
        if isinstance(expr, tir.Cast):
            return self._is_cast(expr)
        if isinstance(expr, tir.Call):
            name = _UNARY.get(getattr(expr.op, "name", ""), "")
            is_known = name and (name != "floor" or self.chain.anchor.sums_integers)
            return bool(is_known) and self._is_value(expr.args[0]) and self._append(PostOp(name))
        op = _BINARY.get(type(expr)) or _LIMITS.get(type(expr))
        if op is None:
            return False
        pairs = [(expr.a, expr.b)]
        if op in (*COMMUTATIVE, *_LIMITS.values()):
            pairs.append((expr.b, expr.a))
        for left, right in pairs:
            before = len(self.steps), self.dtype
            if self._depends(left) and self._is_value(left) and self._operand(op, right):
                return True
            del self.steps[before[0] :]
            self.dtype = before[1]
        return False

    def _so_far(self) -> list[PostOp]:
        return [*self.chain.steps, *(one for one, _ in self.steps)]

    def _append(self, step: PostOp | None, operand: Any = None) -> bool:
        if step is None:
            return False
        if not post_ops.takes(self.dtype, self._so_far(), step.op):
            return False
        self.steps.append((step, operand))
        return True

    def _is_cast(self, expr: Any) -> bool:
        if not self._is_value(expr.value):
            return False
        to = dtype_name(expr.dtype)
        steps = post_ops.cast(self.dtype, to) or post_ops.truncate(self.dtype, to, self._so_far())
        is_narrow = self.dtype == "int32" and post_ops.narrows(self._so_far(), to)
        if not (steps or is_narrow) or self.chain.anchor.converted(to) is None:
            return False
        self.dtype = to
        self.steps += [(step, None) for step in steps]
        return True

    def _operand(self, name: str, expr: Any) -> bool:
        """Append the step with this operand."""
        if _is_number(expr):
            return self._append(_with_number(name, float(expr.value)))
        if name in _LIMITS.values():
            return False
        link = self._link_of(expr)
        if link is not None:
            return self._append(PostOp(name, earlier=link.steps))
        step = self._of_tensor(name, expr)
        return step is not None and self._append(step, expr.producer)

    def _of_tensor(self, name: str, expr: Any) -> PostOp | None:
        """Return the step whose operand is a tensor that broadcasts against the value."""
        if not isinstance(expr, tir.ProducerLoad) or self._depends(expr):
            return None
        shape, last = [1] * len(self.axes), -1
        for index, size in zip(expr.indices, expr.producer.shape):
            if _number(size) == 1:
                continue
            places = [place for place, axis in enumerate(self.axes) if index.same_as(axis)]
            if not places or places[0] <= last or _number(size) is None:
                return None
            last = places[0]
            shape[last] = int(size)
        step = self.chain.anchor.post_op(name, shape)
        dtype = dtype_name(expr.dtype)
        if step is None or dtype != self.dtype:
            return None
        step = replace(step, order=step.varies) if step.varies else step
        return replace(step, dtype=dtype) if self.chain.anchor.sums_integers else step

    def _is_leaky(self, expr: Any) -> bool:
        """Read ``select(x > 0, x, x * slope)``, of a number or of one for each channel."""
        condition, value, below = expr.condition, expr.true_value, expr.false_value
        is_compared = isinstance(condition, tir.GT) and _number(condition.b) == 0
        if not is_compared or not isinstance(below, tir.Mul):
            return False
        last = self.chain.links[-1]
        if any(self._link_of(one) is not last for one in (value, condition.a, below.a)):
            return False
        slope = below.b
        if _is_number(slope):
            return self._append(PostOp("leaky_relu", value=float(slope.value)))
        step = self._of_tensor("prelu", slope)
        return step is not None and self._append(step, slope.producer)


def _with_number(name: str, number: float) -> PostOp | None:
    if name in _LIMITS.values():
        if number == 0 and name == "maximum":
            return PostOp("relu")
        return None if np.isnan(number) else PostOp(name, value=number)
    return post_ops.with_number(name, number)


def _is_number(expr: Any) -> bool:
    return isinstance(expr, (tir.FloatImm, tir.IntImm))


def _number(expr: Any) -> float | None:
    return float(expr.value) if _is_number(expr) else None


def _is_at(index: Any, axis: Any, size: Any) -> bool:
    """Return whether an index is that of the axis, or the only one."""
    return bool(index.same_as(axis)) or (_number(size) == 1 and _number(index) == 0)
