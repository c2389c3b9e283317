# SPDX-License-Identifier: Apache-2.0
"""Scripted PyTorch modules, simplified by PyTorch's own passes to what TVM's importer reads.

A scripted module keeps the Python of its layers: attributes that are no tensors, branches on the
rank of the data, the loop that turns an ``output_size`` into an ``output_padding``.  With the
shapes of the inputs all of it is known at import.
"""

from __future__ import annotations

import functools
from typing import Any

from topi_ext.spec.geometry import fail


def simplified(module: Any, input_infos: Any) -> Any:
    """Return a copy of a scripted module, its control flow decided for inputs of these shapes.

    Parameters
    ----------
    module : torch.jit.ScriptModule
    input_infos : list of tuple
        Names with shapes, or with shapes and dtypes, as ``from_pytorch`` takes them.

    Returns
    -------
    torch.jit.ScriptModule
        With the parameters of the module; `module` itself where it is not one that can be
        simplified: traced, in training, quantized, or with inputs that are no tensors.
    """
    import torch

    examples = _examples(input_infos)
    if (
        not isinstance(module, torch.jit.ScriptModule)
        or isinstance(module, torch.jit._trace.TopLevelTracedModule)
        or getattr(module, "training", False)
        or examples is None
        or "quantized::" in str(module.inlined_graph)
    ):
        return module
    passes = torch._C
    frozen = passes._freeze_module(module._c, [], True, True)  # but for the parameters
    made = torch.jit._recursive.wrap_cpp_module(frozen)
    graph = made.graph
    passes._jit_pass_inline(graph)
    inputs = list(graph.inputs())[1:]
    if [v.type().kind() for v in inputs[: len(examples)]] != ["TensorType"] * len(examples):
        return module
    for value, example in zip(inputs, examples):
        value.inferTypeFrom(example)
    _drop_optional_inputs(graph, 1 + len(examples))
    _read_attributes(graph, made)
    try:
        _simplify(graph)
    except RuntimeError:
        return module  # which TVM rejects by the name of the unknown operator
    _refuse_mutation(graph)
    return made


def _simplify(graph: Any) -> None:
    import torch

    passes: Any = torch._C  # its stub lacks some passes

    before = None
    while before != (before := str(graph)):  # each decided branch may show the next one's shapes
        _infer_types(graph)
        passes._jit_pass_peephole(graph, False)
        passes._jit_pass_constant_propagation(graph)
        passes._jit_pass_constant_loop_unrolling(graph)
        _extend_appended_lists(graph)
        # TVM's converters of operators in place give a new value, and leave the old one to others.
        passes._jit_pass_remove_mutation(graph)
        passes._jit_pass_dce(graph)


def _refuse_mutation(graph: Any) -> None:
    for node in graph.nodes():
        kind = node.kind()
        if kind.startswith("aten::") and kind.endswith("_") and not kind.endswith("__"):
            raise fail(kind, "must not change its operand in a scripted module: trace it")


def _examples(input_infos: Any) -> list[Any] | None:
    """Tensors of the stated shapes and dtypes; None where an input is something else."""
    import torch

    made = []
    for _, stated in input_infos:
        has_dtype = len(stated) == 2 and isinstance(stated[1], str)
        shape, name = stated if has_dtype else (stated, "float32")
        dtype = getattr(torch, {"float": "float32", "int": "int32"}.get(name, name), None)
        if not isinstance(dtype, torch.dtype) or not all(isinstance(size, int) for size in shape):
            return None
        made.append(torch.empty(tuple(shape), dtype=dtype))
    return made


def _drop_optional_inputs(graph: Any, first: int) -> None:
    """Inputs that no shape was given for are None, where that is what leaving them out means."""
    for at in reversed(range(first, len(list(graph.inputs())))):
        value = list(graph.inputs())[at]
        if value.type().kind() == "OptionalType":
            value.replaceAllUsesWith(_none(graph))
            graph.eraseInput(at)


def _read_attributes(graph: Any, module: Any) -> None:
    """Types of parameters; attributes that are None, such as a bias that a layer lacks, become
    constants."""
    import torch

    for node in graph.findAllNodes("prim::GetAttr", recurse=True):
        path, at = [], node
        while at.kind() == "prim::GetAttr":
            path.append(at.s("name"))
            at = at.inputsAt(0).node()
        value = functools.reduce(getattr, reversed(path), module)
        if value is None:
            node.output().replaceAllUsesWith(_none(graph))
        elif isinstance(value, torch.Tensor):
            node.output().inferTypeFrom(value)


def _infer_types(graph: Any) -> None:
    """Types of what operators make of operands of known types: PyTorch tells, without numbers."""
    import torch

    for node in graph.nodes():
        kind, outputs = node.kind(), list(node.outputs())
        if not kind.startswith("aten::") or [v.type().kind() for v in outputs] != ["TensorType"]:
            continue
        arguments = torch._C.parse_schema(node.schema()).arguments
        try:
            values = [_without_numbers(value) for value in node.inputs()]
            result = getattr(torch.ops.aten, kind.removeprefix("aten::"))(
                *(v for a, v in zip(arguments, values) if not a.kwarg_only),
                **{a.name: v for a, v in zip(arguments, values) if a.kwarg_only},
            )
        except (LookupError, RuntimeError, NotImplementedError):  # not known yet, or never
            continue
        if isinstance(result, torch.Tensor):
            outputs[0].inferTypeFrom(result)


def _without_numbers(value: Any) -> Any:
    """Return a constant, a list, or a tensor without memory."""
    import torch

    node = value.node()
    if node.kind() == "prim::ListConstruct":
        return [_without_numbers(item) for item in node.inputs()]
    if node.kind() == "prim::Constant":
        constant = value.toIValue()
        return constant.to("meta") if isinstance(constant, torch.Tensor) else constant
    if not value.isCompleteTensor():
        raise LookupError(value.debugName())
    return torch.empty(value.type().sizes(), dtype=value.type().dtype(), device="meta")


def _none(graph: Any) -> Any:
    import torch

    node = graph.create("prim::Constant")
    node.output().setType(torch._C.NoneType.get())
    return graph.prependNode(node).output()


_READS = ("aten::__getitem__", "aten::len", "aten::slice", "aten::format")


def _extend_appended_lists(graph: Any) -> None:
    """``append`` to a list that was only read before: from there on a longer list."""
    for node in [n for n in graph.nodes() if n.kind() == "aten::append"]:
        old, item = node.inputs()
        if old.node().kind() != "prim::ListConstruct" or any(
            use.user.isBefore(node) and use.user.kind() not in _READS for use in old.uses()
        ):
            continue
        longer = graph.create("prim::ListConstruct", [*old.node().inputs(), item])
        longer.output().setType(old.type())
        longer.insertBefore(node)
        old.replaceAllUsesAfterNodeWith(node, longer.output())
        node.output().replaceAllUsesWith(longer.output())
        node.destroy()
