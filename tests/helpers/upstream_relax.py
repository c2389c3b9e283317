# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients on whatever ``import tvm`` finds, against PyTorch.

A program of its own, which imports nothing of this package: what it finds right a patched TVM does
by itself.  ``upstream_relax.py SEED COUNT`` runs the founding reports and so many random calls,
prints those that are wrong, then how many ran.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.script import relax as R

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


@dataclass(frozen=True)
class Call:
    """One call, of any rank; padding is the same on both sides."""

    transposed: bool
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    extra: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1
    layouts: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.strides)

    @property
    def letters(self) -> tuple[str, str, str]:
        data, kernel = "NC" + SPATIAL[self.rank], "IO" if self.transposed else "OI"
        return data, kernel + SPATIAL[self.rank], data


# Output rows that are computed from the data; the gradient of a stride that does not divide; the
# gradient of a depthwise convolution; long transposed convolutions of one axis.
FOUNDING_FORWARD = [
    Call(True, ((1, 1, 2, 3), (1, 1, 2, 2)), (2, 1), (1, 1), (1, 0)),
    Call(True, ((2, 258, 249), (258, 1, 256)), (128,), (64,), (3,)),
    Call(True, ((2, 1, 7), (1, 2, 3)), (3,), (5,), (2,)),
    Call(True, ((2, 258, 249), (258, 1, 7)), (6,), (9,), (4,)),
    Call(True, ((1, 2, 3, 4, 3), (2, 3, 7, 7, 7)), (2,) * 3, (3,) * 3, (1,) * 3),
]
FOUNDING_GRADIENTS = [
    Call(False, ((1, 2, 9, 11), (3, 2, 2, 2)), (2, 4), (1, 0)),
    Call(False, ((1, 32, 224, 224), (32, 1, 3, 3)), (1, 1), (1, 1), groups=32),
]


def random_call(rnd: random.Random) -> Call:
    """Any rank, layouts, groups, stride, dilation, padding and output padding below the stride."""
    rank, transposed = rnd.choice([1, 2, 2, 3]), rnd.random() < 0.6
    axes: list[tuple[int, ...]] = []
    while len(axes) < rank:
        size, kernel, stride, dilation = (rnd.randint(1, most) for most in (5, 4, 3, 3))
        pad, extra, reach = rnd.randint(0, 2), rnd.randint(0, stride - 1), dilation * kernel
        out = (size - 1) * stride + reach - dilation + 1 - 2 * pad + extra
        if not transposed:
            size, out = size + reach, size + 2 * pad + dilation
        if out >= 1:
            axes.append((size, kernel, stride, dilation, pad, extra))
    size, kernel, strides, dilation, padding, more = zip(*axes)
    groups = rnd.choice([1, 1, 2, 3])
    ins, outs = groups * rnd.randint(1, 3), groups * rnd.randint(1, 2)
    channels = (ins, outs // groups) if transposed else (outs, ins // groups)
    shapes = (rnd.randint(1, 2), ins, *size), (*channels, *kernel)
    call = Call(transposed, shapes, strides, padding, more, dilation, groups)
    layouts = [list(letters) for letters in call.letters]
    if rnd.random() < 0.7:
        for layout in layouts:
            rnd.shuffle(layout)
    return replace(call, layouts=tuple(map("".join, layouts)))


def by_torch(call: Call, x: Any, w: Any) -> Any:
    name = f"conv_transpose{call.rank}d" if call.transposed else f"conv{call.rank}d"
    extra, dilation = call.extra[: call.rank], call.dilation[: call.rank]
    rest = (extra, call.groups, dilation) if call.transposed else (dilation, call.groups)
    return getattr(torch.nn.functional, name)(x, w, None, call.strides, call.padding, *rest)


def by_relax(call: Call, x: Any, w: Any) -> Any:
    attrs: dict[str, Any] = {"strides": call.strides, "padding": call.padding}
    attrs.update(dilation=call.dilation[: call.rank], groups=call.groups)
    if call.transposed:
        attrs["output_padding"] = call.extra[: call.rank]
    attrs.update(zip(("data_layout", "kernel_layout", "out_layout"), call.layouts or call.letters))
    return getattr(relax.op.nn, f"conv{call.rank}d" + "_transpose" * call.transposed)(x, w, **attrs)


def stored(call: Call, which: int, array: np.ndarray) -> np.ndarray:
    """An operand, or (2) the result, in its layout."""
    letters, layout = call.letters[which], (call.layouts or call.letters)[which]
    return np.ascontiguousarray(array.transpose([letters.index(axis) for axis in layout]))


def compiled(calls: list[Call], gradients: bool) -> Any:
    bb = relax.BlockBuilder()
    for number, call in enumerate(calls):
        shapes = [stored(call, i, np.empty(shape)).shape for i, shape in enumerate(call.shapes)]
        x, w = (relax.Var(name, R.Tensor(shape, "float64")) for name, shape in zip("xw", shapes))
        with bb.function(f"f{number}", [x, w]):
            with bb.dataflow():
                y = bb.emit(by_relax(call, x, w))
                if gradients:
                    y = bb.emit(relax.op.sum(relax.op.multiply(y, y)))
                out = bb.emit_output(y)
            bb.emit_func_output(out)
    mod = bb.get()
    for number in range(len(calls) * gradients):
        mod = relax.transform.Gradient(f"f{number}")(mod)
    return relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())


def check(calls: list[Call], gradients: bool) -> list[str]:
    """Lines about calls that are wrong; the loss of gradients is the sum of squares."""
    vm, rng, wrong = compiled(calls, gradients), np.random.default_rng(0), []
    for number, call in enumerate(calls):
        arrays = [rng.standard_normal(shape) for shape in call.shapes]
        x, w = (torch.tensor(array, requires_grad=True) for array in arrays)
        y = by_torch(call, x, w)
        given = [tvm.runtime.tensor(stored(call, i, array)) for i, array in enumerate(arrays)]
        if gradients:
            (y * y).sum().backward()
            _, found = vm[f"f{number}_adjoint"](*given)
            wanted = [stored(call, 0, x.grad.numpy()), stored(call, 1, w.grad.numpy())]
        else:
            found, wanted = [vm[f"f{number}"](*given)], [stored(call, 2, y.detach().numpy())]
        for got, want in zip((a.numpy() for a in found), wanted):
            # At most some ten thousand products in float64.
            limit = 1e-11 * max(1.0, np.abs(want).max())
            if got.shape != want.shape or not np.abs(got - want).max() <= limit:
                wrong.append(f"wrong: gradients={gradients} {call}")
    return wrong


def main(seed: str, count: str) -> int:
    """Exit status: 0 where all are right."""
    rnd = random.Random(int(seed))
    wrong = []
    for gradients, founding in ((False, FOUNDING_FORWARD), (True, FOUNDING_GRADIENTS)):
        calls = founding + [random_call(rnd) for _ in range(int(count))]
        wrong += check(calls, gradients)
    ours = {name.split(".")[0] for name in sys.modules} & {"topi_ext", "relax_ext", "conv_cli"}
    print(*wrong, f"2 x {count} calls of {tvm.__file__}, {sorted(ours)} of ours", sep="\n")
    return 1 if wrong or ours else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
