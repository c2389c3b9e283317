# SPDX-License-Identifier: Apache-2.0
"""Gradients by ``relax.transform.Gradient``, compared with ``torch.autograd``.

Each operator alone: forward and both gradients of ``sum(y * dy)`` for a random ``dy``, against
float64. The whole model: gradients of ``sum(outputs * random)`` with respect to every floating
parameter and input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from conv_cli.adapter import Adapter
from conv_cli.errors import CliError
from conv_cli.measure import Protocol, Side, norm_error, timed_torch
from conv_cli.model import Model, imported_again
from conv_cli.operators import Operator, random_tensor
from topi_ext import compat

from ..ir import dtype_of
from .operators import bind_sizes, build
from .torch_model import call, is_floating, to_relax, widened


def differentiate(mod: Any, cotangents: Sequence[Any], wanted: Sequence[str]) -> Any:
    """Append ``sum(outputs * cotangents)`` to ``main`` and differentiate it.

    Parameters
    ----------
    mod : tvm.IRModule
    cotangents : sequence of tvm.relax.Type
        Types of the outputs, in order.
    wanted : sequence of str
        Parameters of ``main`` to differentiate by.

    Returns
    -------
    tvm.IRModule
        Its function ``main_loss_adjoint`` takes main's parameters, then the cotangents, and
        returns the loss and the tuple of gradients.

    Raises
    ------
    NotImplementedError
        An operator has no gradient.
    """
    if missing := without_gradient(mod):
        raise NotImplementedError(
            "no gradient of " + ", ".join(m.removeprefix("relax.") for m in missing)
        )

    ys = [relax.Var(f"y{i}", t) for i, t in enumerate(cotangents)]
    dys = [relax.Var(f"dy{i}", t) for i, t in enumerate(cotangents)]
    bb = relax.BlockBuilder()
    with bb.function("loss", [*ys, *dys]):
        with bb.dataflow():
            terms = [
                bb.emit(relax.op.sum(bb.emit(relax.op.multiply(y, dy)))) for y, dy in zip(ys, dys)
            ]
            total = terms[0]
            for term in terms[1:]:
                total = bb.emit(relax.op.add(total, term))
            total = bb.emit_output(total)
        bb.emit_func_output(total)
    mod = relax.training.AppendLoss("main", bb.get()["loss"], len(ys))(mod)
    params = [p for p in mod["main_loss"].params if compat.variable_name(p) in wanted]
    return relax.transform.Gradient("main_loss", params)(mod)


def without_gradient(mod: Any) -> list[str]:
    """Return the names of the operators of ``main`` that have no gradient now."""
    missing: set[str] = set()

    def visit(expr: Any) -> None:
        if (
            isinstance(expr, relax.Call)
            and isinstance(expr.op, tvm.ir.Op)
            and expr.op.get_attr("FPrimalGradient") is None
            and compat.has_float(compat.type_of(expr))
        ):
            missing.add(expr.op.name)

    relax.analysis.post_order_visit(mod["main"].body, visit)
    return sorted(missing)


def _computes_in(mod: Any, dtype: str) -> bool:
    """Return whether some value of ``main`` has this dtype."""
    found: set[str] = set()

    def visit(expr: Any) -> None:
        if isinstance(expr, (relax.Var, relax.Call)):
            found.add(dtype_of(expr))

    relax.analysis.post_order_visit(mod["main"].body, visit)
    return dtype in found


def differentiated(op: Operator) -> Any:
    """Return the module of :func:`differentiate` for a single operator."""
    mod = build(op)
    return differentiate(mod, [compat.type_of(mod["main"].body)], ["x", "w"])


def prepare(model: Model) -> Any:
    """Return the module that :func:`check_model` differentiates, its weights parameters of
    ``main``.

    Raises
    ------
    CliError
        The model is not one whose gradients can be checked.
    """
    if model.exported is None or model.reference is None:
        raise CliError(
            f"--grad: {model.name} has no autograd to compare with; "
            "save the PyTorch model as a .pt2 with torch.export and check that"
        )
    mod = _imported(model)
    if _computes_in(mod, "bfloat16"):
        raise CliError("--grad: TVM's Gradient does not take bfloat16")
    if missing := without_gradient(mod):
        raise CliError(f"--grad: TVM has no gradient of {', '.join(missing)}")
    if any(not is_floating(y) for y in model.reference()):
        raise CliError(f"--grad: {model.name} has outputs that are not floating point")
    return mod


def _imported(model: Model) -> Any:
    return bind_sizes(to_relax(model.exported, keep_params=True), model.inputs)


def check_model(
    adapter: Adapter, model: Model, mod: Any, protocol: Protocol, seed: int = 0
) -> tuple[Side, Side, float]:
    """Return the gradients by all floating inputs and parameters of a model: stock, ours, PyTorch's
    ms.

    ``mod`` is what :func:`prepare` gave.
    """
    import torch

    exported, reference = model.exported, model.reference
    assert reference is not None  # `prepare` rejects others
    kinds = torch.export.graph_signature.InputKind
    values = dict(model.inputs)
    for spec in exported.graph_signature.input_specs:
        if spec.kind is kinds.PARAMETER:
            values[spec.arg.name] = exported.state_dict[spec.target].detach()
    names = [compat.variable_name(p) for p in mod["main"].params]
    wanted = [n for n in names if values[n].dtype.is_floating_point]
    types = _leaf_types(compat.type_of(mod["main"].body))

    module, flat = exported.module(), model.leaves
    generator = torch.Generator().manual_seed(seed)
    dys = [random_tensor(tuple(y.shape), y.dtype, generator) for y in reference()]

    def by_torch(graph: Any, leaves: list[Any], cotangents: list[Any]) -> list[Any]:
        args = [v.detach().requires_grad_() if is_floating(v) else v for v in leaves]
        params = dict(graph.named_parameters())
        targets = dict(zip(exported.graph_signature.user_inputs, args))
        for spec in exported.graph_signature.input_specs:
            if spec.kind is kinds.PARAMETER:
                targets[spec.arg.name] = params[spec.target].requires_grad_()
        chosen = [targets[n] for n in wanted]
        results = call(graph, exported, args)
        found = torch.autograd.grad(
            results, chosen, cotangents, allow_unused=True, materialize_grads=True
        )
        return list(found)

    try:
        expected = by_torch(*widened(module, flat), [dy.double() for dy in dys])
    except Exception:  # e.g. a dtype written into the graph: its own precision must do
        expected = by_torch(module, flat, dys)
    tensors = [*(values[n] for n in names), *dys]

    def theirs() -> Any:
        return differentiate(imported_again(lambda: _imported(model)), types, wanted)

    def ours() -> Any:
        return differentiate(mod, types, wanted)

    of_stock, of_ours = adapter.attempt(
        (theirs, ours),
        tensors,
        expected,
        protocol,
        function=ADJOINT,
        take=adapter.gradients,
        compare=norm_error,
        dtypes=[values[n].dtype for n in wanted],
    )
    return of_stock, of_ours, timed_torch(lambda: by_torch(module, flat, dys), protocol)


ADJOINT = "main_loss_adjoint"


def _leaf_types(ty: Any) -> list[Any]:
    return list(ty.fields) if hasattr(ty, "fields") else [ty]
