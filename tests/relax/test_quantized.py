# SPDX-License-Identifier: Apache-2.0
"""Quantized layers through the pipeline: each is one kernel, with the values of integers.

Scales are powers of two, so that float32 holds all values between: results are equal to those of
integers and fractions, halves rounded to the even number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from helpers import build, emulated
from helpers.whole import compiled, ours
from relax_ext.pipeline import first_passes
from topi_ext.compat import size_var, tensor_type
from topi_ext.fusion.post_ops import simplified
from topi_ext.spec.post_ops import PostOp

OP = relax.op
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@dataclass(frozen=True)
class Layer:
    """A layer whose operands are bytes."""

    x: str = "uint8"
    w: str = "int8"
    out: str = "uint8"
    zeros: tuple[int, int, int] = (3, 0, 120)
    sizes: tuple[int, ...] = (6, 5)
    kernel: tuple[int, ...] = (3, 2)
    transposed: bool = False
    channels: tuple[int, int] = (4, 6)
    window: dict[str, Any] = field(default_factory=lambda: dict(strides=(1, 2), padding=(1, 1)))
    per_channel: bool = True
    groups: int = 1

    @property
    def name(self) -> str:
        return f"conv{len(self.kernel)}d{'_transpose' if self.transposed else ''}"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        ins, outs = self.channels
        pair = (ins, outs // self.groups) if self.transposed else (outs, ins // self.groups)
        return (*pair, *self.kernel)

    @property
    def scales(self) -> np.ndarray:
        """Return the scales of the weights, one for each channel that `weight_shape` states."""
        count = self.channels[1] // (self.groups if self.transposed else 1)
        many = np.exp2(-6 - np.arange(count) % 3).astype("float32")
        return many if self.per_channel else many[:1].reshape(())

    def constants(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Data and weight."""
        shape = (2, self.channels[0], *self.sizes)
        return drawn(rng, self.x, shape), drawn(rng, self.w, self.weight_shape)

    def sums(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return the sums of integers, by torch in float64, which holds them exactly."""
        function = getattr(
            F, f"conv_transpose{len(self.kernel)}d" if self.transposed else self.name
        )
        operands = (
            torch.tensor(v.astype("float64") - z) for v, z in zip((x, w), (*self.zeros[:2],))
        )
        window = {k.replace("strides", "stride"): v for k, v in self.window.items()}
        return function(*operands, groups=self.groups, **window).numpy()

    def factor(self) -> np.ndarray:
        """Return the factor of the sums."""
        every = np.tile(self.scales, self.groups if self.transposed else 1)
        return (every * 2.0**-3).reshape(1, -1, *(1,) * len(self.kernel))


X_SCALE, Y_SCALE = 2.0**-3, 2.0**1
LAYERS = {
    "plain": Layer(),
    "symmetric": Layer("int8", "int8", "int8", (0, 0, 0), per_channel=False),
    "all zero points": Layer("int8", "uint8", "int8", (-128, 131, -7)),
    "to int16, without relu": Layer("uint8", "uint8", "int16", (7, 255, -3)),
    "groups": Layer(groups=2),
    "depthwise": Layer(groups=4, channels=(4, 8)),
    "transposed": Layer(
        transposed=True, window=dict(strides=(3, 2), padding=(1, 0), output_padding=(1, 1))
    ),
    "transposed, groups": Layer("int8", transposed=True, groups=2, zeros=(-5, 0, 9)),
    "one axis": Layer(sizes=(9,), kernel=(4,), window=dict(strides=(2,))),
    "three axes": Layer(sizes=(4, 3, 5), kernel=(2, 3, 1), window={}),
    "one tap": Layer(kernel=(1, 1), window={}, channels=(17, 9)),
}


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def number(value: Any, dtype: str = "float32") -> relax.Expr:
    return relax.const(np.asarray(value, dtype), dtype)


def dequantized(bb: Any, value: Any, scale: Any, zero: int, dtype: str, axis: int = 1) -> Any:
    return bb.emit(OP.dequantize(value, number(scale), number(zero, dtype), axis))


def quantized(bb: Any, value: Any, layer: Layer) -> Any:
    zero = number(layer.zeros[2], layer.out)
    return bb.emit(OP.quantize(value, number(Y_SCALE), zero, 1, layer.out))


def convolved(bb: Any, x: Any, w: Any, layer: Layer) -> Any:
    """Emit the layer as QDQ has it: a convolution of float32 between dequantized operands."""
    x = dequantized(bb, x, X_SCALE, layer.zeros[0], layer.x)
    axis = 1 if layer.transposed else 0
    w = dequantized(bb, w, layer.scales, layer.zeros[1], layer.w, axis)
    return bb.emit(getattr(OP.nn, layer.name)(x, w, groups=layer.groups, **layer.window))


def rounded(value: np.ndarray, layer: Layer) -> np.ndarray:
    low, high = LIMITS[layer.out]
    return np.clip(np.rint(value / Y_SCALE) + layer.zeros[2], low, high).astype(layer.out)


def module(
    inputs: dict[str, np.ndarray], body: Callable[..., Any], shapes: dict[str, Any] | None = None
) -> tvm.IRModule:
    """``main(*inputs)`` of what `body` emits of them."""
    given = [
        relax.Var(
            name, tensor_type((shapes or {}).get(name, value.shape), str(value.dtype), value.ndim)
        )
        for name, value in inputs.items()
    ]
    return build.module(lambda *values: body(relax.BlockBuilder.current(), *values), *given)


def run(
    inputs: dict[str, np.ndarray], body: Callable[..., Any], **shapes: Any
) -> tuple[np.ndarray, list[str]]:
    function, made = compiled(module(inputs, body, shapes))
    result = function(*(tvm.runtime.tensor(value) for value in inputs.values()))
    return result.numpy(), ours(made)


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, rng: np.random.Generator) -> None:
    """Convolution, bias, relu, and bytes again."""
    layer = LAYERS[name]
    x, w = layer.constants(rng)
    bias = rng.integers(-999, 999, layer.channels[1]).astype("int32")
    per_channel = (1, -1, *(1,) * len(layer.kernel))

    def body(bb: Any, value: Any) -> Any:
        value = convolved(bb, value, number(w, layer.w), layer)
        # As ONNX has it: the bias is bytes too, with the scale of sums.
        scale = layer.factor().reshape(-1)
        offset = dequantized(bb, number(bias, "int32"), scale, 0, "int32", 0)
        value = bb.emit(OP.add(value, bb.emit(OP.reshape(offset, per_channel))))
        value = value if layer.out == "int16" else bb.emit(OP.nn.relu(value))
        return quantized(bb, value, layer)

    got, kernels = run({"x": x}, body)
    real = (layer.sums(x, w) + bias.reshape(per_channel)) * layer.factor()
    want = rounded(real if layer.out == "int16" else np.maximum(real, 0), layer)
    np.testing.assert_array_equal(got, want)
    assert want.std() > 2
    relu = "" if layer.out == "int16" else "_relu"
    assert kernels == [f"{layer.name}_cast_multiply_add{relu}_quantize"]


def test_weights_that_are_an_input(rng: np.random.Generator) -> None:
    layer = Layer("int8", "int8", per_channel=False)
    x, w = layer.constants(rng)
    got, kernels = run(
        {"x": x, "w": w}, lambda bb, x, w: quantized(bb, convolved(bb, x, w, layer), layer)
    )
    np.testing.assert_array_equal(got, rounded(layer.sums(x, w) * layer.factor(), layer))
    assert kernels == ["conv2d_cast_multiply_quantize"]


def test_a_result_in_float32(rng: np.random.Generator) -> None:
    layer = Layer()
    x, w = layer.constants(rng)
    got, kernels = run({"x": x}, lambda bb, x: convolved(bb, x, number(w, "int8"), layer))
    np.testing.assert_array_equal(got, layer.sums(x, w) * layer.factor())
    assert kernels == ["conv2d_cast_multiply"]


def test_a_batch_that_is_free(rng: np.random.Generator) -> None:
    layer = Layer()
    x, w = layer.constants(rng)
    got, kernels = run(
        {"x": x},
        lambda bb, x: quantized(bb, convolved(bb, x, number(w, "int8"), layer), layer),
        x=(size_var("n"), 4, 6, 5),
    )
    np.testing.assert_array_equal(got, rounded(layer.sums(x, w) * layer.factor(), layer))
    assert kernels == ["conv2d_cast_multiply_quantize"]


@pytest.mark.smoke
def test_two_layers_with_a_residual(rng: np.random.Generator) -> None:
    """Bytes go from kernel to kernel, and the residual is read as bytes."""
    layer = Layer(
        "uint8", "int8", "uint8", channels=(4, 4), kernel=(3, 3), window={"padding": (1, 1)}
    )
    x, first = layer.constants(rng)
    _, second = layer.constants(rng)
    behind = Layer(**{**layer.__dict__, "zeros": (120, 0, 120)})

    def body(bb: Any, x: Any) -> Any:
        inner = quantized(bb, convolved(bb, x, number(first, "int8"), layer), layer)
        # The scale of the result is another one than convolutions take.
        inner = bb.emit(OP.astype(inner, "uint8"))
        value = convolved(bb, inner, number(second, "int8"), behind)
        residual = dequantized(bb, x, X_SCALE, layer.zeros[0], "uint8")
        return quantized(bb, bb.emit(OP.nn.relu(bb.emit(OP.add(value, residual)))), behind)

    got, kernels = run({"x": x}, body)
    inner = rounded(layer.sums(x, first) * layer.factor(), layer)
    real = behind.sums(inner, second) * behind.factor() + (x.astype("float64") - 3) * X_SCALE
    np.testing.assert_array_equal(got, rounded(np.maximum(real, 0), behind))
    assert kernels == ["conv2d_cast_multiply_add_relu_quantize", "conv2d_cast_multiply_quantize"]


def test_bytes_between_a_convolution_and_its_residual(rng: np.random.Generator) -> None:
    """ONNX quantizes what is added as well: bytes, fractions, a sum, and bytes again."""
    layer = Layer(channels=(4, 4), kernel=(1, 1), window={})
    x, w = layer.constants(rng)

    def body(bb: Any, x: Any) -> Any:
        value = quantized(bb, convolved(bb, x, number(w, "int8"), layer), layer)
        value = dequantized(bb, value, Y_SCALE, layer.zeros[2], "uint8")
        residual = dequantized(bb, x, X_SCALE, layer.zeros[0], "uint8")
        return quantized(bb, bb.emit(OP.add(value, residual)), layer)

    got, kernels = run({"x": x}, body)
    once = rounded(layer.sums(x, w) * layer.factor(), layer).astype("float64") - 120
    real = once * Y_SCALE + (x.astype("float64") - 3) * X_SCALE
    np.testing.assert_array_equal(got, rounded(real, layer))
    assert len(kernels) == 1 and kernels[0].count("quantize") == 2


def test_a_sum_of_two_convolutions_is_a_step_of_one(rng: np.random.Generator) -> None:
    """Each keeps its own bias; of float32 too."""
    layer = Layer(channels=(4, 4), kernel=(1, 1), window={})
    x, w = layer.constants(rng)
    bias = rng.integers(-9, 9, (1, 4, 1, 1)).astype("float32")

    def body(bb: Any, x: Any) -> Any:
        values = [
            bb.emit(OP.add(convolved(bb, x, number(w, "int8"), layer), number(bias)))
            for _ in range(2)
        ]
        return quantized(bb, bb.emit(OP.add(*values)), layer)

    got, kernels = run({"x": x}, body)
    real = 2 * (layer.sums(x, w) * layer.factor() + bias)
    np.testing.assert_array_equal(got, rounded(real, layer))
    assert kernels == ["conv2d_cast_multiply_add", "conv2d_cast_multiply_add_add_divide_quantize"]


def test_limits_of_bytes(rng: np.random.Generator) -> None:
    """TFLite's activation clips what is quantized already."""
    layer = Layer()
    x, w = layer.constants(rng)

    def body(bb: Any, x: Any) -> Any:
        value = quantized(bb, convolved(bb, x, number(w, "int8"), layer), layer)
        return bb.emit(OP.clip(value, 121, 130))

    got, kernels = run({"x": x}, body)
    want = rounded(layer.sums(x, w) * layer.factor(), layer).clip(121, 130)
    np.testing.assert_array_equal(got, want)
    assert kernels == ["conv2d_cast_multiply_quantize_maximum_minimum"]


def test_weights_turned_behind_their_scales(rng: np.random.Generator) -> None:
    """TFLite's depthwise weights are dequantized before they are reshaped."""
    layer = Layer(groups=4, channels=(4, 8), zeros=(3, 0, 120))
    x, w = layer.constants(rng)
    stored = w.reshape(8, 3, 2).transpose(1, 2, 0)[None]  # 1HWO

    def body(bb: Any, x: Any) -> Any:
        x = dequantized(bb, x, X_SCALE, 3, "uint8")
        weight = dequantized(bb, number(stored, "int8"), layer.scales, 0, "int8", 3)
        weight = bb.emit(OP.reshape(weight, (3, 2, 8, 1)))
        window = dict(strides=(1, 2), padding=(1, 1), groups=4, kernel_layout="HWOI")
        return quantized(bb, bb.emit(OP.nn.conv2d(x, weight, **window)), layer)

    got, kernels = run({"x": x}, body)
    np.testing.assert_array_equal(got, rounded(layer.sums(x, w) * layer.factor(), layer))
    assert kernels == ["conv2d_cast_multiply_quantize"]


def test_differences_in_int16(rng: np.random.Generator) -> None:
    """ConvInteger is imported as sums of bytes less their zero points, and these are the result."""
    layer = Layer()
    x, w = layer.constants(rng)

    def body(bb: Any, x: Any) -> Any:
        wide = bb.emit(OP.astype(x, "int16"))
        x = bb.emit(OP.subtract(wide, number(np.full((1, 1, 1, 1), 3), "int16")))
        call = OP.nn.conv2d(x, number(w, "int8"), out_dtype="int32", **layer.window)
        return bb.emit(OP.add(bb.emit(call), number(np.full((1, 6, 1, 1), 5), "int32")))

    got, kernels = run({"x": x}, body)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, layer.sums(x, w) + 5)
    assert kernels == ["conv2d_add"]


def test_a_layer_of_float32_whose_result_is_quantized(rng: np.random.Generator) -> None:
    """The kernel of the first layer of many models takes float32 and writes quantized results."""
    layer = Layer(channels=(4, 4), kernel=(1, 1), window={})
    x = rng.integers(-99, 99, (2, 4, 6, 5)).astype("float32")
    w = rng.integers(-9, 9, (4, 4, 1, 1)).astype("float32")
    got, kernels = run(
        {"x": x}, lambda bb, x: quantized(bb, bb.emit(OP.nn.conv2d(x, number(w))), layer)
    )
    want = F.conv2d(torch.tensor(x), torch.tensor(w)).numpy()
    np.testing.assert_array_equal(got, rounded(want, layer))
    assert kernels == ["conv2d"]


KEPT = {
    "scales of data differ": dict(x_scale=np.full(4, 0.5)),
    "zero points of weights differ": dict(w_zero=np.arange(6)),
    "scales within an output channel": dict(axis=1, w_scale=np.full(4, 0.5) * np.arange(1, 5)),
    "int16": dict(x="int16"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_convolution_of_bytes_stays_one_of_fractions(
    name: str, rng: np.random.Generator
) -> None:
    given = dict(x="uint8", x_scale=0.5, w_scale=0.25, w_zero=0, axis=0)
    given.update(KEPT[name])
    x, w = drawn(rng, given["x"], (1, 4, 5, 5)) // 4, drawn(rng, "int8", (6, 4, 2, 2))

    def body(bb: Any, value: Any) -> Any:
        value = bb.emit(OP.dequantize(value, number(given["x_scale"]), number(0, given["x"]), 1))
        zero = number(given["w_zero"], "int8")
        weight = OP.dequantize(number(w, "int8"), number(given["w_scale"]), zero, given["axis"])
        return bb.emit(OP.nn.conv2d(value, bb.emit(weight)))

    got, kernels = run({"x": x}, body)

    def spread(values: Any, axis: int) -> np.ndarray:
        shape = [1] * 4
        shape[axis] = -1
        return np.asarray(values, "float64").reshape(shape)

    real = x * spread(given["x_scale"], 1)
    weight = (w - spread(given["w_zero"], given["axis"])) * spread(given["w_scale"], given["axis"])
    want = F.conv2d(torch.tensor(real), torch.tensor(weight)).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert kernels == ["conv2d"]


def test_simplified() -> None:
    """Divisions go into factors; values that are used twice stay what they were."""
    factor = PostOp("multiply", value=0.5), None
    relu, half = (PostOp("relu"), None), (PostOp("divide", value=0.25), None)
    last = PostOp("quantize", value=3, dtype="uint8"), None
    cast = PostOp("cast"), None
    bias = PostOp("add", value=7.0), None
    assert simplified([cast, factor, bias, relu, half, last]) == [
        cast, (PostOp("multiply", value=2.0), None), (PostOp("add", value=28.0), None), relu, last,
    ]  # fmt: skip
    swish = [(PostOp("sigmoid"), None), (PostOp("multiply", earlier=2), None)]
    kept = [cast, factor, *swish, half, last]
    assert simplified(kept) == kept
    ones = [cast, (PostOp("multiply", value=1.0), None), *swish]
    assert simplified(ones) == [cast, swish[0], (PostOp("multiply", earlier=1), None)]


@pytest.mark.parametrize("name", ["symmetric", "plain"])
def test_on_a_gpu(name: str, rng: np.random.Generator) -> None:
    """A kernel of bytes where zero points are 0, emulated; else one of float32."""
    layer = LAYERS[name]
    x, w = layer.constants(rng)
    mod = module(
        {"x": x, "w": w}, lambda bb, x, w: quantized(bb, convolved(bb, x, w, layer), layer)
    )
    with emulated.TARGET:
        made = tvm.transform.Sequential(first_passes(mod))(mod)
    funcs = {name.name_hint: func for name, func in made.functions_items()}
    if name == "plain":
        assert "conv2d" in funcs and not any("cast" in one for one in funcs)
        return
    out = np.zeros(layer.sums(x, w).shape, layer.out)
    emulated.emulated(funcs["conv2d_cast_multiply_quantize"])(x, w, out)
    np.testing.assert_array_equal(out, rounded(layer.sums(x, w) * layer.factor(), layer))


@pytest.mark.parametrize(("scale", "is_bytes"), [(1e20, False), (1e-25, False), (0.5, True)])
def test_scales_whose_product_float32_cannot_hold(scale: float, is_bytes: bool) -> None:
    """They are left to float32, as operator by operator; they had ended the compilation."""

    def real(value: Any) -> Any:
        return OP.dequantize(value, relax.const(np.float32(scale)), relax.const(0, "int8"))

    weight = relax.const(np.ones((4, 4, 1, 1), "int8"))
    step, zero = relax.const(np.float32(2.0)), relax.const(0, "int8")

    def body(x: Any) -> Any:
        y = build.emit(OP.nn.conv2d(real(x), real(weight)))
        return OP.quantize(y, step, zero, out_dtype="int8")

    run, module = compiled(build.module(body, [1, 4, 5, 5], dtype="int8"))
    data = np.arange(100, dtype="int8").reshape(1, 4, 5, 5)  # sums of one sign: no inf - inf
    got = run(tvm.runtime.tensor(data)).numpy()
    wide = data.astype("float64").sum(1, keepdims=True) * scale * scale / 2
    want = np.clip(np.rint(wide), -128, 127) + np.zeros((1, 4, 1, 1))
    assert np.abs(got - want).max() <= (0 if is_bytes else 1)  # products of float32
    assert any("cast" in name for name in ours(module)) == is_bytes
