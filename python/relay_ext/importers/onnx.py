# SPDX-License-Identifier: Apache-2.0
"""ONNX: ``auto_pad`` and ``output_shape`` as numbers, integers of rank 1 and 3, batch normalization
in training, and dtypes of any release of ONNX.

Where the standard's tools disagree, which is SAME of a kernel shorter than the stride, results are
those of onnxruntime and of ONNX's shape inference, not those of its ReferenceEvaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from topi_ext.compat import relay
from topi_ext.padding import read
from topi_ext.spec.geometry import fail
from topi_ext.spec.layout import SPATIAL

from .normalization import arithmetic_dtype, by_batch, cast, dtype_of

R = relay()

_CONVERTER = ("cls", "inputs", "attr", "params")
_PADDED = (
    "Conv._impl_v1",
    "ConvTranspose._impl_v1",
    "ConvTranspose._impl_v11",
    "QLinearConv._impl_v10",
    "ConvInteger._impl_v10",
)
NEEDS = {
    **dict.fromkeys((*_PADDED, "BatchNorm._impl_v1", "Cast._impl_v1", "Cast._impl_v6"), _CONVERTER),
    "get_type": ("elem_type",),
    "get_scalar": ("x", "params", "dtype"),
    "get_scalar_or_1d_tensor": ("x", "params", "dtype"),
    "infer_shape": ("inputs", "mod"),
    "infer_type": ("node", "mod"),
    "fold_constant": ("node", "mod"),
}

Convert = Callable[..., Any]


def corrections(module: ModuleType) -> dict[str, Any]:
    """Converters that state padding as numbers, then call TVM's; and dtypes without
    ``onnx.mapping``, which ONNX 1.19 dropped."""
    made = {path: classmethod(_padded(module, path)) for path in _PADDED}
    return {
        **made,
        "BatchNorm._impl_v1": classmethod(_batch_norm(module)),
        "Cast._impl_v6": classmethod(_cast),
        "get_type": _dtype,
    }


def _padded(module: ModuleType, path: str) -> Convert:
    class_name, name = path.split(".")
    stock = vars(getattr(module, class_name))[name].__func__
    integers = {"QLinearConv": _qlinear_conv, "ConvInteger": _conv_integer}.get(class_name)
    weight_at, bias_at = (3, 8) if class_name == "QLinearConv" else (1, 2)

    def convert(cls: type, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        inputs, attr = type(inputs)(inputs), dict(attr)
        while inputs and inputs[-1] is None:  # an optional input, named ""
            inputs.pop()
        data, weight = (module.infer_shape(inputs[at]) for at in (0, weight_at))
        if attr.get("channels_last", 0):
            data = (data[0], data[-1], *data[1:-1])
        _state_padding(class_name, data, weight, attr)
        if class_name != "ConvInteger" and len(inputs) > bias_at:
            _check_bias(class_name, module.infer_shape(inputs[bias_at]), weight, attr)
        # TVM's own takes two axes only, and channels first.
        if integers and (len(data) != 4 or attr.get("channels_last", 0)):
            return integers(module, inputs, attr, params)
        return stock(cls, inputs, attr, params)

    return convert


def _state_padding(
    op: str, data: Sequence[Any], weight: Sequence[Any], attr: dict[str, Any]
) -> None:
    """SAME and ``output_shape`` as ``pads`` and ``output_padding``, in `attr`.

    TVM's own rules take every kernel to be as long as the stride, and split an odd border the
    other way where ``auto_pad`` says NOTSET.
    """
    auto = attr.get("auto_pad", b"NOTSET").decode()
    wanted = attr.get("output_shape")
    rank = len(weight) - 2
    if not (auto.startswith("SAME") or wanted) or not _are_known(weight):
        return
    size = tuple(data[2:]) if _are_known(data[2:]) else None
    strides = attr.get("strides", (1,) * rank)
    if size is None and wanted:
        raise fail(op, f"output_shape={list(wanted)} needs sizes known at import")
    if size is None and op != "ConvTranspose" and max(strides) > 1:
        return  # only run time knows the padding: TVM computes it there
    given = ("dilations", "auto_pad", "pads", "output_padding", "output_shape")
    stated = read(
        "onnx",
        "conv_transpose" if op == "ConvTranspose" else "conv",
        size=size,
        kernel_size=tuple(weight[2:]),
        strides=strides,
        **{name: attr[name] for name in given if name in attr},
    ).attributes
    for name in ("auto_pad", "output_shape"):
        attr.pop(name, None)
    attr["pads"] = list(stated["padding"])
    if "output_padding" in stated:
        attr["output_padding"] = list(stated["output_padding"])


def _check_bias(op: str, bias: Sequence[Any], weight: Sequence[Any], attr: dict[str, Any]) -> None:
    """Raise if a bias is not one number per output channel."""
    if not (_are_known(bias) and _are_known(weight)):
        return
    channels = weight[1] * attr.get("group", 1) if op == "ConvTranspose" else weight[0]
    if tuple(bias) != (channels,):
        raise fail(op, f"bias of shape {list(bias)} must have one number per channel, {channels}")


def _are_known(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


# ------------------------------------------------------------- integers of one and three axes


def _conv_integer(module: ModuleType, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
    """``(x - x_zero_point) * (w - w_zero_point)`` in int32; TVM's own takes two axes only."""
    del params
    return _integer_convolution(module, inputs[0], inputs[1], inputs[2], inputs[3], attr)


def _qlinear_conv(module: ModuleType, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
    """Convert to the quantized operator with a bias in int32, rounded to the scale of the
    output.
    """
    axis = -1 if attr.get("channels_last", 0) else 1
    x_scale = module.get_scalar(inputs[1], params)
    w_scale = module.get_scalar_or_1d_tensor(inputs[4], params)
    y_scale = module.fold_constant(module.get_scalar(inputs[6], params))
    y_zero_point = module.get_scalar(inputs[7], params, "int32")
    total = _integer_convolution(module, inputs[0], inputs[3], inputs[2], inputs[5], attr)
    if len(inputs) == 9:
        total = R.nn.bias_add(total, inputs[8], axis=axis)
    dtype = module.infer_type(inputs[7]).checked_type.dtype
    scale, zero = R.multiply(x_scale, w_scale), R.const(0, "int32")
    if isinstance(y_scale, R.Constant):
        return R.qnn.op.requantize(
            total, scale, zero, y_scale, y_zero_point, out_dtype=dtype, axis=axis
        )
    real = R.qnn.op.dequantize(total, scale, zero, axis=axis)
    return R.qnn.op.quantize(real, y_scale, y_zero_point, axis=axis, out_dtype=dtype)


def _integer_convolution(
    module: ModuleType,
    data: Any,
    weight: Any,
    data_zero: Any,
    weight_zero: Any,
    attr: dict[str, Any],
) -> Any:
    shape = [int(size) for size in module.infer_shape(weight)]
    rank = len(shape) - 2
    layout = f"N{SPATIAL[rank]}C" if attr.get("channels_last", 0) else f"NC{SPATIAL[rank]}"

    def centred(tensor: Any, zero: Any) -> Any:
        wide = R.cast(tensor, "int32")
        if zero is None:
            return wide
        # One zero point, or one per output channel, which is the first axis of a weight.
        is_one = not any(size != 1 for size in module.infer_shape(zero))
        zero = R.reshape(R.cast(zero, "int32"), (1 if is_one else -1, *(1,) * (rank + 1)))
        return R.subtract(wide, zero)

    return getattr(R.nn, f"conv{rank}d")(
        centred(data, data_zero),
        centred(weight, weight_zero),
        strides=attr.get("strides", (1,) * rank),
        padding=(0,) * rank if attr.get("auto_pad") == b"VALID" else attr.get("pads", (0,) * rank),
        dilation=attr.get("dilations", (1,) * rank),
        groups=attr.get("group", 1),
        channels=shape[0],
        kernel_size=shape[2:],
        data_layout=layout,
        kernel_layout="OI" + SPATIAL[rank],
        out_dtype="int32",
    )


# ----------------------------------------------------------------------- batch normalization


def _batch_norm(module: ModuleType) -> Convert:
    """TVM's own ignores ``training_mode``, and wants one dtype."""
    stock = vars(module.BatchNorm)["_impl_v1"].__func__

    def convert(cls: type, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        operands, wanted = list(inputs), dtype_of(inputs[0])
        # Up to version 13, several outputs mean training, up to version 6 unless `is_test`.
        several = attr["tvm_custom"]["num_outputs"] > 1 and not attr.get("is_test", 0)
        if attr.get("training_mode", 0) or several:
            return _train_batch_norm(module, operands, attr)
        if len(set(map(dtype_of, operands))) == 1:
            return stock(cls, inputs, attr, params)
        dtype = arithmetic_dtype(operands)
        result = stock(cls, [cast(operand, dtype) for operand in operands], attr, params)
        return R.cast(result[0], wanted)

    return convert


def _train_batch_norm(module: ModuleType, operands: Sequence[Any], attr: dict[str, Any]) -> Any:
    """Normalize by the batch; then the running statistics, and up to version 13 the batch's."""
    data, scale, offset, *running = operands
    dtype, momentum = arithmetic_dtype(operands), attr.get("momentum", 0.9)
    data, scale, offset = (cast(operand, dtype) for operand in (data, scale, offset))
    normalized = by_batch(
        data,
        scale,
        offset,
        axis=1,
        rank=len(module.infer_shape(data)),
        epsilon=attr.get("epsilon", 1e-5),
    )
    kept, added = R.const(momentum, dtype), R.const(1 - momentum, dtype)
    results = [R.cast(normalized.data, dtype_of(operands[0]))]
    for before, now in zip(running, (normalized.mean, normalized.variance)):
        after = R.add(R.multiply(cast(before, dtype), kept), R.multiply(now, added))
        results.append(R.cast(after, dtype_of(before)))
    for before, now in zip(running, (normalized.mean, normalized.variance)):
        results.append(R.cast(now, dtype_of(before)))
    results = results[: max(1, attr["tvm_custom"]["num_outputs"])]
    if len(results) == 1:
        return results[0]
    return R.expr.TupleWrapper(R.Tuple(results), len(results))


# ------------------------------------------------------------------------------------- dtypes


def _dtype(elem_type: Any) -> str:
    """Return the name of the dtype that ONNX numbers so; a name stays what it is."""
    from onnx import TensorProto
    from onnx.helper import tensor_dtype_to_np_dtype

    if isinstance(elem_type, str):
        return elem_type
    if elem_type == int(TensorProto.BFLOAT16):
        return "bfloat16"  # which ONNX before 1.19 makes float32 of, for NumPy
    return str(tensor_dtype_to_np_dtype(elem_type))


def _cast(cls: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
    """Cast: its first version takes the name of a dtype."""
    return cls._impl_v1(inputs, {**attr, "to": _dtype(attr["to"])}, params)
