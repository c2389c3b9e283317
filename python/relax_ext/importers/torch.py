# SPDX-License-Identifier: Apache-2.0
"""PyTorch: convolutions in every form of torch.export and torch.fx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from topi_ext.compat import known_shape, relax, simplify
from topi_ext.padding import Window, read
from topi_ext.spec.geometry import fail

from . import (
    torch_arithmetic,
    torch_batch_norm,
    torch_indexing,
    torch_layers,
    torch_promotion,
    torch_quantized,
    torch_results,
    torch_traced,
)
from .torch_arguments import arguments, refuse_lost, refuse_lost_results

R = relax()
RANKS = (1, 2, 3)

_BASE_NEEDS = {
    "BaseFXGraphImporter._retrieve_args": ("self", "node"),
    "BaseFXGraphImporter._is_no_bias": ("bias",),
    "BaseFXGraphImporter.shape_of": ("tensor",),
}
EXPORT_NEEDS = {**_BASE_NEEDS, "ExportedProgramImporter.create_convert_map": ("self",)}
FX_NEEDS = {
    **_BASE_NEEDS,
    "BaseFXGraphImporter._convert_torch_tensor_to_relax": ("tensor",),
    "TorchFXImporter.create_convert_map": ("self",),
    "TorchFXImporter.from_fx": (
        *("self", "model", "input_info", "keep_params_as_input"),
        *("unwrap_unit_return_tuple", "no_bind_return_tuple", "custom_convert_map"),
    ),
}

_CONV = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
"""Parameters of ``conv2d``, in order."""
_CONV_TRANSPOSE = [*_CONV[:5], "output_padding", "groups", "dilation"]
_CONVOLUTION = [*_CONV[:-1], "transposed", "output_padding", "groups"]
_DEFAULTS = {
    "bias": None,
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "transposed": False,
    "output_padding": 0,
    "output_size": None,
}


@dataclass(frozen=True)
class _Call:
    """Attributes of one call, as PyTorch gives them."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int
    transposed: bool = False
    output_padding: Any = 0


def export_corrections(module: ModuleType) -> dict[str, Any]:
    """Corrections of the importer of exported programs."""
    stock = vars(module.ExportedProgramImporter)["create_convert_map"]

    def create_convert_map(self: Any) -> dict[Any, Any]:
        return corrected(self, stock(self))

    return {"ExportedProgramImporter.create_convert_map": create_convert_map}


class _Corrected(dict[Any, Any]):
    """Converters that are corrected already.

    Attributes
    ----------
    stock : dict
        TVM's own with our corrections, without those of :mod:`relax_ext.aten`.
    """

    stock: dict[Any, Any]


def corrected(importer: Any, stock: dict[Any, Any]) -> dict[Any, Any]:
    """Return the converters of an importer of exported programs with our corrections.

    Parameters
    ----------
    importer : ExportedProgramImporter
    stock : dict
        Its converters by the name of an operator; returned unchanged where they are corrected.
    """
    if isinstance(stock, _Corrected):
        return stock
    from ..aten import exported  # imports torch, as TVM's importer does

    ours = {
        **_whole(importer),
        **_aten(importer),
        **torch_batch_norm.exported(importer),
        **torch_promotion.promoted(importer, stock),
        **_guarded(stock),
    }
    checked = {
        name: partial(_checked, importer, convert, name in ours)
        for name, convert in {**stock, **ours}.items()
    }
    converters = _Corrected({**checked, **exported.converters(importer, checked)})
    converters.stock = checked
    return converters


def fx_corrections(module: ModuleType) -> dict[str, Any]:
    """Corrections of the importer of traced graphs."""
    stock = vars(module.TorchFXImporter)
    create, from_fx = stock["create_convert_map"], stock["from_fx"]
    to_relax = vars(module.BaseFXGraphImporter)["_convert_torch_tensor_to_relax"].__func__

    def create_convert_map(self: Any) -> dict[Any, Any]:
        found = create(self)
        ours = {**_functions(self), **_modules(self), **torch_batch_norm.traced(self)}
        return {**found, **torch_traced.converters(self, found), **ours}

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


# ---------------------------------------------------------------- exported operators


def _whole(importer: Any) -> dict[str, Any]:
    """Converters that read all arguments of a call by its schema."""

    def bound(convert: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        return lambda node: convert(importer.block_builder.emit, arguments(importer, node))

    modules = (torch_arithmetic, torch_indexing, torch_layers, torch_quantized)
    return {
        name: bound(convert) for module in modules for name, convert in module.converters().items()
    }


def _guarded(stock: Mapping[Any, Any]) -> dict[str, Any]:
    """TVM's converters of pooling and padding, with arguments that they can read."""
    pools = [name for name in stock if str(name).startswith("max_pool")]
    return {
        **{name: partial(torch_layers.with_strides, stock[name]) for name in pools},
        "pad.default": partial(torch_layers.with_positive_widths, stock["pad.default"]),
    }


def _checked(importer: Any, convert: Callable[[Any], Any], is_ours: bool, node: Any) -> Any:
    """Convert a call of which nothing is lost, to a result of the stated type."""
    refuse_lost(node, is_ours)
    result = torch_promotion.widened(importer, convert, node)
    refuse_lost_results(node)
    return torch_results.as_stated(importer, node, result)


# ---------------------------------------------------------------- forms of the call


def _aten(importer: Any) -> dict[str, Any]:
    found = {"convolution.default": partial(_convolution, importer)}
    for rank in RANKS:
        for overload in ("default", "padding"):
            found[f"conv{rank}d.{overload}"] = partial(_conv, importer)
        overload = "default" if rank == 1 else "input"
        found[f"conv_transpose{rank}d.{overload}"] = partial(_conv_transpose, importer)
    return found


def _functions(importer: Any) -> dict[str, Any]:
    return {
        **{f"conv{rank}d": partial(_conv, importer) for rank in RANKS},
        **{f"conv_transpose{rank}d": partial(_conv_transpose, importer) for rank in RANKS},
    }


def _modules(importer: Any) -> dict[Any, Any]:
    from torch import nn

    return {
        **{getattr(nn, f"Conv{rank}d"): partial(_conv_module, importer) for rank in RANKS},
        **{
            getattr(nn, f"ConvTranspose{rank}d"): partial(_conv_transpose_module, importer)
            for rank in RANKS
        },
    }


def _arguments(importer: Any, node: Any, names: Sequence[str]) -> list[Any]:
    """Return all arguments of a call in the order of `names`, wherever it gives them."""
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return [importer._retrieve_args(given.get(name, _DEFAULTS.get(name))) for name in names]


def _conv(importer: Any, node: Any) -> Any:
    x, w, bias, *rest = _arguments(importer, node, _CONV)
    return _emit(importer, x, w, bias, _Call(*rest))


def _conv_transpose(importer: Any, node: Any) -> Any:
    x, w, bias, stride, padding, extra, groups, dilation = _arguments(
        importer, node, _CONV_TRANSPOSE
    )
    return _emit(importer, x, w, bias, _Call(stride, padding, dilation, groups, True, extra))


def _convolution(importer: Any, node: Any) -> Any:
    x, w, bias, stride, padding, dilation, transposed, extra, groups = _arguments(
        importer, node, _CONVOLUTION
    )
    call = _Call(stride, padding, dilation, groups, transposed, extra)
    return _emit(importer, x, w, bias, call)


def _conv_module(importer: Any, node: Any) -> Any:
    module = importer.named_modules[node.target]
    (x,) = _arguments(importer, node, ["input"])
    padding = module.padding
    if module.padding_mode != "zeros":
        x = _pad(importer, x, module)
        padding = 0
    call = _Call(module.stride, padding, module.dilation, module.groups)
    return _emit(importer, x, *_weights(importer, module), call)


def _conv_transpose_module(importer: Any, node: Any) -> Any:
    module = importer.named_modules[node.target]
    x, output_size = _arguments(importer, node, ["input", "output_size"])
    extra = module.output_padding
    if output_size is not None:
        extra = _output_padding(importer, x, module, output_size)
    call = _Call(module.stride, module.padding, module.dilation, module.groups, True, extra)
    return _emit(importer, x, *_weights(importer, module), call)


def _weights(importer: Any, module: Any) -> tuple[Any, Any]:
    bias = None if module.bias is None else importer.params[module.bias]
    return importer.params[module.weight], bias


def _output_padding(importer: Any, x: Any, module: Any, output_size: Any) -> list[Any]:
    """Return the output padding that gives the size in a call of the module."""
    rank = len(module.kernel_size)
    sizes = known_shape(importer.shape_of(x))[-rank:]
    wanted = [getattr(size, "value", size) for size in output_size][-rank:]
    window = Window(module.kernel_size, module.stride, module.dilation, transposed=True)
    full = window.full_size(sizes)
    return [simplify(w - f + 2 * padding) for w, f, padding in zip(wanted, full, module.padding)]


def _pad(importer: Any, x: Any, module: Any) -> Any:
    """Return the data padded otherwise than by zeros, as the module does it before its
    convolution.
    """
    last_first = list(module._reversed_padding_repeated_twice)
    pairs = [last_first[i : i + 2] for i in range(0, len(last_first), 2)][::-1]
    unpadded = [0, 0] * (len(importer.shape_of(x)) - len(pairs))
    width = unpadded + [side for pair in pairs for side in pair]
    return importer.block_builder.emit(R.op.nn.pad(x, width, module.padding_mode))


# ---------------------------------------------------------------- the operator


def _emit(importer: Any, x: Any, w: Any, bias: Any, call: _Call) -> Any:
    """Return the convolution in the dtype of its operands, of its own rank, with or without a
    batch.
    """
    emit = importer.block_builder.emit
    kernel = known_shape(importer.shape_of(w))[2:]
    rank = len(kernel)
    name = f"conv{rank}d" + ("_transpose" if call.transposed else "")
    is_single = len(importer.shape_of(x)) == rank + 1
    if is_single:
        x = emit(R.op.expand_dims(x, 0))
    stride, dilation = _per_axis(call.stride, rank), _per_axis(call.dilation, rank)
    attrs = {
        "strides": stride,
        "padding": _padding(name, kernel, call.padding, stride, dilation),
        "dilation": dilation,
        "groups": call.groups,
    }
    if call.transposed:
        attrs["output_padding"] = _per_axis(call.output_padding, rank)
    for attribute, values in attrs.items():
        if not all(isinstance(value, int) for value in _per_axis(values, rank)):
            raise fail(name, f"{attribute}={values} must be known at import")
    y = emit(getattr(R.op.nn, name)(x, w, **attrs))
    if not importer._is_no_bias(bias):
        y = emit(R.op.add(y, R.op.reshape(bias, (1, -1) + (1,) * rank)))
    return emit(R.op.squeeze(y, [0])) if is_single else y


def _padding(
    name: str, kernel: tuple[int, ...], padding: Any, stride: Any, dilation: Any
) -> tuple[Any, ...]:
    """Return the padding as numbers, an odd one larger after."""
    if not isinstance(padding, str):
        return _per_axis(padding, len(kernel))
    window = dict(kernel_size=kernel, stride=stride, dilation=dilation)
    return read("torch", "conv", padding=padding, **window).attributes["padding"]


def _per_axis(values: Any, rank: int) -> tuple[Any, ...]:
    """One value per axis, from one for all or one each."""
    several = tuple(values) if isinstance(values, Sequence) else (values,)
    return several * rank if len(several) == 1 else several
