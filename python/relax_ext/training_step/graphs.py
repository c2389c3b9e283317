# SPDX-License-Identifier: Apache-2.0
"""The loss of a module and its gradients as one compiled graph, for the sizes that occur.

The graphs are those of AOTAutograd, compiled by the backend of ``torch.compile``; forward and
backward stay one graph, which is called without PyTorch's autograd.  As by ``torch.compile``, the
sizes of the first batch are known ones.  Axes whose sizes differ later are symbolic, and
:mod:`relax_ext.torch.executables` chooses what is compiled for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from topi_ext.notices import one_line
from topi_ext.spec.geometry import fail

from ..torch.backend import compile_whole
from ..torch.decompositions import decompositions, whole_upsamples
from ..torch.executables import STATIC_SIZES
from ..torch.options import Options
from .module import OP, Loss, modes

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Graph:
    """A compiled graph of the loss.

    Attributes
    ----------
    run : callable
        Takes the tensors `state` and a batch; returns the tensors `results`.
    state : list of str
        Names of the parameters and buffers that it takes.
    changed, assigned, trained : list of str
        Names of the buffers that it changes, of those that get another tensor, and of the
        parameters with a gradient.
    """

    run: Callable[..., Sequence[Any]]
    state: list[str]
    changed: list[str]
    assigned: list[str]
    trained: list[str]

    def __call__(
        self, values: Mapping[str, torch.Tensor], batch: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the loss, new buffers and gradients, by their names."""
        with torch.no_grad():
            try:
                results = list(self.run(*(values[name] for name in self.state), *batch))
            except RuntimeError as error:  # an assertion about the data
                raise fail(OP, str(error).strip().splitlines()[0]) from error
        loss = results.pop(len(self.changed))
        buffers = [*self.changed, *self.assigned]
        gradients = dict(zip(self.trained, results[len(buffers) :]))
        return loss, dict(zip(buffers, results)), gradients


class Graphs:
    """The graphs of a module by the shapes of batches.

    Parameters
    ----------
    module : torch.nn.Module
    state : mapping of str to torch.Tensor
        Parameters and buffers by name; those with ``requires_grad`` get gradients.
    options : Options
    """

    def __init__(
        self, module: nn.Module, state: Mapping[str, torch.Tensor], options: Options
    ) -> None:
        self._module = module
        self._state = state
        self._options = replace(options, unknown="raise", static_sizes=STATIC_SIZES)
        self._modes = {name: child.training for name, child in module.named_modules()}
        self._found: dict[tuple[bool, Shapes], Graph] = {}
        self._symbolic: list[tuple[bool, Callable[[Shapes], bool], Graph]] = []

    def of(self, batch: Sequence[torch.Tensor], train: bool) -> Graph:
        """Return the graph for a batch, with or without gradients."""
        shapes = tuple(tuple(tensor.shape) for tensor in batch)
        key = (train, shapes)
        if key not in self._found:
            self._found[key] = self._serving(*key) or self._added(batch, *key)
        return self._found[key]

    def _serving(self, train: bool, shapes: Shapes) -> Graph | None:
        """Return a graph of symbolic sizes that has these shapes too."""
        graphs = (g for mode, holds, g in self._symbolic if mode is train and holds(shapes))
        return next(graphs, None)

    def _added(self, batch: Sequence[torch.Tensor], train: bool, shapes: Shapes) -> Graph:
        """Compile a graph; where one of symbolic sizes cannot be, one of these sizes alone."""
        changing = self._changing(shapes)
        if any(map(any, changing)):
            try:
                graph, holds = self._traced(batch, train, changing)
            except ValueError:
                pass
            else:
                self._symbolic.append((train, holds, graph))
                return graph
        return self._traced(batch, train, [[False] * len(shape) for shape in shapes])[0]

    def _changing(self, shapes: Shapes) -> list[list[bool]]:
        """Return for each axis of each tensor whether it has had another size."""
        others = [
            seen for _, seen in self._found if all(len(a) == len(b) for a, b in zip(seen, shapes))
        ]
        return [
            [any(seen[i][axis] != size for seen in others) for axis, size in enumerate(shape)]
            for i, shape in enumerate(shapes)
        ]

    def _traced(
        self, batch: Sequence[torch.Tensor], train: bool, changing: list[list[bool]]
    ) -> tuple[Graph, Callable[[Shapes], bool]]:
        loss = Loss(self._module, self._state)
        sizes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        fake = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
        inputs = [_fake(fake, i, *pair) for i, pair in enumerate(zip(batch, changing))]
        try:
            with modes(self._module, self._modes if train else None), whole_upsamples():
                with torch.set_grad_enabled(train):
                    graph, signature = aot_export_module(
                        loss,
                        inputs,
                        trace_joint=train,
                        output_loss_index=0 if train else None,
                        decompositions=decompositions(trains=train),
                    )
            assert isinstance(graph, torch.fx.GraphModule)
            run = compile_whole(graph, "training" if train else "inference", self._options)
        except Exception as error:
            raise _refusal(error, self._module) from error
        for name in signature.user_inputs_to_mutate.values():
            number = signature.user_inputs.index(name)
            raise fail(OP, f"forward changes its argument {number} in place: it must leave it")
        backward = signature.backward_signature
        gradients = backward.gradients_to_parameters if backward else {}
        found = Graph(
            run,
            [loss.name_of(number) for number in (*signature.parameters, *signature.buffers)],
            [loss.name_of(number) for number in signature.buffers_to_mutate.values()],
            [loss.name_of(number) for number in loss.assigned],
            [loss.name_of(number) for number in gradients.values()],
        )
        return found, _condition(sizes, inputs)


def _fake(
    mode: FakeTensorMode, number: int, tensor: torch.Tensor, changing: Sequence[bool]
) -> torch.Tensor:
    """Return a tensor without values whose changing sizes are symbolic."""
    kinds = [DimDynamic.DYNAMIC if one else DimDynamic.STATIC for one in changing]
    return mode.from_tensor(
        tensor,
        source=ConstantSource(f"argument_{number}"),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds),
    )


def _condition(sizes: ShapeEnv, inputs: Sequence[torch.Tensor]) -> Callable[[Shapes], bool]:
    """Return whether a graph is right for shapes: its known sizes, and what PyTorch assumed."""
    stated: list[list[Any]] = [list(tensor.shape) for tensor in inputs]
    known = [[size if isinstance(size, int) else None for size in shape] for shape in stated]
    symbols = [size for shape in stated for size in shape if not isinstance(size, int)]
    assumed = sizes.produce_guards_expression(symbols)

    def holds(shapes: Shapes) -> bool:
        if [len(shape) for shape in shapes] != [len(shape) for shape in known]:
            return False
        pairs = [pair for a, b in zip(known, shapes) for pair in zip(a, b)]
        given = [size for expected, size in pairs if expected is None]
        is_known = all(expected in (None, size) for expected, size in pairs)
        return is_known and (not assumed or bool(sizes.evaluate_guards_expression(assumed, given)))

    return holds


def _refusal(error: Exception, module: nn.Module) -> ValueError:
    """Return the error of one line for what PyTorch or the backend refuses."""
    if isinstance(error, ValueError) and str(error).startswith(f"{OP}: "):
        return error
    text = one_line(error, 300)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        rule = "no shape and no branch may depend on data"
        return fail(OP, f"PyTorch cannot trace {type(module).__name__}: {text}: {rule}")
    return fail(OP, f"{type(module).__name__} is refused: {text}")
