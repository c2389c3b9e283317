# SPDX-License-Identifier: Apache-2.0
"""Convert the result of every Relay importer to a module whose only parameters are the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from topi_ext.compat import relay


def bound(mod: Any, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Return the module with its weights bound, whose ``main`` takes the inputs in their order.

    Importers list parameters as the graph meets them, and leave out what it does not use.

    Parameters
    ----------
    mod : tvm.IRModule
    params : mapping of str to tvm.nd.NDArray
    inputs : mapping of str to torch.Tensor

    Raises
    ------
    ValueError
        The importer made of an input another name or dtype.
    """
    r = relay()
    main = r.build_module.bind_params_by_name(mod["main"], dict(params))
    found = {param.name_hint: param for param in main.params}
    for name, param in found.items():
        if name not in inputs:
            raise ValueError(f"{name} is no input of the model")
        dtype = str(inputs[name].dtype).removeprefix("torch.")
        if str(param.type_annotation.dtype) != dtype:
            raise ValueError(f"input {name} is {param.type_annotation.dtype}, not {dtype}")
    ordered = [
        found.get(name)
        or r.var(name, shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch."))
        for name, t in inputs.items()
    ]
    main = r.Function(ordered, main.body, main.ret_type, main.type_params, main.attrs)
    if _calls_others(main):
        mod["main"] = main
        return mod
    # TensorFlow's importer adds the whole Prelude to the module, on which passes fail.
    return tvm.IRModule.from_expr(main)


def _calls_others(main: Any) -> bool:
    """Return whether a function uses others of its module, or types that it defines."""
    r = relay()
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, (r.GlobalVar, tvm.ir.GlobalVar, r.Constructor, r.Match)):
            found.append(expr)

    r.analysis.post_order_visit(main, visit)
    return bool(found)
