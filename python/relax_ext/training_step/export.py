# SPDX-License-Identifier: Apache-2.0
"""PyTorch: a module exported as a pure function of its inputs and of its state.

Parameters and buffers are arguments, each tensor once whatever names it has, so that shared
parameters are one variable; buffers that the forward pass changes are results.  What would train
to other values than in PyTorch is refused here, before anything is compiled.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import OutputKind

from topi_ext.spec.geometry import fail

from .checks import Check, checked_outside
from .draws import Draw, drawn_outside

OP = "training"
"""The name that errors begin with."""

FLOATS = (torch.float32, torch.float64)


@torch.library.custom_op("relax_ext::stop_gradient", mutates_args=())
def _stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return the values of `x`, through which no gradient flows.

    PyTorch's decompositions drop ``detach`` and ``no_grad``; an operator of our own stays.
    """
    return x.clone()


@_stop_gradient.register_fake
def _stopped_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_STOP = torch.ops.relax_ext.stop_gradient.default


@dataclass(frozen=True)
class Exported:
    """A module as a function of ``(*inputs, *state, *random numbers)``.

    Attributes
    ----------
    program : torch.export.ExportedProgram
        Decomposed; its arguments are inputs and state, its results changed buffers and the loss.
    inputs : tuple of str
        Names of the inputs; no tensor of the state has such a name.
    changed : tuple of str
        Names of the buffers that it changes, in the order of the results.
    draws : tuple of callable
        Functions that draw the random numbers of a call, which are arguments after the state.
    check : callable
        Raises for a batch that an assertion of the module refuses.
    """

    program: Any
    inputs: tuple[str, ...]
    changed: tuple[str, ...]
    draws: tuple[Draw, ...]
    check: Check


def export(
    module: nn.Module, inputs: Sequence[torch.Tensor], state: Mapping[str, torch.Tensor]
) -> Exported:
    """Export the forward pass of a module.

    Parameters
    ----------
    module : torch.nn.Module
    inputs : sequence of torch.Tensor
        The arguments of ``module.forward``; their shapes are those of the program.
    state : mapping of str to torch.Tensor
        Parameters and buffers by name, each tensor once.

    Raises
    ------
    ValueError
        One line where ``torch.export`` refuses the module, or where training it would give other
        values than PyTorch.
    """
    _refuse_old_release()
    function = _Pure(module, state)
    attributes = _attributes(module)
    tensors = [tensor.detach() for tensor in state.values()]
    try:
        with _quiet():
            program = torch.export.export(function, (list(inputs), tensors), strict=False)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
        rule = f"torch.export refuses {_name(module)}: {type(error).__name__}: {reason.strip()}"
        raise fail(OP, rule) from error
    finally:
        _refuse_assignments(module, attributes)
    _keep_stops(program.graph_module)
    program = program.run_decompositions()
    _refuse_data_dependent(program)
    check = checked_outside(program, len(inputs), OP)
    draws = drawn_outside(program, OP)
    _refuse_other_results(module, program)
    arguments = tuple(f"argument {number}" for number in range(len(inputs)))
    changed = _changed(program, arguments, tuple(state))
    return Exported(program, arguments, changed, draws, check)


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what ``torch.export`` writes about a module that it refuses; its error says it too."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level, written = logger.level, io.StringIO()
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(written):
            yield
    finally:
        logger.setLevel(level)
    sys.stderr.write(written.getvalue())


@contextmanager
def modes(module: nn.Module, training: Mapping[str, bool] | None) -> Iterator[None]:
    """Give every submodule the mode that `training` has by its name, ``eval()`` where it is None;
    the modes of before when the block ends."""
    before = {name: child.training for name, child in module.named_modules()}
    try:
        for name, child in module.named_modules():
            child.training = False if training is None else training.get(name, child.training)
        yield
    finally:
        for name, child in module.named_modules():
            child.training = before[name]


def refuse_module(module: nn.Module) -> None:
    """Raise if the forward pass of a module in training mode cannot be trained; name the reason.

    Raises
    ------
    ValueError
        One line with the submodule and what would work.
    """
    for name, child in module.named_modules():
        label = f"{type(child).__name__} {name!r}"
        is_norm = isinstance(child, nn.modules.batchnorm._NormBase)
        if is_norm and child.training and child.track_running_stats and child.momentum is None:
            raise fail(OP, f"{label} has momentum=None: give it a number")


class _Detached(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach() * x


@cache
def _keeps_detach() -> bool:
    """Return whether exported programs say where gradients stop; those of early releases do not."""
    program = torch.export.export(_Detached(), (torch.zeros(1),), strict=False)
    return any(node.target is torch.ops.aten.detach.default for node in program.graph.nodes)


def _refuse_old_release() -> None:
    if not _keeps_detach():
        rule = "drops detach() from exported programs: a later release is needed"
        raise fail(OP, f"torch {torch.__version__} {rule}")


def _name(module: nn.Module) -> str:
    return type(module).__name__


class _Pure(nn.Module):
    """The call of a module with the tensors of its state as arguments.

    ``torch.func.functional_call`` restores a module wrongly that has two names, and loses what the
    forward pass assigns to a buffer.
    """

    def __init__(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        numbers = {id(tensor): number for number, tensor in enumerate(state.values())}
        # In tuples: no submodules, whose parameters would be exported.
        self._called = (module,)
        self._places: tuple[tuple[MutableMapping[str, Any], str, int], ...] = tuple(
            (tensors, key, numbers[id(tensor)])
            for child in module.modules()
            for tensors in (child._parameters, child._buffers)
            for key, tensor in tensors.items()
            if tensor is not None
        )

    def forward(self, inputs: list[torch.Tensor], state: list[torch.Tensor]) -> Any:
        before = [tensors[key] for tensors, key, _ in self._places]
        for tensors, key, number in self._places:
            tensors[key] = state[number]
        try:
            result = self._called[0](*inputs)
            for tensors, key, number in self._places:
                if tensors[key] is not state[number]:
                    state[number].copy_(tensors[key])
        finally:
            for (tensors, key, _), tensor in zip(self._places, before):
                tensors[key] = tensor
        return result


def _attributes(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Return the tensors that submodules hold as plain attributes."""
    return {
        (name, key): value
        for name, child in module.named_modules()
        for key, value in vars(child).items()
        if isinstance(value, torch.Tensor)
    }


def _refuse_assignments(module: nn.Module, before: Mapping[tuple[str, str], Any]) -> None:
    """Raise for tensors that the forward pass has left in attributes, and remove them."""
    assigned = []
    for (name, key), value in _attributes(module).items():
        if before.get((name, key)) is value:
            continue
        assigned.append(f"{name}.{key}".lstrip("."))
        attributes = vars(module.get_submodule(name))
        del attributes[key]
        if (name, key) in before:
            attributes[key] = before[name, key]
    if assigned:
        raise fail(OP, f"forward assigns a tensor to {assigned[0]}: register it as a buffer")


def _keep_stops(graph_module: Any) -> None:
    """Let ``detach`` and ``no_grad`` of a graph stop gradients after decomposition too."""
    graph = graph_module.graph
    # The last first: a value that is read after two blocks is that of the later one.
    for node in reversed(list(graph.nodes)):
        if node.target is torch.ops.aten.detach.default:
            if _may_change(node):
                raise fail(OP, "forward changes the result of detach() in place: clone() it first")
            node.target = _STOP
        if _is_no_grad(node):
            body = getattr(graph_module, node.args[1].target)
            inner = [inside for inside in body.graph.nodes if inside.op == "placeholder"]
            # A parameter that the block leaves as it is keeps its gradient.
            changed = [outer for outer, i in zip(node.args[2:], inner) if _may_change(i)]
            for result in filter(_is_float, node.users):
                _stop_after(graph, result, result)
            for tensor in filter(_is_float, changed):
                _stop_after(graph, node, tensor)
    graph_module.recompile()


def _is_no_grad(node: Any) -> bool:
    wrapper = torch.ops.higher_order.wrap_with_set_grad_enabled
    return node.target is wrapper and not node.args[0]


def _stop_after(graph: Any, node: Any, tensor: Any) -> None:
    """Let what reads `tensor` after `node` read it behind a stop.

    Blocks of ``no_grad`` go on with the tensor itself, which they may change.
    """
    order = {each: number for number, each in enumerate(graph.nodes)}
    readers = []
    for user in tensor.users:
        if order[user] <= order[node] or user.op == "output":
            continue
        if _is_no_grad(user) or user.target is _STOP:
            continue
        if _changes(user, tensor):
            rule = "changes a tensor that a block of no_grad has made or changed"
            raise fail(OP, f"{user.target} {rule}: do both within no_grad")
        readers.append(user)
    if not readers:
        return
    with graph.inserting_after(node):
        stop = graph.call_function(_STOP, (tensor,))
    stop.meta = dict(tensor.meta)
    for reader in readers:
        reader.replace_input_with(tensor, stop)


def _may_change(tensor: Any) -> bool:
    """Return whether a user of `tensor`, or of a view of it, changes it."""
    for user in tensor.users:
        returns = getattr(getattr(user.target, "_schema", None), "returns", ())
        is_view = any(result.alias_info is not None for result in returns)
        if _changes(user, tensor) or (is_view and _may_change(user)):
            return True
    return False


def _changes(user: Any, tensor: Any) -> bool:
    """Return whether a call changes its argument `tensor`."""
    if user.target is torch.ops.aten.batch_norm.default:
        # Its schema does not say that it changes the running statistics.
        return tensor in user.args[3:5] and bool(user.args[5])
    arguments = getattr(getattr(user.target, "_schema", None), "arguments", ())
    given = dict(zip((argument.name for argument in arguments), user.args)) | user.kwargs
    return any(
        argument.alias_info is not None
        and argument.alias_info.is_write
        and given.get(argument.name) is tensor
        for argument in arguments
    )


def _is_float(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _refuse_data_dependent(program: Any) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        if not all(isinstance(size, int) for size in sizes):
            rule = "its shape depends on data, and must follow from the shapes of the inputs"
            raise fail(OP, f"{node.target} gives {tuple(map(str, sizes))}: {rule}")


def _refuse_other_results(module: nn.Module, program: Any) -> None:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    outputs = program.graph_signature.output_specs
    results = [spec for spec in outputs if spec.kind is OutputKind.USER_OUTPUT]
    called = f"{_name(module)}.forward"
    if len(results) != 1:
        raise fail(OP, f"{called} returns {len(results)} values: it must return the loss alone")
    loss = values.get(getattr(results[0].arg, "name", None))
    if not isinstance(loss, torch.Tensor):
        raise fail(OP, f"{called} returns no tensor: it must return the loss, a scalar tensor")
    if loss.shape != ():
        rule = "it must return the loss, a scalar such as a mean"
        raise fail(OP, f"{called} returns shape {tuple(loss.shape)}: {rule}")
    if loss.dtype not in FLOATS:
        raise fail(OP, f"{called} returns {loss.dtype}: the loss must be float32 or float64")


def _changed(program: Any, inputs: tuple[str, ...], state: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the state that a program changes; inputs must stay."""
    signature = program.graph_signature
    names = dict(zip(signature.user_inputs, inputs + state))
    changed = [
        names[spec.target]
        for spec in signature.output_specs
        if spec.kind is OutputKind.USER_INPUT_MUTATION
    ]
    for name in changed:
        if name in inputs:
            raise fail(OP, f"forward changes its {name} in place: it must leave it")
    return tuple(changed)
