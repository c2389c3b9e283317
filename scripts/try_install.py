# SPDX-License-Identifier: Apache-2.0
"""Compile and run a layer and its gradient by the installed package: what ``make dist`` ends with.

Run it from another folder than the checkout: it fails where the package is not an installed one.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

import relax_ext

PLACE = Path(sysconfig.get_path("purelib"))
X, W = (1, 5, 5, 8), (4, 4, 8, 6)
TOLERANCE = 1e-5
"""Maximum error, relative to the largest value: sums of 128 products of float32 numbers near 1."""


def layer() -> tvm.IRModule:
    """Return a transposed convolution, channels last, and the gradients of its mean square."""
    x, w = (relax.Var(name, R.Tensor(size, "float32")) for name, size in (("x", X), ("w", W)))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(
                relax.op.nn.conv2d_transpose(
                    x, w, strides=2, padding=1, data_layout="NHWC", kernel_layout="HWIO"
                )
            )
            loss = bb.emit_output(relax.op.mean(relax.op.multiply(y, y)))
        bb.emit_func_output(loss)
    return relax.transform.Gradient("main")(bb.get())


def expected(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """Return the loss and both gradients by the definition, in float64."""
    x, w = x.astype("float64"), w.astype("float64")
    taps = [(i, j, slice(i, i + 10, 2), slice(j, j + 10, 2)) for i in range(4) for j in range(4)]
    whole = np.zeros((1, 12, 12, 6))
    for i, j, rows, columns in taps:
        whole[:, rows, columns] += x @ w[i, j]
    y = whole[:, 1:-1, 1:-1]
    dy = np.pad(2 * y / y.size, ((0, 0), (1, 1), (1, 1), (0, 0)))
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for i, j, rows, columns in taps:
        dx += dy[:, rows, columns] @ w[i, j].T
        dw[i, j] = np.einsum("nhwc,nhwk->ck", x, dy[:, rows, columns])
    return [(y * y).mean(), dx, dw]


def main() -> int:
    """Return 0 where the loss and both gradients are those of the definition."""
    if PLACE not in Path(relax_ext.__file__).parents:
        raise SystemExit(f"{relax_ext.__file__} is not an installed package")
    random = np.random.default_rng(0).standard_normal
    x, w = random(X).astype("float32"), random(W).astype("float32")
    executable = tvm.compile(layer(), relax_ext.host_target())
    machine = relax.VirtualMachine(executable, tvm.cpu())
    loss, gradients = machine["main_adjoint"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))
    exact = expected(x, w)
    for mine, wanted in zip([loss, *gradients], exact):
        error = abs(mine.numpy() - wanted).max() / abs(wanted).max()
        if not error < TOLERANCE:
            raise SystemExit(f"the result is {error:.1e} off")
    print(f"tvm-conv-ext {version('tvm-conv-ext')}: correct, by {relax_ext.__file__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
