#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record how frameworks pad: reference data of ``topi_ext.padding`` and its tests.

``python scripts/padding_golden.py --out tests/data/padding.json`` draws calls, runs them and writes
down the results; equal arguments and releases write equal files.  ``--check 400`` translates calls
between every two frameworks and runs both sides.  Both want an environment of their own::

    python -m venv .venv-frameworks
    .venv-frameworks/bin/pip install tensorflow-cpu jax torch onnx onnxruntime
    PYTHONPATH=python .venv-frameworks/bin/python scripts/padding_golden.py --check 400

Operands have one channel and small integers, so every framework is exact.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from topi_ext.padding import SPELLINGS, Translation, read, translate

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Of jaxlib 0.10.2 this pass aborts the process at some convolutions: "Window dimensions do not
# match RHS shape".
os.environ.setdefault("XLA_FLAGS", "--xla_disable_hlo_passes=algsimp")

OPS = ("conv", "conv_transpose")
PACKAGES = ("tensorflow-cpu", "keras", "jax", "torch", "onnxruntime")

Arguments = dict[str, Any]


# ------------------------------------------------------------------------- operands, definition


def operands(size: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Data and weights that no shift leaves as they are."""
    i, j = np.arange(prod(size)), np.arange(prod(kernel))
    x = (7 * i * i + 3 * i + 1) % 19 - 9
    w = (5 * j * j + j + 2) % 17 - 7
    return x.reshape(size).astype("float32"), w.reshape(kernel).astype("float32")


def resized(x: np.ndarray, ends: Any) -> np.ndarray:
    """Zeros around `x`, or, of negative numbers, rows cut off."""
    grown = np.pad(x, [(max(0, b), max(0, a)) for b, a in ends])
    kept = [slice(max(0, -b), n - max(0, -a)) for n, (b, a) in zip(grown.shape, ends)]
    return grown[tuple(kept)]


def defined(call: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the result of a call, computed by loops over positions and taps."""
    window = call.window
    w = np.flip(w) if call.flipped else w
    taps = [(r, tuple(np.multiply(r, window.dilation))) for r in np.ndindex(w.shape)]
    if window.transposed:
        y = np.zeros(window.full_size(x.shape), x.dtype)
        for p in np.ndindex(x.shape):
            for r, at in taps:
                y[tuple(np.multiply(p, window.stride) + at)] += x[p] * w[r]
        return resized(y, [(-b, -a) for b, a in call.ends])
    x = resized(x, call.ends)
    sizes = [(n - far) // s + 1 for n, far, s in zip(x.shape, window.reach, window.stride)]
    y = np.zeros(sizes, x.dtype)
    for q in np.ndindex(y.shape):
        y[q] = sum(x[tuple(np.multiply(q, window.stride) + at)] * w[r] for r, at in taps)
    return y


# ------------------------------------------------------------------------- the frameworks


def run_torch(op: str, x: np.ndarray, w: np.ndarray, arguments: Arguments) -> np.ndarray:
    torch = importlib.import_module("torch")
    given = {key: value for key, value in arguments.items() if key != "kernel_size"}
    x, w = torch.from_numpy(x)[None, None], torch.from_numpy(w.copy())[None, None]
    if "output_size" in given:
        layer = getattr(torch.nn, f"ConvTranspose{w.ndim - 2}d")
        size = given.pop("output_size")
        made = layer(1, 1, tuple(w.shape[2:]), bias=False, **given)
        made.weight.data = w
        return made(x, output_size=size).detach().numpy()[0, 0]
    name = f"{'conv' if op == 'conv' else 'conv_transpose'}{w.ndim - 2}d"
    return getattr(torch.nn.functional, name)(x, w, **given).numpy()[0, 0]


def run_tensorflow(op: str, x: np.ndarray, w: np.ndarray, arguments: Arguments) -> np.ndarray:
    tf = importlib.import_module("tensorflow")
    given = {key: value for key, value in arguments.items() if key != "kernel_size"}
    if "output_shape" in given:
        given["output_shape"] = [1, *given["output_shape"], 1]
    if op == "conv" and given["padding"] != "SAME":
        _check_reach(x, w, given)
    if op == "conv" and x.ndim == 3:
        _check_stride(x, w, given["strides"][1:-1])
    name = f"conv{x.ndim}d{'' if op == 'conv' else '_transpose'}"
    y = getattr(tf.nn, name)(x[None, ..., None], w[..., None, None], **given)
    return y.numpy()[0, ..., 0]


def _check_reach(x: np.ndarray, w: np.ndarray, given: Arguments) -> None:
    """TensorFlow 2.21 with oneDNN returns memory as it lies there, in the size of the operand,
    where a kernel reaches beyond it; without oneDNN the result is empty."""
    ends = [(0, 0)] * x.ndim if given["padding"] == "VALID" else given["padding"][1:-1]
    dilation = given["dilations"][1:-1] if x.ndim == 3 else given["dilations"]
    far = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape)]
    if any(n + b + a < f for n, (b, a), f in zip(x.shape, ends, far)):
        raise ValueError(f"a kernel that reaches {far} is longer than the operand {x.shape}")


def _check_stride(x: np.ndarray, w: np.ndarray, strides: Any) -> None:
    """TensorFlow 2.21 with oneDNN reads beyond the operand in some conv3d of strides longer than
    the kernel: size (8, 6, 4), kernel (3, 2, 2), strides (1, 1, 3).  Without oneDNN it is right."""
    if x.ndim == 3 and any(s > k for s, k in zip(strides, w.shape)):
        raise ValueError(f"strides={strides} are longer than the kernel {w.shape}")


def run_keras(op: str, x: np.ndarray, w: np.ndarray, arguments: Arguments) -> np.ndarray:
    keras = importlib.import_module("keras")
    is_old = keras.__version__ < "3"
    if is_old and op == "conv_transpose" and x.ndim == 3 and max(arguments["dilation_rate"]) > 1:
        raise ValueError("Keras 2 ignores the dilation of Conv3DTranspose")
    if op == "conv":
        _check_stride(x, w, arguments["strides"])
    kind = getattr(keras.layers, f"Conv{x.ndim}D{'' if op == 'conv' else 'Transpose'}")
    layer = kind(1, use_bias=False, **arguments)
    layer.build((1, *x.shape, 1))
    layer.set_weights([w[..., None, None]])
    return np.asarray(layer(x[None, ..., None]))[0, ..., 0]


def run_onnx(op: str, x: np.ndarray, w: np.ndarray, arguments: Arguments) -> np.ndarray:
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper = onnx.helper
    kind = "Conv" if op == "conv" else "ConvTranspose"
    node = helper.make_node(kind, ["x", "w"], ["y"], **arguments)
    x, w = x[None, None], w[None, None]
    infos = [helper.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", x), ("w", w))]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, None)])
    opset = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    text = model.SerializeToString()
    session = runtime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "w": w})[0][0, 0]


def run_jax(op: str, x: np.ndarray, w: np.ndarray, arguments: Arguments) -> np.ndarray:
    lax = importlib.import_module("jax.lax")
    given = {key: value for key, value in arguments.items() if key != "kernel_size"}
    letters = "DHW"[-x.ndim :]
    numbers = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    function = lax.conv_general_dilated if op == "conv" else lax.conv_transpose
    y = function(x[None, None], w[None, None], dimension_numbers=numbers, **given)
    return np.asarray(y)[0, 0]


RUNS: dict[str, Callable[[str, np.ndarray, np.ndarray, Arguments], np.ndarray]] = {
    "torch": run_torch,
    "tensorflow": run_tensorflow,
    "keras": run_keras,
    "onnx": run_onnx,
    "jax": run_jax,
}
"""Functions that run one call of each framework, on arrays without batch and channel."""


def applied(found: Translation, op: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return a translated call, run, with what has to be done around it."""
    framework = next(
        name
        for name, spelling in SPELLINGS.items()
        if found.function in {f.format(rank=x.ndim) for f in spelling.functions}
    )
    w = np.flip(w).copy() if found.flip_kernel else w
    y = RUNS[framework](op, resized(x, found.pad), w, found.arguments)
    return resized(y, [(-b, -a) for b, a in found.crop])


# ------------------------------------------------------------------------- drawn calls


def draw(rng: random.Random, framework: str, op: str) -> tuple[tuple[int, ...], Arguments]:
    """Return a size and the arguments of a call; some are refused by their framework."""
    rank = rng.choice((1, 1, 1, 2, 2, 3))

    def values(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randint(low, high) for _ in range(rank))

    spelling, transposed = SPELLINGS[framework], op == "conv_transpose"
    size = values(1, (9, 5, 3)[rank - 1]) if transposed else values(2, (16, 9, 5)[rank - 1])
    kernel = values(1, (7, 5, 3)[rank - 1])
    strides = values(1, 4) if rng.random() < 0.7 else (1,) * rank
    dilation = values(1, 3) if rng.random() < 0.4 else (1,) * rank
    if framework == "keras" and max(dilation) > 1:
        strides = (1,) * rank
    border = BORDERS[framework](rng, (size, kernel, strides, dilation), transposed)
    steps = {spelling.strides[transposed]: strides, spelling.dilation: dilation}
    if framework == "tensorflow" and not transposed and rank != 2:
        whole = {"strides": (1, *strides, 1), "dilations": (1, *dilation, 1)}
        steps = {"stride": strides, "dilations": dilation} if rank == 1 else whole
    if framework == "jax" and border.pop("moves_stride", False):
        steps = {"window_strides": (1,) * rank, "lhs_dilation": strides, "rhs_dilation": dilation}
    return size, {spelling.kernel: kernel, **steps, **border}


Drawn = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Size, kernel, strides, dilation."""


def _full(drawn: Drawn) -> list[int]:
    return [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(*drawn)]


def _torch(rng: random.Random, drawn: Drawn, transposed: bool) -> Arguments:
    _, kernel, strides, dilation = drawn
    if not transposed and max(strides) == 1 and rng.random() < 0.5:
        return {"padding": rng.choice(("same", "valid"))}
    padding = tuple(rng.randint(0, d * (k - 1) // 2 + 1) for k, d in zip(kernel, dilation))
    if not transposed:
        return {"padding": padding}
    extra = tuple(rng.randint(0, max(pair) - 1) for pair in zip(strides, dilation))
    if rng.random() < 0.3:
        more = [rng.randint(0, s - 1) for s in strides]
        sizes = [f - 2 * p + m for f, p, m in zip(_full(drawn), padding, more)]
        return {"padding": padding, "output_size": sizes}
    return {"padding": padding, "output_padding": extra}


def _tensorflow(rng: random.Random, drawn: Drawn, transposed: bool) -> Arguments:
    size, _, strides, _ = drawn
    kind = rng.choice(("SAME", "VALID", "explicit") if len(size) == 2 else ("SAME", "VALID"))
    ends = [[rng.randint(0, 3), rng.randint(0, 3)] for _ in size]
    more = [rng.randint(0, s - 1) for s in strides]
    padding: Any = [[0, 0], *ends, [0, 0]] if kind == "explicit" else kind
    if not transposed:
        return {"padding": padding}
    if kind == "SAME":
        shape = [n * s - m for n, s, m in zip(size, strides, more)]
    elif kind == "VALID":
        shape = [f + m for f, m in zip(_full(drawn), more)]
    else:
        shape = [f - b - a + m for f, (b, a), m in zip(_full(drawn), ends, more)]
    return {"padding": padding, "output_shape": shape}


def _keras(rng: random.Random, drawn: Drawn, transposed: bool) -> Arguments:
    size, _, strides, _ = drawn
    causal = ("causal",) if len(size) == 1 and not transposed else ()
    padding = {"padding": rng.choice(("same", "valid", *causal))}
    if transposed and rng.random() < 0.5:
        padding["output_padding"] = tuple(rng.randint(0, s - 1) for s in strides)
    return padding


def _onnx(rng: random.Random, drawn: Drawn, transposed: bool) -> Arguments:
    _, kernel, strides, dilation = drawn
    auto = rng.choice(("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    most = [d * (k - 1) // 2 + 1 for k, d in zip(kernel, dilation)] * 2
    found: Arguments = {"auto_pad": auto}
    if auto == "NOTSET":
        found["pads"] = [rng.randint(0, m) for m in most]
    if transposed and rng.random() < 0.5:
        found["output_padding"] = [rng.randint(0, s - 1) for s in strides]
    if transposed and rng.random() < 0.4:
        found["output_shape"] = [max(1, f - rng.randint(-1, 4)) for f in _full(drawn)]
    return found


def _jax(rng: random.Random, drawn: Drawn, transposed: bool) -> Arguments:
    size = drawn[0]
    names = ("SAME", "VALID") if transposed else ("SAME", "VALID", "SAME_LOWER")
    pairs = [(rng.randint(-1, 4), rng.randint(-1, 4)) for _ in size]
    padding: Any = rng.choice((*names, pairs, pairs))
    if transposed:
        consistent = rng.random() < 0.3
        if consistent and padding is pairs:
            padding = [(max(0, b), max(0, a)) for b, a in pairs]
        flags = dict(transpose_kernel=rng.random() < 0.5, use_consistent_padding=consistent)
        return {"padding": padding, **flags}
    return {"padding": padding, "moves_stride": padding is pairs and rng.random() < 0.5}


BORDERS: dict[str, Callable[[random.Random, Drawn, bool], Arguments]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "keras": _keras,
    "onnx": _onnx,
    "jax": _jax,
}


# ------------------------------------------------------------------------- both commands


def kernel_of(arguments: Arguments) -> tuple[int, ...]:
    """Return the size of the kernel, which one framework calls otherwise."""
    return tuple(arguments.get("kernel_size") or arguments["kernel_shape"])


def run(framework: str, op: str, size: tuple[int, ...], arguments: Arguments) -> Any:
    """Return a framework's result: an array, or the error that it raises."""
    try:
        return RUNS[framework](op, *operands(size, kernel_of(arguments)), arguments)
    except ImportError:
        raise
    except Exception as error:  # every framework has classes of its own
        return error


def golden(seed: int, count: int, frameworks: list[str]) -> list[dict[str, Any]]:
    """Calls and what they returned; None where the framework refused."""
    rng, found = random.Random(seed), []
    for framework in frameworks:
        for op in OPS:
            found += [(framework, op, *draw(rng, framework, op)) for _ in range(count)]
    if "tensorflow" in frameworks:
        found += [("tensorflow", "conv_transpose", *call) for call in founding()]
    return [recorded(*call) for call in found]


def founding() -> Iterator[tuple[tuple[int, ...], Arguments]]:
    """conv2d_transpose with SAME, and VALID of at least as many rows: founding reports 2 and 3."""
    size = (2, 3)
    for kernel in range(1, 8):
        for stride in range(1, 5):
            steps = dict(kernel_size=(kernel, kernel), strides=(stride, stride))
            same = [n * stride for n in size]
            valid = [max((n - 1) * stride + kernel, n * stride) for n in size]
            yield size, {**steps, "padding": "SAME", "output_shape": same}
            yield size, {**steps, "padding": "VALID", "output_shape": valid}


def recorded(framework: str, op: str, size: tuple[int, ...], arguments: Arguments) -> Arguments:
    """Return a call and its result, as JSON has them."""
    result = run(framework, op, size, arguments)
    is_array = isinstance(result, np.ndarray) and result.size
    shape = list(result.shape) if is_array else None
    values = result.astype(int).ravel().tolist() if is_array else None
    call = dict(framework=framework, op=op, size=size, arguments=arguments)
    return {**call, "shape": shape, "values": values}


def check(seed: int, count: int, frameworks: list[str]) -> Counter[str]:
    """Translate calls from every framework into every other, and run both."""
    rng, seen = random.Random(seed), Counter[str]()
    for turn in range(count):
        source, op = rng.choice(frameworks), OPS[turn % 2]
        size, arguments = draw(rng, source, op)
        want = run(source, op, size, arguments)
        if not isinstance(want, np.ndarray) or not want.size:
            seen[f"{source} {op}: refused"] += 1
            continue
        call = read(source, op, size=size, **arguments)
        to = "conv_transpose" if call.window.transposed else "conv"
        x, w = operands(size, kernel_of(arguments))
        for target in frameworks:
            label = f"{source} -> {target} {to}"
            try:
                made = translate(source, target, op, size=size, **arguments)
            except ValueError as error:
                seen[f"{label}: {str(error).split(':')[0]} refuses"] += 1
                continue
            try:
                got: Any = applied(made, to, x, w)
            except Exception as error:
                got = error
                if "longer than" in str(error):
                    seen[f"{label}: a fault of the framework, not run"] += 1
                    continue
            if not np.array_equal(got, want):
                seen["WRONG"] += 1
                print(f"{label}: {arguments} of {size}: {made}\n  want {want}\n  got {got}")
            seen[f"{label}: {'one call' if made.is_one_call else 'around'}"] += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write what the frameworks returned")
    parser.add_argument("--check", type=int, default=0, help="translate and run so many calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="calls per framework and operator")
    parser.add_argument("--frameworks", nargs="+", default=list(RUNS), choices=list(RUNS))
    given = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if _is_there(name)}
    print(versions, f"seed {given.seed}")
    if given.out:
        cases = golden(given.seed, given.count, given.frameworks)
        lines = ",\n".join(json.dumps(case) for case in cases)
        head = json.dumps({"versions": versions, "seed": given.seed})[:-1]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(f'{head}, "cases": [\n{lines}\n]}}\n')
        print(Counter(f"{c['framework']} {c['op']} {c['shape'] is not None}" for c in cases))
    if given.check:
        seen = check(given.seed, given.check, given.frameworks)
        print("\n".join(f"{key}: {number}" for key, number in sorted(seen.items())))
        raise SystemExit(1 if seen["WRONG"] else 0)


def _is_there(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


if __name__ == "__main__":
    main()
