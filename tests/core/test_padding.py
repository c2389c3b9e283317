# SPDX-License-Identifier: Apache-2.0
"""Paddings of every framework against what the framework itself computed, and one into another.

tests/data/padding.json holds what TensorFlow, Keras, JAX, PyTorch and onnxruntime returned
(scripts/padding_golden.py); those that can be imported here are asked again.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import padding_golden as frameworks
from topi_ext.padding import (
    SPELLINGS,
    Border,
    Call,
    Window,
    fit,
    read,
    same_from_valid,
    translate,
)
from topi_ext.spec.geometry import Geometry

ROOT = Path(__file__).parents[2]

GOLDEN = json.loads((ROOT / "tests" / "data" / "padding.json").read_text())
OPS = ("conv", "conv_transpose")
seeds = st.integers(0, 2**32 - 1)

every_face = pytest.mark.parametrize("op", OPS)
every_framework = pytest.mark.parametrize("framework", SPELLINGS)
every_pair = pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in SPELLINGS for b in SPELLINGS]
)


def drawn(seed: int, framework: str, op: str) -> tuple[Call, dict[str, Any]]:
    """A call that means something, and its arguments; the seed finds it again."""
    rng = random.Random(seed)
    while True:
        size, arguments = frameworks.draw(rng, framework, op)
        try:
            return read(framework, op, size=size, **arguments), arguments
        except ValueError:
            continue


# ------------------------------------------------------------------------ what calls mean


@every_face
@every_framework
def test_a_call_means_what_its_framework_computed(framework: str, op: str) -> None:
    cases = [c for c in GOLDEN["cases"] if (c["framework"], c["op"]) == (framework, op)]
    right = 0
    for case in cases:
        size, arguments = tuple(case["size"]), case["arguments"]
        if case["shape"] is None:
            continue
        call = read(framework, op, size=size, **arguments)
        got = frameworks.defined(call, *frameworks.operands(size, call.window.kernel))
        assert list(got.shape) == case["shape"] == list(call.output_size or ()), case
        assert got.ravel().tolist() == case["values"], case
        right += 1
    assert right >= 40


def is_only_lacking(case: dict[str, Any]) -> bool:
    """Return True if an implementation lacks what its framework's rules allow."""
    framework, op, arguments = case["framework"], case["op"], case["arguments"]
    if framework == "onnx":  # onnxruntime: SAME with dilation, an output_shape beyond the full one
        return "output_shape" in arguments or "SAME" in arguments["auto_pad"]
    if framework == "tensorflow" and op == "conv_transpose":  # numbers with dilation, on CPUs
        return not isinstance(arguments["padding"], str) and max(arguments["dilations"]) > 1
    # oneDNN's fault in conv3d, which the script does not run
    return framework in ("tensorflow", "keras") and op == "conv" and len(case["size"]) == 3


def test_what_a_framework_refuses_is_refused() -> None:
    refused = [c for c in GOLDEN["cases"] if c["shape"] is None and not is_only_lacking(c)]
    assert len(refused) > 40
    for case in refused:
        with pytest.raises(ValueError, match=r"^[\w.]+: .+$"):
            read(case["framework"], case["op"], size=tuple(case["size"]), **case["arguments"])


@every_face
@pytest.mark.parametrize("framework", ["torch", "onnx", "tensorflow", "keras", "jax"])
@given(seed=seeds)
def test_a_call_means_what_its_framework_computes_here(framework: str, op: str, seed: int) -> None:
    needed = {"onnx": ("onnx", "onnxruntime"), "keras": ("tensorflow", "keras")}
    for package in needed.get(framework, (framework,)):
        pytest.importorskip(package, reason=f"{framework} is not installed")
    call, arguments = drawn(seed, framework, op)
    assert call.size is not None
    x, w = frameworks.operands(call.size, call.window.kernel)
    got = frameworks.run(framework, op, call.size, arguments)
    if isinstance(got, Exception) and framework not in ("torch", "jax"):
        return  # the test above says what is refused
    assert np.array_equal(got, frameworks.defined(call, x, w)), (seed, arguments)


@given(seed=seeds)
def test_same_is_tensorflows_definition(seed: int) -> None:
    """``ceil(size/stride)`` rows, and the odd row of the border behind."""
    rng = random.Random(seed)
    size, kernel, stride, dilation = (rng.randint(1, high) for high in (40, 9, 5, 3))
    window = Window((kernel,), (stride,), (dilation,), transposed=False)
    ((before, after),) = Border("same_upper").ends(window, (size,))
    assert window.output_size((size,), (before,), (after,)) == (-(-size // stride),), seed
    assert after - before in (0, 1)
    assert Border("same_lower").ends(window, (size,)) == ((after, before),)


# ------------------------------------------------------------------------ from one into another


def has_both(window: Window) -> bool:
    """Strides and dilations, which Keras takes one of."""
    return max(window.stride) > 1 and max(window.dilation) > 1


@every_face
@every_pair
@given(seed=seeds)
def test_a_translation_computes_the_same(source: str, target: str, op: str, seed: int) -> None:
    call, arguments = drawn(seed, source, op)
    assert call.size is not None
    to = "conv_transpose" if call.window.transposed else "conv"
    if target == "keras" and has_both(call.window):
        with pytest.raises(ValueError, match=r"must not both be above 1 in Keras"):
            translate(source, target, op, size=call.size, **arguments)
        return
    found = translate(source, target, op, size=call.size, **arguments)
    x, w = frameworks.operands(call.size, call.window.kernel)
    padded = frameworks.resized(x, found.pad)
    stated = {"kernel_size": call.window.kernel} | found.arguments
    meant = read(target, to, size=padded.shape, **stated)
    turned = np.flip(w) if found.flip_kernel else w
    got = frameworks.defined(meant, padded, turned)
    got = frameworks.resized(got, [(-b, -a) for b, a in found.crop])
    want = frameworks.defined(call, x, w)
    assert np.array_equal(got, want), (seed, arguments, found)
    assert found.output_size == want.shape


@pytest.mark.parametrize("target", SPELLINGS)
@every_face
@given(seed=seeds)
def test_pytorch_without_a_size(target: str, op: str, seed: int) -> None:
    """A layer is translated without knowing its operand; TensorFlow's output_shape wants it."""
    call, arguments = drawn(seed, "torch", op)
    if "output_size" in arguments or (target, op) == ("tensorflow", "conv_transpose"):
        with pytest.raises(ValueError, match="size=None must be given"):
            translate("torch", target, op, **arguments)
        return
    if target == "keras" and has_both(call.window):
        with pytest.raises(ValueError, match=r"must not both be above 1 in Keras"):
            translate("torch", target, op, **arguments)
        return
    found = translate("torch", target, op, **arguments)
    sized = translate("torch", target, op, size=call.size, **arguments)
    if op == "conv_transpose":
        assert (found.arguments, found.crop) == (sized.arguments, sized.crop)
    assert found.output_size is None


@pytest.mark.parametrize("target", SPELLINGS)
@pytest.mark.parametrize("ends", [(9, -12), (-12, 9), (-3, -9), (0, -3), (12, -14)])
def test_zeros_alone_and_zeros_on_either_side(ends: tuple[int, int], target: str) -> None:
    """JAX can ask for a window that lies partly or wholly beside the full result."""
    jax = dict(kernel_size=3, strides=2, padding=[(2 - ends[0], 2 - ends[1])])
    call = read("jax", "conv_transpose", size=4, **jax)
    assert call.ends == (ends,)
    found = translate("jax", target, "conv_transpose", size=4, **jax)
    x, w = frameworks.operands((4,), (3,))
    meant = read(target, "conv_transpose", size=4, **({"kernel_size": 3} | found.arguments))
    got = frameworks.defined(meant, x, np.flip(w) if found.flip_kernel else w)
    got = frameworks.resized(got, [(-b, -a) for b, a in found.crop])
    assert np.array_equal(got, frameworks.defined(call, x, w))


def test_founding_report_4() -> None:
    """conv_transpose1d of PyTorch, output_padding included, by TensorFlow's conv1d_transpose."""
    layer = dict(kernel_size=16, stride=8, padding=4, output_padding=1)
    found = translate("torch", "tensorflow", "conv_transpose", size=100, **layer)
    assert found.function == "tf.nn.conv1d_transpose"
    assert found.arguments["padding"] == "VALID" and found.arguments["output_shape"] == (808,)
    assert found.crop == ((4, 3),) and found.output_size == (801,)
    x, w = frameworks.operands((100,), (16,))
    y = torch.nn.functional.conv_transpose1d(
        torch.from_numpy(x)[None, None], torch.from_numpy(w)[None, None], None, 8, 4, 1
    )
    valid = read("tensorflow", "conv_transpose", size=100, kernel_size=16, **found.arguments)
    full = frameworks.defined(valid, x, w)
    assert full.shape == (808,)
    assert np.array_equal(full[4:-3], y[0, 0].numpy())


def test_rows_behind_the_last_tap_are_tensorflows_output_shape() -> None:
    """VALID may return up to stride - 1 of them: output_padding without padding is one call."""
    layer = dict(kernel_size=256, stride=128, output_padding=127)
    found = translate("torch", "tensorflow", "conv_transpose", size=10, around=False, **layer)
    assert found.arguments["padding"] == "VALID"
    assert found.arguments["output_shape"] == found.output_size == (1535,)


def test_numbers_are_no_padding_of_tensorflows_dilated_transpose() -> None:
    """TensorFlow refuses both together on CPUs."""
    layer = dict(kernel_size=(3, 3), stride=2, padding=2, output_padding=1)
    plain = translate("torch", "tensorflow", "conv_transpose", size=(5, 5), **layer)
    assert plain.arguments["padding"] == [[0, 0], [2, 1], [2, 1], [0, 0]] and plain.is_one_call
    layer["dilation"] = 3
    dilated = translate("torch", "tensorflow", "conv_transpose", size=(5, 5), **layer)
    assert (dilated.arguments["padding"], dilated.crop) == ("VALID", ((2, 1), (2, 1)))


@pytest.mark.parametrize("kernel", range(1, 8))
@pytest.mark.parametrize("stride", range(1, 5))
def test_founding_reports_2_and_3(kernel: int, stride: int) -> None:
    """TensorFlow's own conv2d_transpose: SAME is VALID with the border cut off."""
    found = {
        case["arguments"]["padding"]: np.reshape(case["values"], case["shape"])
        for case in GOLDEN["cases"][-56:]
        if case["arguments"]["kernel_size"] == [kernel] * 2
        and case["arguments"]["strides"] == [stride] * 2
    }
    window = Window((kernel,) * 2, (stride,) * 2, (1, 1), transposed=True)
    ends = same_from_valid(window)
    # Of a kernel shorter than the stride VALID was asked for the rows of SAME.
    kept = [(-b, -max(0, a)) for b, a in ends]
    assert np.array_equal(found["SAME"], frameworks.resized(found["VALID"], kept))
    first, last = ends[0]
    assert first == max(kernel - stride, 0) // 2 and first + last == kernel - stride


def test_the_odd_row_of_a_border_is_on_the_other_side() -> None:
    """PyTorch's padding=1 of kernel 3, stride 2 and an even size is not SAME."""
    layer = dict(kernel_size=3, stride=2, padding=1)
    found = translate("torch", "tensorflow", "conv", size=8, **layer)
    assert (found.arguments["padding"], found.pad) == ("VALID", ((1, 1),))
    with pytest.raises(ValueError) as error:
        translate("torch", "tensorflow", "conv", size=8, around=False, **layer)
    assert str(error.value) == (
        "tf.nn.conv1d: padding=((1, 1),) (before, after) cannot be expressed by a single call: "
        "pass padding='VALID' and pad the operand by ((1, 1),)"
    )
    odd = translate("torch", "tensorflow", "conv", size=7, around=False, **layer)
    assert odd.is_one_call and odd.arguments["padding"] == "SAME"
    flat = dict(kernel_size=(3, 3), stride=2, padding=1)
    explicit = translate("torch", "tensorflow", "conv", size=8, around=False, **flat)
    assert explicit.arguments["padding"] == [[0, 0], [1, 1], [1, 1], [0, 0]]


def test_jax_says_every_border_in_one_call() -> None:
    for framework in SPELLINGS:
        for seed in range(40):
            for op in OPS:
                call, arguments = drawn(seed, framework, op)
                found = translate(framework, "jax", op, size=call.size, **arguments)
                assert found.is_one_call, (framework, op, seed)


# ------------------------------------------------------------------------ for adapters


@given(seed=seeds)
def test_attributes_are_those_of_our_operators(seed: int) -> None:
    """strides, padding, dilation and output_padding, as a Geometry takes them."""
    rng = random.Random(seed)
    framework, op = rng.choice(list(SPELLINGS)), rng.choice(OPS)
    call, _ = drawn(seed, framework, op)
    stated = dict(call.attributes)
    stated["stride"] = stated.pop("strides")
    data, weight = (1, 1, *(call.size or ())), (1, 1, *call.window.kernel)
    if call.window.transposed:
        geometry = Geometry.of_conv_transpose("op", data, weight, **stated)
        assert geometry.x_size == call.output_size, seed
    else:
        assert Geometry.of_conv("op", data, weight, **stated).y_size == call.output_size, seed


@given(seed=seeds)
def test_fit_reaches_the_wanted_size(seed: int) -> None:
    rng = random.Random(seed)
    size, kernel, stride, dilation = (rng.randint(1, high) for high in (9, 7, 5, 3))
    window = Window((kernel,), (stride,), (dilation,), transposed=True)
    (full,) = window.full_size((size,))
    wanted, before = full + rng.randint(-4, 12), rng.randint(-2, 5)
    (after,), (extra,) = fit(window, (size,), (wanted,), (before,))
    assert full - before - after + extra == wanted
    assert 0 <= extra < max(stride, dilation)
    assert after == 0 or not extra
    missing = wanted + before - full
    assert (after < 0) == (missing >= max(stride, dilation))


# ------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("framework", "op", "arguments", "said"),
    [
        ("theano", "conv", {}, "translate: framework='theano' must be one of torch,"),
        ("torch", "deconv", {}, "translate: op='deconv' must be conv or conv_transpose"),
        ("torch", "conv", {"pad": 1}, "conv1d: argument 'pad' must be one of kernel_size,"),
        ("torch", "conv", {"stride": 0}, r"stride=\(0,\) must be at least 1"),
        ("torch", "conv", {"padding": -1}, r"padding=\(-1,\) must be at least 0"),
        ("torch", "conv", {"padding": "full"}, "padding='full' must be one of same, valid"),
        ("torch", "conv", {"padding": "same", "stride": 2}, "padding='same' must have stride 1"),
        ("torch", "conv_transpose", {"output_padding": 1}, "must be at least 0 and smaller than"),
        ("torch", "conv_transpose", {"output_size": 9}, "must be between"),
        ("torch", "conv", {"kernel_size": (3, 3, 3, 3)}, "must have 1, 2 or 3 values"),
        ("torch", "conv", {"kernel_size": 9}, "output size=.* must be at least 1 on every axis"),
        ("tensorflow", "conv_transpose", {}, "output_shape=None must be given"),
        ("tensorflow", "conv_transpose", {"output_shape": 5}, "must be one whose convolution has"),
        ("tensorflow", "conv", {"padding": [[1, 1]]}, "must be SAME or VALID: only 2-D"),
        ("keras", "conv", {"strides": 2, "dilation_rate": 2}, "must not both be above 1"),
        ("keras", "conv_transpose", {"output_padding": 1}, "smaller than strides"),
        ("onnx", "conv", {"pads": [1]}, r"pads=\(1,\) must have 2 values"),
        ("onnx", "conv", {"auto_pad": "SAME"}, "auto_pad='SAME' must be one of NOTSET, VALID"),
        (
            "jax",
            "conv",
            {"padding": [(0, 0)], "window_strides": 2, "lhs_dilation": 2},
            "must not both be above 1: that is neither",
        ),
        ("jax", "conv", {"padding": "SAME", "lhs_dilation": 2}, "must be pairs where lhs_dilation"),
        ("jax", "conv_transpose", {"padding": 1}, "must have a pair"),
    ],
)
def test_errors_are_one_line(framework: str, op: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        translate(framework, "torch", op, size=4, **({"kernel_size": 3} | arguments))
    assert "\n" not in str(error.value)


def test_the_script_draws_every_way_of_speaking() -> None:
    """No spelling is left out of the drawn calls."""
    for framework, spelling in SPELLINGS.items():
        for op, names in zip(OPS, spelling.border):
            seen = {name for seed in range(60) for name in drawn(seed, framework, op)[1]}
            assert set(names) <= seen, (framework, op)
