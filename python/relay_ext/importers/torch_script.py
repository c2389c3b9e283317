# SPDX-License-Identifier: Apache-2.0
"""Scripted PyTorch modules, simplified by PyTorch's own passes to what TVM's importer reads.

A scripted module keeps the Python of its layers: attributes that are no tensors, branches on the
rank of the data, the loop that turns an ``output_size`` into an ``output_padding``.  With the
shapes of the inputs all of it is known at import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ROUNDS = 16
"""Each makes more of a graph constant; a few are enough."""


def simplified(module: Any, input_infos: Any) -> Any:
    """A copy of a scripted module, its control flow decided for inputs of these shapes.

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
        or isinstance(module, torch.jit.TopLevelTracedModule)
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
    _drop_missing_attributes(graph, made)
    before = ""
    for _ in range(_ROUNDS):
        passes._jit_pass_propagate_shapes_on_graph(graph)
        passes._jit_pass_peephole(graph, False)
        passes._jit_pass_constant_propagation(graph)
        passes._jit_pass_constant_loop_unrolling(graph)
        _extend_appended_lists(graph)
        passes._jit_pass_dce(graph)
        if before == (before := str(graph)):
            break
    return made


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


def _drop_missing_attributes(graph: Any, module: Any) -> None:
    """Attributes that are None, such as a bias that a layer lacks, as constants."""
    for node in graph.findAllNodes("prim::GetAttr", recurse=True):
        path, at = [], node
        while at.kind() == "prim::GetAttr":
            path.append(at.s("name"))
            at = at.inputsAt(0).node()
        value = module
        for name in reversed(path):
            value = getattr(value, name)
        if value is None:
            node.output().replaceAllUsesWith(_none(graph))


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
