# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients on whatever Relay ``import tvm`` finds, against PyTorch.

As ``upstream_relax``, which says how it is called.  Layouts are those that have a memory order of
their own in Relay: that of the result is that of the data.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

from .upstream_calls import Call, check, stored_shapes, verdict


def by_relay(call: Call, x: Any, w: Any) -> Any:
    rank = call.rank
    attrs: dict[str, Any] = {"strides": call.strides, "padding": call.padding}
    attrs.update(dilation=call.dilation[:rank], groups=call.groups)
    attrs.update(zip(("data_layout", "kernel_layout"), call.layouts or call.letters))
    (_, *channels), kernel = call.shapes[1][:2], call.shapes[1][2:]
    outs = channels[0] * call.groups if call.transposed else call.shapes[1][0]
    attrs.update(channels=outs, kernel_size=kernel)
    if call.transposed:
        attrs["output_padding"] = call.extra[:rank]
    return getattr(relay.nn, f"conv{rank}d" + "_transpose" * call.transposed)(x, w, **attrs)


def function(call: Call, gradients: bool) -> Any:
    x, w = (relay.var(n, shape=s, dtype="float64") for n, s in zip("xw", stored_shapes(call)))
    y = by_relay(call, x, w)
    made = relay.Function([x, w], relay.sum(y * y) if gradients else y)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(made))
    if not gradients:
        return mod["main"]
    return relay.transform.gradient(mod["main"], mode="first_order")


def supported(call: Call, gradients: bool) -> Call:
    """Layouts of a call in Relay: a convolution is TVM's own, which takes NC* and OI* alone."""
    if not call.layouts or (not call.transposed):
        return replace(call, layouts=())
    data, kernel, _ = call.layouts
    return replace(call, layouts=(data, kernel, data))


def run(calls: list[Call], gradients: bool) -> list[str]:
    calls = [supported(call, gradients) for call in calls]
    functions = {relay.GlobalVar(f"f{i}"): function(c, gradients) for i, c in enumerate(calls)}
    made, mod = functions.values(), tvm.IRModule(functions)
    # What main does not reach is not compiled.
    given = [[relay.var(p.name_hint, p.type_annotation) for p in f.params] for f in made]
    results = [f(*variables) for f, variables in zip(functions, given)]
    mod["main"] = relay.Function([v for some in given for v in some], relay.Tuple(results))
    machine = VirtualMachine(relay.vm.compile(mod, "llvm -opt-level=0"), tvm.cpu())

    def call(number: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        result = machine.invoke(f"f{number}", *arrays)
        return [a.numpy() for a in (result[1] if gradients else [result])]

    return check(calls, gradients, call)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    wrong = verdict(run, *sys.argv[1:])
    ours = {name.split(".")[0] for name in sys.modules} & {"topi_ext", "relay_ext", "conv_cli"}
    ran = f"{sys.argv[2]} + {sys.argv[3]} calls of {tvm.__file__}"
    print(*wrong, f"{ran}, {sorted(ours)} of ours", sep="\n")
    sys.exit(bool(wrong or ours))
