# SPDX-License-Identifier: Apache-2.0
"""Schedules of functions with a convolution: a kernel for it and what follows, and loops.

A kernel comes into its place by ``tensorize``: the last stage of the chain computes all of its
elements by an intrinsic, whose body is the kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, topi

from topi_ext.compat import is_cpu, is_gpu, tir
from topi_ext.fusion.chain import Chain

from .placeholder import Stage
from .post_ops import Graph, chain_behind, inlined


def schedule(outs: Sequence[Any], target: Any, kernels: Sequence[Stage] = ()) -> Any:
    """Schedule `outs` and what leads to them.

    Kernels are scheduled, element-wise stages are inlined where they can be, and every other stage
    is parallel (or, on a GPU, bound to threads).

    Parameters
    ----------
    outs : te.Tensor or sequence of te.Tensor
    target : tvm.target.Target
    kernels : sequence of Stage
        The stages that kernels replace; others are ignored.
    """
    outs = [outs] if isinstance(outs, te.Tensor) else list(outs)
    made = te.create_schedule([out.op for out in outs])
    graph = Graph(outs, kernels)
    kernels = [stage for stage in kernels if any(map(stage.op.same_as, graph.operations))]
    chains = [(stage, chain_behind(stage, graph)) for stage in kernels]
    done = [link.call for _, chain in chains for link in chain.links]
    for stage, chain in chains:
        done += _tensorize(made, stage, chain, graph)
    replaced = {op.handle.value for op in done}
    for stage in made.stages:
        if isinstance(stage.op, te.ComputeOp) and stage.op.handle.value not in replaced:
            _schedule_loops(made, stage, graph, target)
    return made


def _schedule_loops(made: Any, stage: Any, graph: Graph, target: Any) -> None:
    """Schedule a stage that is no kernel's."""
    tensor, readers = stage.op.output(0), graph.readers(stage.op)
    inlinable = readers and all(isinstance(op, te.ComputeOp) for op in readers)
    is_free = stage.op.handle.value not in graph.operands and not stage.is_output
    if inlinable and is_free and not stage.op.reduce_axis:
        stage.compute_inline()
    elif is_cpu(target):
        _on_cpu(made[tensor], stage.op)
    elif is_gpu(target):
        topi.cuda.injective.schedule_injective_from_existing(made, tensor)


def _on_cpu(stage: Any, op: Any) -> None:
    if not op.axis:
        return
    if op.reduce_axis:
        stage.parallel(stage.fuse(*op.axis[:-1]) if len(op.axis) > 1 else op.axis[0])
        return
    *outer, inner = op.axis
    # Of one axis, blocks are shared; of several, rows.
    rows, lanes = stage.split(inner, 16)
    stage.parallel(stage.fuse(*outer) if outer else rows)
    stage.vectorize(lanes)


def _tensorize(made: Any, stage: Stage, chain: Chain, graph: Graph) -> list[Any]:
    """Put a kernel in the place of a chain; return the operations that are inlined for it."""
    last = chain.links[-1].call
    between = {link.call.handle.value for link in chain.links[:-1]}

    def is_inside(op: Any) -> bool:
        return op.handle.value in between or (not op.same_as(last) and graph.can_be_inlined(op))

    gone = [op for op in graph.operations if is_inside(op) and _leads_to(op, last, graph)]
    for op in gone:
        made[op].compute_inline()
    tensors = _distinct([*stage.tensors, *chain.operands])
    body = inlined(last.body[0], is_inside)
    intrinsic = _intrinsic(stage, chain, last, body, tensors)
    made[last].tensorize(made[last].op.axis[0], intrinsic)
    return gone


def _leads_to(op: Any, last: Any, graph: Graph) -> bool:
    """Return whether `last` depends on an operation."""
    return last.handle.value in graph.behind(op)


def _distinct(tensors: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for tensor in tensors:
        if not any(_is_same(tensor, one) for one in found):
            found.append(tensor)
    return found


def _is_same(one: Any, other: Any) -> bool:
    return bool(one.op.same_as(other.op)) and one.value_index == other.value_index


def _intrinsic(stage: Stage, chain: Chain, last: Any, body: Any, tensors: Sequence[Any]) -> Any:
    """Return the intrinsic that computes all of the last stage of a chain.

    Its operands are placeholders, as TVM demands, also for intermediate tensors.
    """
    kernel = stage.build(chain.anchor.problem(chain.steps))
    stand_ins = [te.placeholder(one.shape, one.dtype, name=one.op.name) for one in tensors]

    def stand_in(tensor: Any) -> Any:
        places = (place for place, one in enumerate(tensors) if _is_same(tensor, one))
        return stand_ins[next(places)]

    def element(*axes: Any) -> Any:
        values = {axis.var: index for axis, index in zip(last.axis, axes)}
        moved = tir.stmt_functor.substitute(body, values)

        def load(node: Any) -> Any:
            return tir.ProducerLoad(stand_in(node.producer.op.output(0)), node.indices)

        names = ["tir.ProducerLoad"]
        return tir.stmt_functor.ir_transform(tir.Evaluate(moved), None, load, names).value

    result = te.compute(last.output(0).shape, element, name=last.name)

    def define(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        # Not by a dictionary: TVM 0.17 does not compare tensors without axes.
        buffers = {one.op.handle.value: buffer for one, buffer in zip(result.op.input_tensors, ins)}
        operands = map(stand_in, (*stage.tensors, *chain.operands))
        given = [*(buffers[one.op.handle.value] for one in operands), outs[0]]
        parameters = (kernel.buffer_map[parameter] for parameter in kernel.params)
        values = {one.data: buffer.data for one, buffer in zip(parameters, given)}
        statement = tir.stmt_functor.substitute(kernel.body, values)
        return stage.restate(statement) if stage.restate else statement

    aligned = {"data_alignment": 64}
    name = stage.op.name
    return te.decl_tensor_intrin(result.op, define, name=name, default_buffer_params=aligned)
