# SPDX-License-Identifier: Apache-2.0
"""An exported module in Relax, and the function of its loss and gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from torch.export.graph_signature import ExportGraphSignature, OutputKind

from topi_ext.compat import has_float, op_attr, relax, type_of
from topi_ext.spec.geometry import fail

from . import batch_norm
from .export import OP, Exported

R = relax()


def imported(exported: Exported) -> Any:
    """Import an exported module into Relax.

    Returns
    -------
    tvm.IRModule
        ``main(*inputs, *state)``, which gives the loss where nothing else is a result, else changed
        buffers and the loss.
    """
    from tvm.relax.frontend.torch import from_exported_program

    signature = exported.program.graph_signature
    outputs = [replace(spec, kind=OutputKind.USER_OUTPUT) for spec in signature.output_specs]
    # The importer drops changes of tensors: as results of their own it gives them.
    exported.program._graph_signature = ExportGraphSignature(signature.input_specs, outputs)
    converters = {"stop_gradient.default": _stopped, **batch_norm.converters()}
    try:
        return from_exported_program(
            exported.program,
            unwrap_unit_return_tuple=True,
            no_bind_return_tuple=len(outputs) > 1,  # Gradient asks for results, not for a tuple
            run_ep_decomposition=False,
            custom_convert_map=converters,
        )
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise fail(OP, f"TVM's importer refuses the module: {reason}") from error


def differentiated(module: Any, names: Sequence[str], trained: Collection[str]) -> Any:
    """Replace ``main`` by ``main_adjoint``, which gives ``(results of main, gradients)``.

    Parameters
    ----------
    module : tvm.IRModule
    names : sequence of str
        Names of the parameters of ``main``, inputs first.
    trained : collection of str
        Names of those with a gradient.

    Raises
    ------
    ValueError
        One line with an operator that has no gradient, or a parameter that the loss ignores.
    """
    variables = dict(zip(names, module["main"].params))
    weights = {name: variables[name] for name in trained}
    _refuse_without_gradient(module["main"], weights)
    loss = module["main"].body.body
    index = len(loss.fields) - 1 if isinstance(loss, R.Tuple) else 0
    module = R.transform.Gradient("main", list(weights.values()), index)(module)
    del module["main"]
    return tvm.transform.Sequential(
        [
            R.transform.Normalize(),
            R.transform.CanonicalizeBindings(),
            R.transform.EliminateCommonSubexpr(),
            R.transform.DeadCodeElimination(["main_adjoint"]),
        ]
    )(module)


def _stopped(node: Any, importer: Any) -> Any:
    """Convert a tensor through which no gradient flows."""
    x = importer._retrieve_args(node.args[0])
    return importer.block_builder.emit(R.op.grad.no_grad(x))


def _refuse_without_gradient(main: Any, weights: Mapping[str, Any]) -> None:
    """Raise for operators without a gradient between a weight and the loss, and for weights without
    it.
    """
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    sources = {variable: 1 << i for i, variable in enumerate(weights.values())}
    for binding in bindings:
        used = 0
        for variable in _arguments(binding.value):
            used |= sources.get(variable, 0)
        sources[binding.var] = used if _carries_gradient(binding) else 0
    result = main.body.body
    loss = result.fields[-1] if isinstance(result, R.Tuple) else result
    needed = {loss}
    for binding in reversed(bindings):
        if binding.var not in needed or not sources[binding.var]:
            continue
        needed.update(_arguments(binding.value))
        name = _operator(binding.value)
        if name and op_attr(name, "FPrimalGradient") is None:
            raise fail(OP, f"operator {name} has no gradient in TVM")
    for i, name in enumerate(weights):
        if not sources.get(loss, 0) >> i & 1:
            rule = "set requires_grad=False, or leave it out of the optimizer"
            raise fail(OP, f"the loss does not depend on parameter {name!r}: {rule}")


def _arguments(value: Any) -> list[Any]:
    """Return the variables that an expression reads."""
    return list(R.analysis.free_vars(value))


def _operator(value: Any) -> str:
    is_call = isinstance(value, R.Call) and isinstance(value.op, tvm.ir.Op)
    return value.op.name if is_call else ""


def _carries_gradient(binding: Any) -> bool:
    """Return whether a gradient flows through the value of a binding: floats that are not
    stopped.
    """
    if _operator(binding.value) == "relax.grad.no_grad":
        return False
    return has_float(type_of(binding.var))
