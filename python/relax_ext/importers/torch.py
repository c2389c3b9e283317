# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the converters of :mod:`relax_ext.aten` for torch.export and torch.fx."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from topi_ext.compat import relax

R = relax()

_RETRIEVE = {"BaseFXGraphImporter._retrieve_args": ("self", "node")}
EXPORT_NEEDS = {**_RETRIEVE, "ExportedProgramImporter.create_convert_map": ("self",)}
FX_NEEDS = {
    **_RETRIEVE,
    "BaseFXGraphImporter._convert_torch_tensor_to_relax": ("tensor",),
    "TorchFXImporter.create_convert_map": ("self",),
    "TorchFXImporter.from_fx": (
        *("self", "model", "input_info", "keep_params_as_input"),
        *("unwrap_unit_return_tuple", "no_bind_return_tuple", "custom_convert_map"),
    ),
}


def export_corrections(module: ModuleType) -> dict[str, Any]:
    """Corrections of the importer of exported programs."""
    stock = vars(module.ExportedProgramImporter)["create_convert_map"]

    def create_convert_map(self: Any) -> Any:
        from ..aten import exported  # imports torch, as TVM's importer does

        return exported.converters(self, stock(self))

    return {"ExportedProgramImporter.create_convert_map": create_convert_map}


def fx_corrections(module: ModuleType) -> dict[str, Any]:
    """Corrections of the importer of traced graphs."""
    stock = vars(module.TorchFXImporter)
    create, from_fx = stock["create_convert_map"], stock["from_fx"]
    to_relax = vars(module.BaseFXGraphImporter)["_convert_torch_tensor_to_relax"].__func__

    def create_convert_map(self: Any) -> dict[Any, Any]:
        from ..aten import traced  # imports torch, as TVM's importer does

        found = create(self)
        return {**found, **traced.converters(self, found)}

    def with_parameters(
        self: Any,
        model: Any,
        input_info: Any,
        keep_params_as_input: bool,
        unwrap_unit_return_tuple: bool,
        no_bind_return_tuple: bool,
        custom_convert_map: Any = None,
    ) -> Any:
        if not keep_params_as_input:
            for _, parameter in model.named_parameters():
                self.params[parameter] = self._convert_torch_tensor_to_relax(parameter)
            model = _WithoutParameters(model)
        rest = unwrap_unit_return_tuple, no_bind_return_tuple, custom_convert_map
        return from_fx(self, model, input_info, keep_params_as_input, *rest)

    return {
        "TorchFXImporter.create_convert_map": create_convert_map,
        "TorchFXImporter.from_fx": with_parameters,
        "BaseFXGraphImporter._convert_torch_tensor_to_relax": staticmethod(
            partial(_constant, to_relax)
        ),
    }


class _WithoutParameters:
    """A model without its parameters: TVM's importer refuses those of float64 and bfloat16, and
    finds all of them converted already."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def named_parameters(self) -> tuple[()]:
        return ()


def _constant(stock: Callable[[Any], Any], tensor: Any) -> Any:
    """Return a tensor as a constant; bfloat16 by DLPack, since NumPy has none."""
    if str(tensor.dtype) != "torch.bfloat16":
        return stock(tensor)
    from tvm import runtime

    return R.const(runtime.from_dlpack(tensor.detach().cpu().clone().contiguous()))
