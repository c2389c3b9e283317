# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients on whatever Relax ``import tvm`` finds, against PyTorch.

A program of its own, which imports nothing of this package: what it finds right a patched TVM does
by itself.  ``upstream_relax SEED CALLS GRADIENTS`` runs the founding reports and so many random
calls and gradients, prints those that are wrong, then how many ran.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from .upstream_calls import Call, check, stored_shapes, verdict

TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def by_relax(call: Call, x: Any, w: Any) -> Any:
    attrs: dict[str, Any] = {"strides": call.strides, "padding": call.padding}
    attrs.update(dilation=call.dilation[: call.rank], groups=call.groups)
    if call.transposed:
        attrs["output_padding"] = call.extra[: call.rank]
    attrs.update(zip(("data_layout", "kernel_layout", "out_layout"), call.layouts or call.letters))
    return getattr(relax.op.nn, f"conv{call.rank}d" + "_transpose" * call.transposed)(x, w, **attrs)


def compiled(calls: list[Call], gradients: bool) -> Any:
    bb = relax.BlockBuilder()
    for number, call in enumerate(calls):
        types = [R.Tensor(shape, "float64") for shape in stored_shapes(call)]
        x, w = (relax.Var(name, type_) for name, type_ in zip("xw", types))
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


def run(calls: list[Call], gradients: bool) -> list[str]:
    vm = compiled(calls, gradients)

    def call(number: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        name = f"f{number}" + "_adjoint" * gradients
        result = vm[name](*map(tvm.runtime.tensor, arrays))
        return [a.numpy() for a in (result[1] if gradients else [result])]

    return check(calls, gradients, call)


if __name__ == "__main__":
    wrong = verdict(run, *sys.argv[1:])
    ours = {name.split(".")[0] for name in sys.modules} & {"topi_ext", "relax_ext", "conv_cli"}
    ran = f"{sys.argv[2]} + {sys.argv[3]} calls of {tvm.__file__}"
    print(*wrong, f"{ran}, {sorted(ours)} of ours", sep="\n")
    sys.exit(bool(wrong or ours))
